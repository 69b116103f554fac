"""Connections to Postgres: one bounded pool, dedicated connections beside it, and the translation of driver errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from gendurable.errors import (
    ConfigurationError,
    SerializationConflictError,
    StoreContendedError,
    StoreDataError,
    StoreError,
    StoreRejectedError,
    StoreUnavailableError,
    StoreUnreachableError,
)
from gendurable.logs import mask_dsn
from gendurable.store.sql import SqlCatalog, catalog

Row: TypeAlias = Any
"""A row as the driver returns it: fields by name or by place."""

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    Connection = asyncpg.Connection
"""A connection, whether made apart or lent by a pool."""

# The internal error is what the driver raises when a connection ended between two messages of one statement, as idle
# ones do when a server shuts down: in one try out of four, so it must not count as a bug of ours.
_DRIVER_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# Constraints whose violation is a race that somebody else won, each fit to be a metric's label.
_RACES = frozenset({"gen_durable_concurrency_active", "gen_durable_correlation", "gen_durable_buckets_in_range"})


class EngineConnection(asyncpg.Connection):
    """A connection of ours: it never relies on session state, so there is nothing to reset between two users of it."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        """Save the round trip that the driver would spend on a reset at every release to the pool."""
        return ""


def translate(error: BaseException) -> StoreError | None:
    """Turn a driver's error into ours; None when it is not about the database."""
    if isinstance(error, asyncpg.PostgresError):
        return _translate_postgres(error)
    if isinstance(error, _DRIVER_ERRORS):
        message = f"the database could not be reached: {type(error).__name__}: {error}".rstrip(": ")
        if isinstance(error, asyncpg.DataError):
            return StoreDataError(str(error))
        return StoreUnavailableError(message)
    if isinstance(error, (UnicodeEncodeError, OverflowError)):
        return StoreDataError(f"a value cannot be sent to the database: {error}")
    return None


def _translate_postgres(error: asyncpg.PostgresError) -> StoreError:
    """Decide by SQLSTATE, because the driver has a class for each of some 250 of them."""
    state: str = error.sqlstate or ""
    constraint: str | None = getattr(error, "constraint_name", None)
    text = f"{error} (SQLSTATE {state})"
    if state == "23505" and constraint in _RACES:
        return StoreContendedError(text, constraint=constraint)
    if state == "23514" and constraint in _RACES:
        return StoreContendedError(text, constraint=constraint)
    if state == "40001":
        return SerializationConflictError(text, constraint="serialization")
    if state in {"40P01", "55P03"}:
        return StoreContendedError(text, constraint={"40P01": "deadlock", "55P03": "lock_timeout"}[state])
    if state[:2] in {"22", "23"}:
        return StoreDataError(text)
    # 08 connection, 53 resources (too many clients), 57 operator intervention (shutdown, cancelled), 25006 read-only
    # during a failover, 58 system errors: all of them pass.
    if state[:2] in {"08", "53", "57", "58"} or state == "25006":
        return StoreUnavailableError(text)
    return StoreRejectedError(text)


