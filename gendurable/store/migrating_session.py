"""One connection that migrates, and every statement it sends: the lock, the record, and one file at a time."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import asyncpg

from gendurable.errors import MigrationError, StoreUnavailableError
from gendurable.store.database import Connection, ConnectOptions, Row, translate, translated
from gendurable.store.migrating_files import Migration, Script
from gendurable.store.sql import catalog, in_schema

_LOCK_POLL_S = 0.1
# While a file waits for a lock on a table, every later statement on that table waits behind it.
_TABLE_LOCK_WAIT = "10s"
_PARAMETER = re.compile(r"\$([0-9]+)")


def command(schema: str, verb: str) -> str:
    """The command line that a message names as the remedy."""
    return f"gendurable migrate {verb}" + ("" if schema == "gendurable" else f" --schema {schema}")


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn whatever Postgres refuses in the block into a MigrationError that says what was being done."""
    try:
        yield
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        if isinstance(ours, StoreUnavailableError):
            raise ours from error
        raise MigrationError(f"{what} failed: {error}; {_remedy(error)}") from error


def _remedy(error: Exception) -> str:
    state = getattr(error, "sqlstate", None)
    if state == "42501":
        return (
            "nothing of it was kept. Connect as the role that owns the schema, grant this one CREATE on the database,"
            " or let an administrator run the text of `gendurable migrate sql`"
        )
    if state == "55P03":
        return f"another transaction kept a table locked for {_TABLE_LOCK_WAIT}. Nothing of it was kept; run it again"
    return "nothing of it was kept"


class MigrationSession:
    """A connection of its own, without limits of time, for one schema."""

    def __init__(self, connection: Connection, schema: str) -> None:
        """Built by :func:`open_session`, or around a connection that is only read from."""
        self._connection = connection
        self._sql = catalog(schema)
        self.schema = schema

    async def applied(self) -> list[Row]:
        """What the record says was applied, in order; empty when there is no record yet.

        Raises:
            StoreError: Postgres cannot be reached, or the role may not read the record.
        """
        with translated():
            if not await self._is_recorded():
                return []
            return list(await self._connection.fetch(self._sql.text("migrations_applied")))

    async def is_prepared(self) -> bool:
        """Whether the schema has a record of migrations."""
        with translated():
            return await self._is_recorded()

    async def _is_recorded(self) -> bool:
        return bool(await self._connection.fetchval(self._sql.text("migration_table_exists")))

    async def become_the_one(self, wait_s: float) -> None:
        """Take the lock of this schema's runs; it is held until the session ends.

        Raises:
            MigrationError: Another run had it all the time.
        """
        deadline_s = asyncio.get_running_loop().time() + wait_s
        while not await self._try_lock():
            if asyncio.get_running_loop().time() >= deadline_s:
                raise MigrationError(
                    f"another run has been migrating schema {self.schema!r} for {wait_s:g} s; look at"
                    f" `{command(self.schema, 'status')}` and run this again when it has ended"
                )
            await asyncio.sleep(_LOCK_POLL_S)

    async def _try_lock(self) -> bool:
        with translated():
            return bool(await self._connection.fetchval(self._sql.text("migration_try_lock")))

    async def prepare(self) -> None:
        """Create the schema and the record when they are missing.

        Raises:
            MigrationError: The role may not.
        """
        if await self.is_prepared():
            return
        async with self._transaction(f"creating schema {self.schema}"):
            await self._connection.execute(self._sql.text("migration_schema"))
            await self._connection.execute(self._sql.text("migration_table"))

    async def apply(self, migration: Migration) -> None:
        """Run one file and record it, both or neither when the file runs in a transaction.

        Raises:
            MigrationError: Postgres refused it.
        """
        record: tuple[object, ...] = (
            migration.number,
            migration.name,
            migration.checksum,
            migration.oldest_worker,
            migration.phase,
        )
        await self._run(migration.up, f"migration {migration.label}", "migration_record", record)

    async def take_back(self, migration: Migration) -> None:
        """Run the script that takes a file back and strike it from the record.

        Raises:
            MigrationError: Postgres refused it.
        """
        assert migration.down is not None
        what = f"taking back migration {migration.label}"
        await self._run(migration.down, what, "migration_forget", (migration.number,))

    async def _run(self, script: Script, what: str, note: str, arguments: Sequence[object]) -> None:
        if not script.is_transactional:
            for statement in script.statements():
                with explained(f"{what}, which runs outside a transaction,"):
                    await self._connection.execute(in_schema(statement, self.schema))
        async with self._transaction(what):
            if script.is_transactional:
                await self._connection.execute(in_schema(script.text, self.schema))
            await self._connection.execute(self._sql.text(note), *arguments)

    @contextlib.asynccontextmanager
    async def _transaction(self, what: str) -> AsyncIterator[None]:
        with explained(what):
            async with self._connection.transaction(isolation="read_committed", readonly=False):
                (began,) = await self._connection.fetch(self._sql.text("migration_begin"), _TABLE_LOCK_WAIT)
                if not began["is_locked"]:
                    raise MigrationError(
                        f"{what} was not begun, because this connection changes its session between transactions;"
                        " connect to Postgres itself, not through a pooler in transaction mode"
                    )
                yield

    async def objects(self, schema: str | None = None) -> list[Row]:
        """The tables, columns, indexes, constraints, types, functions and triggers of a schema; None for ours."""
        with translated():
            return list(await self._connection.fetch(self._sql.text("schema_objects"), schema or self.schema))

    async def objects_made_by(self, migrations: Sequence[Migration], scratch: str) -> list[Row]:
        """What these migrations make of an empty schema: applied to one called ``scratch``, read, and rolled back.

        Raises:
            MigrationError: The role may not create a schema, or a file failed.
        """
        attempt = self._connection.transaction(isolation="read_committed", readonly=False)
        with explained(f"building schema {scratch} for comparison"):
            await attempt.start()
            try:
                await self._connection.execute(in_schema(catalog().text("migration_schema"), scratch))
                await self._connection.execute(in_schema(catalog().text("migration_table"), scratch))
                for migration in migrations:
                    await self._connection.execute(in_schema(migration.up.text_for_transaction(), scratch))
                return await self.objects(scratch)
            finally:
                await attempt.rollback()


@contextlib.asynccontextmanager
async def open_session(dsn: str, schema: str) -> AsyncIterator[MigrationSession]:
    """A session for one run; closing it frees the lock.

    Raises:
        StoreUnavailableError: Postgres cannot be reached.
        ConfigurationError: The schema's name cannot be used.
    """
    sql = catalog(schema)
    options = ConnectOptions(dsn=dsn, schema=schema, application_name="gendurable migrate", statement_cache=False)
    arguments: dict[str, Any] = {**options.arguments(), "command_timeout": None}
    with translated():
        connection = await asyncpg.connect(**arguments)
        try:
            await connection.fetchrow(sql.text("migration_session"))
            yield MigrationSession(connection, schema)
        finally:
            # A connection that cannot be closed in order is gone anyway, and says nothing about what was done on it.
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=5)


def filled_in(name: str, schema: str, *values: str | int) -> str:
    """A named statement with literals for its parameters, for psql."""
    literals = [str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'" for value in values]
    return _PARAMETER.sub(lambda found: literals[int(found[1]) - 1], catalog(schema).text(name)) + ";\n"
