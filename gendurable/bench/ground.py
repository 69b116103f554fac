"""Where a bench runs: a schema of its own, made for one run and dropped after it, so that nobody's rows are touched."""

import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gendurable.bench.processes import ServerProcesses
from gendurable.settings import Secret, Settings
from gendurable.settings.sections import DEFAULT_QUEUE
from gendurable.store.database import Database
from gendurable.store.migrations import migrate_up
from gendurable.wiring import connect_options

SCHEMA_PREFIX = "gendurable_bench_"
PATIENCE_S = 3600.0


class Ground:
    """One schema on the server under test."""

    def __init__(self, database: Database, dsn: str) -> None:
        """``database`` is open."""
        self.database = database
        self.dsn = dsn

    @property
    def schema(self) -> str:
        """Its name."""
        return self.database.schema

    async def fill(
        self, machine: str, step: str, rows: int, *, queues: Sequence[str] = (DEFAULT_QUEUE,), state: str = "{}"
    ) -> None:
        """Write due rows on the server's side."""
        await self.database.fetch("bench_fill", machine, step, list(queues), state, rows)

    async def analyse(self) -> None:
        """Take statistics now, while nothing runs."""
        await self.database.fetch("bench_analyse")

    async def one(self, name: str, *arguments: object) -> dict[str, Any]:
        """The only row of a statement, by column."""
        row = await self.database.fetch_row(name, *arguments)
        assert row is not None
        return dict(row)

    async def server(self) -> ServerProcesses:
        """The server's processes, as far as this machine can see them."""
        return ServerProcesses.of_backend(int((await self.one("bench_server"))["pid"]))


@contextlib.asynccontextmanager
async def fresh_ground(dsn: str) -> AsyncIterator[Ground]:
    """A migrated schema without a row and without statistics, dropped at the end of the block.

    Raises:
        StoreError: The database cannot be reached, or the role may not create a schema.
    """
    schema = SCHEMA_PREFIX + secrets.token_hex(6)
    await migrate_up(dsn, schema=schema)
    options = connect_options(Settings(dsn=Secret(dsn), schema=schema), application_name="gendurable bench")
    # Filling a million rows takes longer than any statement of a worker may.
    database = Database(dataclasses.replace(options, command_timeout_s=PATIENCE_S, pool_min=1, pool_max=4))
    await database.open()
    try:
        yield Ground(database, dsn)
    finally:
        await database.fetch("bench_drop_schema")
        await database.close()