PLANNED_PAGES_MIN = 16


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Let only our own errors out of a block that talks to Postgres."""
    try:
        yield
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectOptions:
    """How to reach Postgres, and how long anything about it may take.

    Attributes:
        dsn: A libpq connection URL; empty to use the ``PG*`` environment.
        schema: The Postgres schema with all objects of gendurable.
        pool_min: Connections kept open.
        pool_max: Connections at most.
        connect_timeout_s: Longest wait for one connection to be made.
        command_timeout_s: Longest wait for one statement's answer.
        statement_cache: False behind a transaction pooler: every statement is then parsed anew.
        application_name: What ``pg_stat_activity`` shows.
    """

    dsn: str
    schema: str = "gendurable"
    pool_min: int = 1
    pool_max: int = 10
    connect_timeout_s: float = 10.0
    command_timeout_s: float = 30.0
    statement_cache: bool = True
    application_name: str = "gendurable"

    def arguments(self) -> dict[str, Any]:
        """Arguments for the driver."""
        settings = {"application_name": self.application_name[:63]}
        if self.statement_cache:
            # Our statements mean read committed, most of them are transactions of their own, and the driver cannot say
            # READ WRITE: so the session says both, whatever the server's habits are [L7]. A pooler in transaction mode
            # refuses settings it does not know, and what it passes on belongs to somebody else's session.
            # Compiling a plan takes longer than any statement of ours runs, and the driver switches it off and on again
            # around its own look-ups of array types.
            settings |= {
                "default_transaction_isolation": "read committed",
                "default_transaction_read_only": "off",
                "jit": "off",
            }
        return {
            "dsn": self.dsn or None,
            "timeout": self.connect_timeout_s,
            "command_timeout": self.command_timeout_s,
            "statement_cache_size": 100 if self.statement_cache else 0,
            "connection_class": EngineConnection,
            "server_settings": settings,
        }


class Database:
    """A pool of connections and the statements of one schema."""

    def __init__(self, options: ConnectOptions) -> None:
        """Nothing is connected until :meth:`open`."""
        self.options = options
        self.sql: SqlCatalog = catalog(options.schema)
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self.statements_total = 0
        # A generic plan made while the table was small may scan it, and Postgres keeps it until the next analyze:
        # up to a minute in which every claim and flush reads a table that has grown by a million rows. So each claim
        # says how large the table is, and plans older than a fourfold growth are thrown away, connection by connection.
        self._planned_pages = PLANNED_PAGES_MIN
        self._plan_epoch = 0
        self._epoch_of: dict[int, int] = {}

    @property
    def schema(self) -> str:
        """The Postgres schema."""
        return self.options.schema

    async def open(self) -> None:
        """Connect the pool.

        Raises:
            StoreUnavailableError: Postgres cannot be reached; nothing is left open.
        """
        try:
            self._pool = await asyncpg.create_pool(
                min_size=self.options.pool_min, max_size=self.options.pool_max, **self.options.arguments()
            )
        except _DRIVER_ERRORS as error:
            raise StoreUnreachableError(f"no connection to the database: {type(error).__name__}: {error}") from error
        except ValueError as error:
            raise ConfigurationError(f"the database URL cannot be used: {mask_dsn(str(error))}") from error

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Close the pool; connections still in use after the grace are cut."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            await asyncio.wait_for(pool.close(), grace_s)
        except _DRIVER_ERRORS:
            pool.terminate()

    @property
    def pool(self) -> asyncpg.Pool[asyncpg.Record]:
        """The open pool; using it before :meth:`open` is a mistake of the caller."""
        if self._pool is None:
            raise StoreUnavailableError("the database is not open; use the client or the engine as a context manager")
        return self._pool

    def pool_usage(self) -> tuple[int, int]:
        """Connections open, and how many of them are idle."""
        return (self._pool.get_size(), self._pool.get_idle_size()) if self._pool is not None else (0, 0)

    def note_table_pages(self, pages: int) -> None:
        """Remember how large the instance table is; after a fourfold growth every connection makes its plans anew."""
        if pages > self._planned_pages * 4:
            self._planned_pages = pages
            self._plan_epoch += 1

    async def refresh_plans(self, connection: Connection) -> None:
        """Throw away the plans of a connection that were made for a much smaller table."""
        if self._plan_epoch == 0:
            return
        pid = connection.get_server_pid()
        if self._epoch_of.get(pid) != self._plan_epoch:
            await connection.execute(self.sql.text("discard_plans"))
            if len(self._epoch_of) > 4 * self.options.pool_max:
                self._epoch_of.clear()
            self._epoch_of[pid] = self._plan_epoch

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection from the pool for the block; driver errors leave as ours.

        Raises:
            StoreUnreachableError: No connection could be had in time; the block was not entered.
        """
        pool = self.pool
        try:
            # The pool's own timeout would start a task for each statement.
            async with asyncio.timeout(self.options.connect_timeout_s):
                connection = await pool.acquire()
        except _DRIVER_ERRORS as error:
            raise StoreUnreachableError(f"no connection to the database: {type(error).__name__}: {error}") from error
        try:
            with translated():
                await self.refresh_plans(connection)
                yield connection
        finally:
            await pool.release(connection)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection in a transaction that says its isolation itself, whatever the server's default is [L7]."""
        async with self.connection() as connection, connection.transaction(isolation="read_committed", readonly=False):
            yield connection

    async def fetch(self, name: str, *arguments: object, connection: Connection | None = None) -> list[Row]:
        """Run one named statement and return its rows.

        Args:
            name: The statement's name in ``sql/queries``.
            *arguments: Its parameters.
            connection: Run on this connection, inside whatever transaction it is in; None takes one from the pool.

        Raises:
            StoreError: One of its subclasses says whether a retry makes sense.
        """
        self.statements_total += 1
        text = self.sql.text(name)
        if connection is not None:
            with translated():
                return await connection.fetch(text, *arguments)
        async with self.connection() as pooled:
            return await pooled.fetch(text, *arguments)

    async def fetch_row(self, name: str, *arguments: object, connection: Connection | None = None) -> Row | None:
        """Run one named statement and return its first row, or None."""
        rows = await self.fetch(name, *arguments, connection=connection)
        return rows[0] if rows else None

    async def connect_apart(self, *, on_lost: Callable[[], None] | None = None) -> Connection:
        """A connection outside the pool, for a loop that must not wait behind others.

        Args:
            on_lost: Called once when the connection ends, for whatever reason.

        Raises:
            StoreUnavailableError: Postgres cannot be reached.
        """
        try:
            connection: Connection = await asyncpg.connect(**self.options.arguments())
        except _DRIVER_ERRORS as error:
            raise StoreUnreachableError(f"no connection to the database: {type(error).__name__}: {error}") from error
        if on_lost is not None:
            connection.add_termination_listener(lambda _connection: on_lost())
        return connection
