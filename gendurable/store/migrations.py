"""Moving the schema up and down, asking where it stands, and refusing to run on one that does not fit.

Protocol of a run: one session takes the schema's advisory lock for its whole life; it creates the schema and the table
``migrations`` if they are missing; then each file is one transaction that also records it. So any number of processes
may run at once: one does the work, and the others find nothing left to do. A killed run leaves whole files only.
"""

import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gendurable.errors import InvalidValueError, SchemaMismatchError
from gendurable.store.database import Connection, Database, Row
from gendurable.store.migrating_checks import (
    described,
    differences,
    doomed_after,
    edited,
    history_problems,
    pending_after,
)
from gendurable.store.migrating_files import Migration, load_migrations, parse_version, shipped_migrations
from gendurable.store.migrating_session import MigrationSession, command, filled_in, open_session
from gendurable.store.sql import DEFAULT_SCHEMA, check_schema_name, in_schema

__all__ = [
    "Migration",
    "MigrationStatus",
    "check_compatible",
    "load_migrations",
    "migrate_down",
    "migrate_up",
    "migration_sql",
    "migration_status",
    "shipped_migrations",
    "verify",
]

LOCK_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MigrationStatus:
    """Where one migration stands.

    Attributes:
        number: Its place.
        name: What it is about.
        state: ``applied``; ``pending``; ``edited`` when the file is not the one that was applied; ``unknown`` when it
            was applied by a newer version.
        oldest_worker: The oldest version whose workers still run after it.
        phase: ``expand`` or ``contract``.
        applied_at: When, by the database's clock; None while pending.
        applied_by: The role that applied it; None while pending.
    """

    number: int
    name: str
    state: Literal["applied", "pending", "edited", "unknown"]
    oldest_worker: str
    phase: str
    applied_at: dt.datetime | None = None
    applied_by: str | None = None


async def migrate_up(
    dsn: str,
    *,
    schema: str = DEFAULT_SCHEMA,
    to: int | None = None,
    dry_run: bool = False,
    migrations: Sequence[Migration] | None = None,
    lock_wait_s: float = LOCK_WAIT_S,
) -> list[int]:
    """Apply what is missing.

    Args:
        dsn: Where Postgres is; not through a pooler in transaction mode.
        schema: The Postgres schema; created when missing.
        to: The last number to apply; None for all.
        dry_run: Only look: nothing is written and no lock is taken.
        migrations: The files; None for those of this version.
        lock_wait_s: How long another run may go on before this one gives up.

    Returns:
        The numbers applied, or with ``dry_run`` those that would be; empty when there was nothing to do.

    Raises:
        InvalidValueError: There is no migration ``to``.
        MigrationError: An applied file was edited, the record has a gap, another run did not end, or Postgres refused
            a file. Files before that one are applied and stay.
        StoreError: Postgres could not be reached; a file whose commit was under way may or may not be applied.
    """
    known = _known(migrations)
    last = len(known) if to is None else _existing(known, to)
    async with open_session(dsn, schema) as session:
        if not dry_run:
            await session.become_the_one(lock_wait_s)
        pending = [m for m in pending_after(known, await session.applied()) if m.number <= last]
        if not dry_run and pending:
            await session.prepare()
            for migration in pending:
                await session.apply(migration)
    return [migration.number for migration in pending]


async def migrate_down(
    dsn: str,
    *,
    to: int,
    schema: str = DEFAULT_SCHEMA,
    dry_run: bool = False,
    migrations: Sequence[Migration] | None = None,
    lock_wait_s: float = LOCK_WAIT_S,
) -> list[int]:
    """Take back everything after ``to``, the last first; what it held is lost.

    Args:
        dsn: Where Postgres is; not through a pooler in transaction mode.
        to: The last number to keep; 0 takes back all and leaves the schema with its empty record.
        schema: The Postgres schema.
        dry_run: Only look: nothing is written and no lock is taken.
        migrations: The files; None for those of this version.
        lock_wait_s: How long another run may go on before this one gives up.

    Returns:
        The numbers taken back, or with ``dry_run`` those that would be, in that order.

    Raises:
        InvalidValueError: There is no migration ``to``.
        MigrationError: An applied migration is unknown here or has no script that takes it back, and nothing was done;
            or Postgres refused one, and those taken back before it stay so.
        StoreError: Postgres could not be reached; a script whose commit was under way may or may not be done.
    """
    known = _known(migrations)
    last = _existing(known, to) if to != 0 else 0
    async with open_session(dsn, schema) as session:
        if not dry_run:
            await session.become_the_one(lock_wait_s)
        doomed = doomed_after(known, await session.applied(), last)
        if not dry_run:
            for migration in doomed:
                await session.take_back(migration)
    return [migration.number for migration in doomed]


async def migration_status(
    dsn: str, *, schema: str = DEFAULT_SCHEMA, migrations: Sequence[Migration] | None = None
) -> list[MigrationStatus]:
    """Where every migration stands, known or applied, in order; reads only.

    Raises:
        StoreError: Postgres could not be reached, or the role may not read the record.
    """
    known = {migration.number: migration for migration in _known(migrations)}
    async with open_session(dsn, schema) as session:
        applied = {row["number"]: row for row in await session.applied()}
    found = []
    for number in sorted(known.keys() | applied.keys()):
        row, migration = applied.get(number), known.get(number)
        if row is not None:
            is_same = migration is not None and edited(migration, row) is None
            found.append(
                MigrationStatus(
                    number=number,
                    name=row["name"],
                    state="unknown" if migration is None else "applied" if is_same else "edited",
                    oldest_worker=row["oldest_worker"],
                    phase=row["phase"],
                    applied_at=row["applied_at"],
                    applied_by=row["applied_by"],
                )
            )
        elif migration is not None:
            found.append(
                MigrationStatus(
                    number=number,
                    name=migration.name,
                    state="pending",
                    oldest_worker=migration.oldest_worker,
                    phase=migration.phase,
                )
            )
    return found


