"""``gendurable bench``: the figures of this version on this machine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from gendurable.bench.lines import REQUIRED, Line
from gendurable.bench.options import BenchOptions
from gendurable.bench.scenarios import SCENARIOS, run_scenarios
from gendurable.cli.rendering import print_table
from gendurable.embedded import EmbeddedPostgres
from gendurable.logs import configure_logging

_SECONDS: Final = click.FloatRange(min=0.1)


@click.command()
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...", type=click.Choice(list(SCENARIOS)))
@click.option("--jobs", type=click.IntRange(min=1), help="Rows of a run, instead of each scenario's own number.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Steps at once, instead of the worker's default.")
@click.option("--queues", type=click.IntRange(min=1, max=1000), help="Queues to spread the rows over.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="How often each is measured.")
@click.option("--baseline", is_flag=True, help="Measure the bare SQL statements in turn with the engine.")
@click.option("--analysed", is_flag=True, help="Analyse the loaded table first, while nothing runs.")
@click.option("--idle-seconds", type=_SECONDS, default=60.0, show_default=True, help="How long idle is watched.")
@click.option("--lease-seconds", type=_SECONDS, help="The lease in recovery, instead of the worker's default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("--dsn", metavar="URL", help="Measure on this server, in a schema that is made and dropped again.")
@click.option("--embedded", metavar="DIR", type=click.Path(path_type=Path), help="The embedded server's data folder.")
def bench(*, scenarios: tuple[str, ...], as_json: bool, dsn: str | None, embedded: Path | None, **wanted: Any) -> None:
    """Measure SCENARIOs (all of them by default) with the worker's default settings.

    Without --dsn, an embedded server with default durability is started in a temporary folder. Settings of the
    environment and of files are left out, so that the figures of two machines can be compared.
    """
    if dsn is not None and embedded is not None:
        raise click.UsageError("--dsn and --embedded exclude each other.")
    configure_logging("warning", "console")
    names = list(scenarios) or list(SCENARIOS)
    asyncio.run(_run(names, wanted, as_json=as_json, dsn=dsn, embedded=embedded))


async def _run(
    names: list[str], wanted: dict[str, Any], *, as_json: bool, dsn: str | None, embedded: Path | None
) -> None:
    async with _server(dsn, embedded) as address:
        options = BenchOptions(
            dsn=address,
            jobs=wanted["jobs"],
            concurrency=wanted["concurrency"],
            queues=wanted["queues"],
            runs=wanted["runs"],
            has_baseline=wanted["baseline"],
            is_analysed=wanted["analysed"],
            idle_s=wanted["idle_seconds"],
            lease_ttl_s=wanted["lease_seconds"],
        )
        lines = []
        async for line in run_scenarios(names, options):
            if as_json:
                click.echo(msgspec.json.encode(line).decode())
            else:
                click.echo(f"{line['scenario']} measured", err=True)
                lines.append(line)
    if not as_json:
        _print(lines)


def _print(lines: list[Line]) -> None:
    """A table of what every scenario has, then what only some of them have."""
    columns = (*REQUIRED, "baseline_rate", "ratio")
    print_table(
        columns, [[_cell(line.get(name)) for name in columns] for line in lines], nothing="Nothing was measured."
    )
    for line in lines:
        rest = {name: _cell(value) for name, value in line.items() if name not in columns and value is not None}
        click.echo(f"\n{line['scenario']}: " + ", ".join(f"{name} {value}" for name, value in rest.items()))


def _cell(value: object) -> object:
    """A number as it was measured: the table's one decimal is too few for a rate of statements."""
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return str(value) if isinstance(value, float) else value


@contextlib.asynccontextmanager
async def _server(dsn: str | None, directory: Path | None) -> AsyncIterator[str]:
    """The address of the server under test."""
    if dsn is not None:
        yield dsn
        return
    async with EmbeddedPostgres(directory) as server:
        yield server.dsn()
