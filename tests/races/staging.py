"""A stage for statements that meet on a row: workers without an engine, rows in any status, and gates in statements.

A gate stands between a statement's snapshot and its first row: the statement's own text, with one more CTE that waits
for an advisory lock the test holds. Everything that commits meanwhile is what the snapshot cannot show.
"""

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from gendurable.embedded import EmbeddedPostgres
from gendurable.model.claim import Claim
from gendurable.model.transition import Transition
from gendurable.store.claims import ClaimStore
from gendurable.store.database import ConnectOptions, Database
from gendurable.store.leases import LeaseStore, NodeIdentity
from gendurable.store.outcomes import OutcomeStore
from gendurable.store.sql import catalog

LEASE_MS = 60_000
SOON_S = 10.0
GATE = 4711
TABLE = "gendurable.gen_durable"
_FIRST_SCAN = re.compile(r"\bwhere (?=\(?g\.)")


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The stores of one process, without its loops."""

    boot: str
    database: Database
    claims: ClaimStore
    outcomes: OutcomeStore
    leases: LeaseStore

    async def claim(self, rows_max: int = 100, *, queue: str = "default", **options: Any) -> list[Claim]:
        """Claim and return the claims only."""
        answer = await self.claims.claim_runnable(queue=queue, rows_max=rows_max, lease_ttl_ms=LEASE_MS, **options)
        return answer.claims


@contextlib.asynccontextmanager
async def worker(dsn: str, boot: str = "me", *, pool_max: int = 4) -> AsyncIterator[Worker]:
    """A worker that is connected, but not in the table of processes."""
    database = Database(ConnectOptions(dsn=dsn, pool_max=pool_max))
    await database.open()
    try:
        yield Worker(
            boot=boot,
            database=database,
            claims=ClaimStore(database, boot=boot),
            outcomes=OutcomeStore(database, boot=boot),
            leases=LeaseStore(database, identity(boot)),
        )
    finally:
        await database.close()


def identity(boot: str, **other: Any) -> NodeIdentity:
    """A process that exists only in the table."""
    facts = {
        "node": "node",
        "host": "host",
        "host_boot": "machine",
        "pid_namespace": "namespace",
        "pid": 1,
        "pid_started": "1",
    }
    return NodeIdentity(**{"boot": boot, "version": "0", **facts, **other})


@contextlib.asynccontextmanager
async def connected(dsn: str, count: int) -> AsyncIterator[list[asyncpg.Connection]]:
    """So many plain sessions."""
    sessions = [await asyncpg.connect(dsn) for _ in range(count)]
    try:
        yield sessions
    finally:
        for session in sessions:
            await session.close(timeout=5)


@contextlib.contextmanager
def shared_database(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    """A database for many tests: made and dropped outside of any test's loop. Yields its address."""
    name = f"test_{uuid.uuid4().hex}"

    async def administer(statement: str) -> None:
        administrator = await asyncpg.connect(postgres.dsn("postgres"))
        await administrator.execute(statement)
        await administrator.close(timeout=5)

    asyncio.run(administer(f"create database {name} template {template} strategy file_copy"))
    try:
        yield postgres.dsn(name)
    finally:
        asyncio.run(administer(f"drop database {name} with (force)"))


async def add_row(connection: asyncpg.Connection, **columns: Any) -> int:
    """Insert one row; a string that starts with ``=`` is an SQL expression."""
    given = {"fsm": "machine", "step": "run", **columns}
    texts, values = [], []
    for value in given.values():
        if isinstance(value, str) and value.startswith("="):
            texts.append(value[1:])
        else:
            values.append(json.dumps(value) if isinstance(value, dict) else value)
            texts.append(f"${len(values)}")
    return await connection.fetchval(
        f"insert into {TABLE} ({', '.join(given)}) values ({', '.join(texts)}) returning id", *values
    )


async def add_executing(connection: asyncpg.Connection, *, boot: str = "me", claim: int = 1, **columns: Any) -> int:
    """A row that a worker owns."""
    return await add_row(
        connection,
        status="='executing'",
        locked_by=boot,
        claim=claim,
        **{"lease_expires_at": "=now() + interval '1 minute'", **columns},
    )