def migration_sql(
    schema: str = DEFAULT_SCHEMA,
    *,
    after: int = 0,
    to: int | None = None,
    migrations: Sequence[Migration] | None = None,
) -> str:
    """The text of a run up, with its lock and its record, for an administrator's psql.

    Args:
        schema: The Postgres schema.
        after: The last migration that is applied already; 0 for an empty database.
        to: The last number to apply; None for all.
        migrations: The files; None for those of this version.

    Raises:
        InvalidValueError: There is no migration ``after`` or ``to``.
        ConfigurationError: The schema's name cannot be used.
    """
    check_schema_name(schema)
    known = _known(migrations)
    first = _existing(known, after) if after != 0 else 0
    last = len(known) if to is None else _existing(known, to)
    parts = ["\\set ON_ERROR_STOP on\n", filled_in("migration_wait_lock", schema)]
    if first == 0:
        parts += ["begin;\n", filled_in("migration_schema", schema), filled_in("migration_table", schema), "commit;\n"]
    for migration in known[first:last]:
        record = filled_in(
            "migration_record",
            schema,
            migration.number,
            migration.name,
            migration.checksum,
            migration.oldest_worker,
            migration.phase,
        )
        text = in_schema(migration.up.text, schema).rstrip() + "\n"
        body = ["begin;\n", text, record, "commit;\n"] if migration.up.is_transactional else [text, record]
        parts += [f"\n-- ==== {migration.label} ====\n", *body]
    return "".join([*parts, "\n", filled_in("migration_unlock", schema)])


async def verify(dsn: str, *, schema: str = DEFAULT_SCHEMA, migrations: Sequence[Migration] | None = None) -> list[str]:
    """Compare the schema with what its migrations make of an empty one; nothing is kept.

    The applied files are run in a scratch schema, in a transaction that is rolled back, and both schemas' tables,
    columns, indexes, constraints, types, functions and triggers are compared. Objects that are ours alone are not
    looked for: additions are the operator's right. After a newer version has migrated, only presence is compared.

    Args:
        dsn: Where Postgres is; the role must be allowed to create a schema.
        schema: The Postgres schema.
        migrations: The files; None for those of this version.

    Returns:
        One sentence for each problem; empty when the schema is as it should be.

    Raises:
        MigrationError: The scratch schema could not be built.
        StoreError: Postgres could not be reached, or the role may not read the record.
    """
    known = _known(migrations)
    async with open_session(dsn, schema) as session:
        applied = await session.applied()
        numbers = {row["number"] for row in applied}
        if not numbers:
            return [f"schema {schema!r} has no tables of gendurable: run `{command(schema, 'up')}`"]
        problems = history_problems(known, applied)
        problems += [
            f"migration {migration.label} is not applied: run `{command(schema, 'up')}`"
            for migration in known
            if migration.number not in numbers
        ]
        scratch = f"{schema[:20]}_verify_{secrets.token_hex(4)}"
        expected = await session.objects_made_by([m for m in known if m.number in numbers], scratch)
        found = await session.objects()
    is_ours = max(numbers) <= len(known)
    made = described(expected, renamed=(scratch, schema))
    return problems + differences(made, described(found), is_definition_compared=is_ours)


async def check_compatible(
    target: "Database | Connection",
    *,
    schema: str,
    version: str,
    migrations: Sequence[Migration] | None = None,
) -> None:
    """Refuse to work on a schema that does not fit; one or two small reads.

    Args:
        target: An open database, or a connection.
        schema: The Postgres schema.
        version: The version that wants to run.
        migrations: What it needs; None for what comes with it.

    Raises:
        SchemaMismatchError: The schema or a migration is missing, or a newer one no longer serves this version; the
            message names the command to run.
        StoreError: Postgres could not be reached, or the role may not read the record.
    """
    known = _known(migrations)
    if isinstance(target, Database):
        async with target.connection() as connection:
            rows = await MigrationSession(connection, schema).applied()
    else:
        rows = await MigrationSession(target, schema).applied()
    _refuse_mismatch(known, {row["number"]: row for row in rows}, schema, version)


def _refuse_mismatch(known: Sequence[Migration], applied: Mapping[int, Row], schema: str, version: str) -> None:
    """Raise when a worker of this version must not run on what is applied."""
    if not applied:
        raise SchemaMismatchError(f"schema {schema!r} has no tables of gendurable: run `{command(schema, 'up')}`")
    missing = [m.label for m in known if m.number not in applied or applied[m.number]["name"] != m.name]
    if missing:
        raise SchemaMismatchError(
            f"schema {schema!r} lacks {', '.join(missing)}, which gendurable {version} needs:"
            f" run `{command(schema, 'up')}`"
        )
    for number, row in applied.items():
        if parse_version(row["oldest_worker"]) > parse_version(version):
            raise SchemaMismatchError(
                f"schema {schema!r} has migration {number:04d}_{row['name']}, which serves workers from"
                f" {row['oldest_worker']} on, and this is gendurable {version}: upgrade this worker"
                f" (`pip install 'gendurable>={row['oldest_worker']}'`), or take the migration back with the newer"
                f" version (`{command(schema, f'down --to {number - 1}')}`)"
            )


def _known(migrations: Sequence[Migration] | None) -> Sequence[Migration]:
    return shipped_migrations() if migrations is None else migrations


def _existing(known: Sequence[Migration], number: int) -> int:
    if not 1 <= number <= len(known):
        raise InvalidValueError(f"there is no migration {number}; this version has 1 to {len(known)}", path="to")
    return number
