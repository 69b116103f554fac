"""``gendurable migrate``: the schema's way up and down, where it stands, and whether it is whole."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec

from gendurable.cli.options import SettingOptions, common_options
from gendurable.embedded import EmbeddedPostgres
from gendurable.settings import Settings
from gendurable.store.migrations import (
    MigrationStatus,
    migrate_down,
    migrate_up,
    migration_sql,
    migration_status,
    shipped_migrations,
    verify,
)

EXIT_SCHEMA_MISMATCH: Final = 5

_LAST: Final = len(shipped_migrations())


@click.group()
def migrate() -> None:
    """Create, change and check the tables.

    Connects to Postgres itself: a pooler in transaction mode cannot hold the lock of a run. Exits with 4 when the
    database cannot be reached and with 1 when a migration fails; what was applied before it stays.
    """


@migrate.command()
@click.option(
    "--to",
    type=click.IntRange(1, _LAST),
    metavar="N",
    default=None,
    help="The last migration to apply.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be applied.")
@common_options
def up(*, options: SettingOptions, to: int | None, dry_run: bool) -> None:
    """Apply what is missing; safe to run from many processes at once."""
    settings = options.load().settings
    with _database_of(settings) as dsn:
        numbers = asyncio.run(migrate_up(dsn, schema=settings.schema, to=to, dry_run=dry_run))
    _print_moved("would apply" if dry_run else "applied", numbers, nothing=f"schema {settings.schema} is up to date")


@migrate.command()
@click.option(
    "--to", type=click.IntRange(0, _LAST), metavar="N", required=True, help="The last migration to keep; 0 keeps none."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be taken back.")
@common_options
def down(*, options: SettingOptions, to: int, yes: bool, dry_run: bool) -> None:
    """Take migrations back, the last first. What their tables held is lost."""
    settings = options.load().settings
    with _database_of(settings) as dsn:
        doomed = asyncio.run(migrate_down(dsn, to=to, schema=settings.schema, dry_run=True))
        if doomed and not dry_run:
            if not yes:
                names = ", ".join(_label(number) for number in doomed)
                click.confirm(f"Take back {names} and lose what they hold?", abort=True)
            doomed = asyncio.run(migrate_down(dsn, to=to, schema=settings.schema))
    _print_moved("would take back" if dry_run else "took back", doomed, nothing="nothing to take back")


@migrate.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
@common_options
def status(*, options: SettingOptions, as_json: bool) -> None:
    """List every migration and whether it is applied."""
    settings = options.load().settings
    with _database_of(settings) as dsn:
        found = asyncio.run(migration_status(dsn, schema=settings.schema))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    for entry in found:
        click.echo(_status_line(entry))


@migrate.command()
@click.option(
    "--from",
    "after",
    type=click.IntRange(0, _LAST),
    metavar="N",
    default=0,
    help="The last migration that is applied already.",
)
@click.option(
    "--to",
    type=click.IntRange(1, _LAST),
    metavar="N",
    default=None,
    help="The last migration to include.  [default: all]",
)
@common_options
def sql(*, options: SettingOptions, after: int, to: int | None) -> None:
    """Print the SQL of a run up, for psql; no database is asked."""
    click.echo(migration_sql(options.load().settings.schema, after=after, to=to), nl=False)


@migrate.command("verify")
@click.option("--json", "as_json", is_flag=True, help='One JSON object: {"problems": [...]}.')
@common_options
def verify_command(*, options: SettingOptions, as_json: bool) -> None:
    """Compare the schema with what its migrations make of an empty one.

    Needs the right to create a schema, which is rolled back. Exits with 5 when anything is missing, different or
    invalid.
    """
    settings = options.load().settings
    with _database_of(settings) as dsn:
        problems = asyncio.run(verify(dsn, schema=settings.schema))
    if as_json:
        click.echo(json.dumps({"problems": problems}, indent=2))
    else:
        click.echo("\n".join(problems) or f"schema {settings.schema} is as it should be")
    if problems:
        raise click.exceptions.Exit(EXIT_SCHEMA_MISMATCH)


@contextlib.contextmanager
def _database_of(settings: Settings) -> Iterator[str]:
    """The address of the configured database; an embedded server runs for the length of the block."""
    if not settings.embedded.enabled:
        yield settings.require_dsn()
        return
    directory, binaries = settings.embedded.directory, settings.embedded.binaries
    with EmbeddedPostgres(
        Path(directory) if directory else None, bin_dir=Path(binaries) if binaries else None
    ) as server:
        yield server.dsn()


def _label(number: int) -> str:
    return shipped_migrations()[number - 1].label


def _print_moved(verb: str, numbers: list[int], *, nothing: str) -> None:
    for number in numbers:
        click.echo(f"{verb} {_label(number)}")
    if not numbers:
        click.echo(nothing)


def _status_line(entry: MigrationStatus) -> str:
    when = f"{entry.applied_at:%Y-%m-%d %H:%M:%S%z} by {entry.applied_by}" if entry.applied_at else ""
    name = f"{entry.number:04d}_{entry.name}"
    return f"{name:<32}  {entry.state:<8}  {entry.phase:<8}  workers from {entry.oldest_worker:<10}  {when}".rstrip()