async def add_many(connection: asyncpg.Connection, count: int, **expressions: str) -> list[int]:
    """Insert rows whose columns are SQL expressions over ``n``, from 1."""
    given = {"fsm": "'machine'", "step": "'run'", **expressions}
    rows = await connection.fetch(
        f"insert into {TABLE} ({', '.join(given)})"
        f" select {', '.join(given.values())} from generate_series(1, {count}) as n returning id"
    )
    return sorted(row[0] for row in rows)


async def stored(connection: asyncpg.Connection, row_id: int) -> dict[str, Any]:
    """A row as the table has it, with its status as text."""
    row = await connection.fetchrow(
        f"select g.*, g.status::text as status_text from {TABLE} as g where id = $1", row_id
    )
    assert row is not None
    return {**dict(row), "status": row["status_text"]}


async def statuses(connection: asyncpg.Connection, ids: Sequence[int]) -> list[str]:
    """The statuses of rows, in the order of the ids."""
    rows = await connection.fetch(f"select id, status::text from {TABLE} where id = any($1::bigint[])", list(ids))
    found = dict(map(tuple, rows))
    return [found[row_id] for row_id in ids]


def done(row_id: int, claim: int = 1, **fields: Any) -> Transition:
    """A plain end."""
    return Transition(**{"id": row_id, "claim": claim, "outcome": "done", "status": "done", **fields})


def goes_on(row_id: int, claim: int = 1, **fields: Any) -> Transition:
    """A step to another step."""
    given = {"id": row_id, "claim": claim, "outcome": "next", "status": "runnable", "step": "second", **fields}
    return Transition(**given)


def text_of(name: str) -> str:
    """The statement as workers run it."""
    return catalog().text(name)


def gated(text: str, *, gate: int = GATE) -> str:
    """The statement with a gate behind its snapshot; it changes nothing about which rows it reads, locks and writes."""
    wait = f"gate as materialized (select true as is_open from pg_advisory_xact_lock_shared({gate}))"
    head = "with recursive " if text.startswith("with recursive ") else "with "
    assert text.startswith(head), "only statements with a CTE can be given a gate"
    waiting, replaced = _FIRST_SCAN.subn("where (select is_open from gate) and ", text.removeprefix(head), count=1)
    assert replaced == 1
    return f"{head}{wait}, {waiting}"


@contextlib.asynccontextmanager
async def closed_gate(keeper: asyncpg.Connection, *, gate: int = GATE) -> AsyncIterator[None]:
    """Keep a gate closed for the block."""
    await keeper.execute(f"select pg_advisory_lock({gate})")
    try:
        yield
    finally:
        await keeper.execute(f"select pg_advisory_unlock({gate})")


async def until_waiting(watcher: asyncpg.Connection, waiting: asyncpg.Connection, *, kind: str = "advisory") -> None:
    """Return when a session waits for a lock of this kind; the catalog is the only place that tells."""
    pid = waiting.get_server_pid()
    deadline_s = time.monotonic() + SOON_S
    while not await watcher.fetchval(
        "select exists (select from pg_locks where pid = $1 and not granted and ($2 = 'any' or locktype = $2))",
        pid,
        kind,
    ):
        assert time.monotonic() < deadline_s, "the statement did not reach the lock"
        await asyncio.sleep(0.002)


async def soon(awaitable: Awaitable[Any]) -> Any:
    """What must happen without anybody's help, but not for ever."""
    return await asyncio.wait_for(awaitable, SOON_S)


async def pause_between_rows(connection: asyncpg.Connection, *, session: str, row_id: int, gate: int = GATE) -> None:
    """Let updates by the sessions with this application name wait at the gate when they come to a row."""
    await connection.execute(
        f"""
        create or replace function pause_{session}() returns trigger language plpgsql as $$
        begin
            if current_setting('application_name') = '{session}' and new.id = {row_id} then
                perform pg_advisory_xact_lock_shared({gate});
            end if;
            return new;
        end $$;
        create or replace trigger pause_{session} before update on {TABLE}
        for each row execute function pause_{session}();
        """
    )
