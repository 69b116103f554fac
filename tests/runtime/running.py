"""An engine for a test: every mechanism the test is not about waits a minute, so that nothing else can be the cause."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import gendurable as gd
from gendurable.engine import Engine
from gendurable.runtime.picker import Picker
from gendurable.settings import (
    BackoffSettings,
    FlushSettings,
    LeaseSettings,
    ListenSettings,
    ProcessSettings,
    QueueSettings,
    ReaperSettings,
    ReconcilerSettings,
    Secret,
    Settings,
    StepSettings,
)
from gendurable.wiring import build_engine

FAR_S = 60.0
"""What every other mechanism waits; no test may need it."""
SOON_S = 10.0
"""What a test waits for something that takes milliseconds: far past any busy machine, far before ``FAR_S``."""


def settings_for(
    dsn: str,
    *,
    concurrency: int = 10,
    prefetch: int | None = 0,
    min_demand: int | None = None,
    sync_threads: int = 8,
    poll_interval_s: float = FAR_S,
    ttl_s: float = 3 * FAR_S,
    heartbeat_s: float = FAR_S,
    has_reaper: bool = True,
    listens: bool = True,
    drain_timeout_s: float = SOON_S,
    steps: StepSettings | None = None,
    flush: FlushSettings | None = None,
    backoff_base_s: float = 0.001,
    **others: Any,
) -> Settings:
    """Settings of a test; ``others`` are sections and top-level settings."""
    return Settings(
        dsn=Secret(dsn),
        queue=QueueSettings(
            concurrency=concurrency,
            prefetch=prefetch,
            min_demand=min_demand,
            sync_threads=sync_threads,
            poll_interval_s=poll_interval_s,
        ),
        lease=LeaseSettings(ttl_s=ttl_s, heartbeat_s=heartbeat_s),
        reaper=ReaperSettings(enabled=has_reaper),
        reconciler=ReconcilerSettings(interval_s=FAR_S),
        listen=ListenSettings(enabled=listens),
        process=ProcessSettings(drain_timeout_s=drain_timeout_s),
        steps=steps or StepSettings(),
        flush=flush or FlushSettings(),
        backoff=BackoffSettings(base_s=backoff_base_s),
        **others,
    )


@contextlib.asynccontextmanager
async def running(dsn: str, *items: Any, **settings: Any) -> AsyncIterator[Engine]:
    """An engine with these machines, ready and, where it listens at all, listening."""
    engine = build_engine(settings_for(dsn, **settings), gd.Registry(items), seed=1)
    async with engine.running():
        listener = engine.parts.listener
        if listener is not None:
            await until(lambda: listener.is_up)
        yield engine


async def at_rest(engine: Engine, queue: str = "default") -> Picker:
    """Wait until a queue's picker has looked, found nothing and sleeps until it is woken; return it."""
    picker = engine.parts.pickers[queue]
    await until(lambda: picker.claims_total > 0 and picker.is_dry and time.monotonic() > picker._quiet_until_s)
    return picker


async def until(claim: Callable[[], object], *, within_s: float = SOON_S) -> None:
    """Return when a claim about this process holds; fail when it does not within the time."""
    deadline_s = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline_s, "it did not become true in time"
        await asyncio.sleep(0.002)


async def until_row(connection: Any, instance_id: int, *, within_s: float = SOON_S, **wanted: object) -> dict[str, Any]:
    """Return the row when its columns have these values; fail with the row when they do not within the time."""
    deadline_s = time.monotonic() + within_s
    while True:
        row = await row_of(connection, instance_id)
        if all(row[name] == value for name, value in wanted.items()):
            return row
        assert time.monotonic() < deadline_s, f"wanted {wanted}, have {row}"
        await asyncio.sleep(0.005)


async def until_true(connection: Any, query: str, *arguments: object, within_s: float = SOON_S) -> None:
    """Return when a query answers something true; fail when it does not within the time."""
    deadline_s = time.monotonic() + within_s
    while not await connection.fetchval(query, *arguments):
        assert time.monotonic() < deadline_s, f"not true in time: {query}"
        await asyncio.sleep(0.005)


async def stall_claims(connection: Any) -> None:
    """Let every claim wait from now on, in the middle of its statement, until ``let_claims_go``."""
    await connection.execute(
        """
        create function stall() returns trigger language plpgsql as $$
        begin
            if new.status = 'executing' and old.status = 'runnable' then perform pg_advisory_xact_lock(7); end if;
            return new;
        end $$;
        create trigger stall before update on gendurable.gen_durable for each row execute function stall();
        """
    )
    await connection.execute("select pg_advisory_lock(7)")


async def until_stalled(connection: Any) -> None:
    """Return when a claim waits."""
    await until_true(
        connection,
        "select count(*) from pg_locks as l join pg_database as d on d.oid = l.database"
        " where d.datname = current_database() and l.locktype = 'advisory' and not l.granted",
    )


async def let_claims_go(connection: Any) -> None:
    """Let the claims go on."""
    await connection.execute("select pg_advisory_unlock(7)")


async def row_of(connection: Any, instance_id: int) -> dict[str, Any]:
    """A row as the table has it, with its status as text."""
    row = await connection.fetchrow(
        "select g.*, g.status::text as status_text from gendurable.gen_durable as g where g.id = $1", instance_id
    )
    assert row is not None
    return {**dict(row), "status": row["status_text"]}


async def count_rows(connection: Any, where: str = "true") -> int:
    """How many rows meet a condition."""
    return await connection.fetchval(f"select count(*) from gendurable.gen_durable where {where}")


async def soon(awaitable: Any, *, within_s: float = SOON_S) -> Any:
    """Wait for something that must happen, but not for ever."""
    return await asyncio.wait_for(awaitable, within_s)


def ids_of(answers: Iterable[gd.Inserted | gd.Duplicate]) -> list[int]:
    """The ids of insert answers, in order."""
    return [answer.id for answer in answers]
