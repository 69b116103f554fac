"""A database that is slow, away or back again: nothing that was done is lost, and nothing is done twice."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from pathlib import Path

import asyncpg
import pytest

import gendurable as gd
from gendurable.embedded import EmbeddedPostgres
from gendurable.errors import StoreUnreachableError
from gendurable.settings import PoolSettings, Secret, Settings
from gendurable.store.migrations import migrate_up
from gendurable.wiring import build_engine
from tests.runtime.running import (
    at_rest,
    ids_of,
    let_claims_go,
    row_of,
    running,
    soon,
    stall_claims,
    until,
    until_row,
    until_stalled,
    until_true,
)

RENEWED = "select lease_expires_at > $2::timestamptz + interval '1200 ms' from gendurable.gen_durable where id = $1"


@gd.job()
async def quick(_ctx: gd.Context, n: int = 0) -> dict[str, int]:
    return {"n": n}


def gated() -> tuple[gd.Job, asyncio.Event, list[int]]:
    """A job that ends when the event is set, and the numbers of those that started."""
    gate, started = asyncio.Event(), []

    @gd.job(name="gated")
    async def wait_for_gate(ctx: gd.Context, n: int = 0) -> dict[str, int]:
        started.append(n)
        await gate.wait()
        return {"n": n, "attempt": ctx.attempt}

    return wait_for_gate, gate, started


class Door:
    """The database of a test, which can refuse everybody."""

    def __init__(self, administrator: asyncpg.Connection, name: str) -> None:
        self._administrator = administrator
        self._name = name

    async def shut(self) -> None:
        """Refuse new connections and end those there are."""
        await self._administrator.execute(f"alter database {self._name} allow_connections false")
        await self._administrator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()",
            self._name,
        )

    async def open(self) -> None:
        """Let everybody in again."""
        await self._administrator.execute(f"alter database {self._name} allow_connections true")


@pytest.fixture
async def door(postgres, dsn):
    """The door of this test's database, open at the end whatever happens."""
    administrator = await asyncpg.connect(postgres.dsn("postgres"))
    name = dsn.partition("@/")[2].partition("?")[0]
    opened = Door(administrator, name)
    try:
        yield opened
    finally:
        await opened.open()
        await administrator.close()


async def test_a_stalled_claim_does_not_keep_leases_from_being_extended(dsn, connection):
    """E20: the heartbeat has a connection and a loop of its own, so work in hand survives a claim that hangs."""
    job, gate, started = gated()
    async with running(dsn, job, quick, ttl_s=0.6, heartbeat_s=0.1) as engine:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: started)
        await stall_claims(connection)
        behind = await engine.client.insert(quick.with_args())
        await until_stalled(connection)
        before = (await row_of(connection, answer.id))["lease_expires_at"]
        renewed = (
            "select lease_expires_at > $2::timestamptz + interval '1200 ms' from gendurable.gen_durable where id = $1"
        )
        await until_true(connection, renewed, answer.id, before)
        await let_claims_go(connection)
        gate.set()
        assert await engine.client.result(answer.id, timeout=10) == {"n": 0, "attempt": 0}
        assert await engine.client.result(behind.id, timeout=10) == {"n": 0}


async def test_a_pool_in_use_by_others_does_not_keep_leases_from_being_extended(dsn, connection):
    """E20: the same when no connection of the pool can be had at all."""
    job, gate, started = gated()
    async with running(dsn, job, ttl_s=0.6, heartbeat_s=0.1, pool=PoolSettings(min=1, max=2)) as engine:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: started)
        async with contextlib.AsyncExitStack() as hoarded:
            for _ in range(2):
                await hoarded.enter_async_context(engine.client.transaction())
            before = (await row_of(connection, answer.id))["lease_expires_at"]
            await until_true(connection, RENEWED, answer.id, before)
        gate.set()
        assert await engine.client.result(answer.id, timeout=10) == {"n": 0, "attempt": 0}


async def test_outcomes_wait_for_the_database_longer_than_a_lease(dsn, door):
    """E22: the flusher keeps them, the process lives, and they commit when the database is back."""
    job, gate, started = gated()
    async with running(dsn, job, ttl_s=0.6, heartbeat_s=0.1, has_reaper=False) as engine:
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(5)]))
        await until(lambda: len(started) == 5)
        await door.shut()
        gate.set()
        await until(lambda: engine.parts.executors["default"].unflushed == 5)
        await until(lambda: engine.parts.heartbeat.age_s > 1.2)
        await door.open()
        await until(lambda: engine.parts.executors["default"].unflushed == 0)
        results = [await engine.client.result(instance_id, timeout=10) for instance_id in ids]
        await until(lambda: engine.parts.heartbeat.age_s < 0.6)

    assert results == [{"n": n, "attempt": 0} for n in range(5)]
    assert sorted(started) == list(range(5))


async def test_an_outcome_of_a_row_another_process_took_meanwhile_is_refused(dsn, door):
    """E22: the other process's outcome counts, the old one is reported as stale and changes nothing."""
    job, gate, started = gated()

    @gd.job(name="gated")
    async def other_gated(ctx: gd.Context, n: int = 0) -> dict[str, object]:
        return {"n": n, "by": "other", "crashes": ctx.crashes}

    async with running(dsn, job, ttl_s=0.9, heartbeat_s=0.3, has_reaper=False, listens=False) as first:
        answer = await first.client.insert(job.with_args())
        await until(lambda: started)
        await door.shut()
        gate.set()
        await until(lambda: first.parts.executors["default"].unflushed == 1)
        await until(lambda: first.parts.heartbeat.age_s > 1.0)
        # From here on the first one may only commit what is still its own.
        flusher = next(iter(first.parts.flushers))
        held_back = flusher._store.commit
        may_commit = asyncio.Event()

        async def commit(batch):
            await may_commit.wait()
            return await held_back(batch)

        flusher._store.commit = commit
        first.parts.holdings._claims.clear()
        await door.open()
        async with running(dsn, other_gated, ttl_s=0.9, heartbeat_s=0.3) as second:
            result = await second.client.result(answer.id, timeout=10)
            may_commit.set()
            await until(lambda: first.metrics.outcomes_stale.total() == 1)
            assert await second.client.result(answer.id, timeout=10) == result

    assert result == {"n": 0, "by": "other", "crashes": 1}


@pytest.fixture
def directory():
    """A folder for a server of one test, where the account that runs it may go."""
    path = Path(tempfile.gettempdir()) / f"gendurable-{uuid.uuid4().hex[:12]}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def test_a_worker_lives_through_a_server_that_is_down(directory, postgres):
    """E75: a restart of the server costs time, not work: what was in flight is kept, and it all resumes by itself."""
    job, gate, started = gated()
    server = EmbeddedPostgres(directory, bin_dir=postgres._wanted_bin_dir, fast_and_unsafe=True)
    await asyncio.to_thread(server.start)
    try:
        dsn = server.dsn()
        await migrate_up(dsn)
        async with running(dsn, job, quick) as engine:
            held = await engine.client.insert(job.with_args())
            await until(lambda: started)
            await asyncio.to_thread(server.stop)
            gate.set()
            picker = engine.parts.pickers["default"]
            await until(lambda: engine.parts.flushers[0].backlog == 1 and not engine.parts.listener.is_up)
            engine.parts.hub.poke("default")
            with pytest.raises(gd.errors.StoreUnavailableError):
                await engine.client.insert(quick.with_args())
            await until(lambda: engine.metrics.loop_errors.values.get(("picker",), 0) >= 2)
            assert len(engine.parts.holdings) == 1
            await asyncio.to_thread(server.start)
            assert server.dsn() == dsn
            assert await soon(engine.client.result(held.id, timeout=30), within_s=30) == {"n": 0, "attempt": 0}
            answer = await engine.client.insert(quick.with_args(n=3))
            assert await soon(engine.client.result(answer.id, timeout=30), within_s=30) == {"n": 3}
            await until(lambda: engine.parts.listener.is_up)
            assert picker.claims_total > 0
        assert started == [0]
    finally:
        with contextlib.suppress(AssertionError):
            await asyncio.to_thread(server.stop)


async def test_a_start_without_a_database_says_so_and_leaves_nothing(tmp_path: Path):
    """What waits for a start needs to hear that there is none."""
    settings = Settings(dsn=Secret(f"postgresql://postgres@/none?host={tmp_path}"))
    before = asyncio.all_tasks()

    with pytest.raises(StoreUnreachableError):
        await build_engine(settings, gd.Registry([quick])).run()

    assert asyncio.all_tasks() == before


async def test_every_connection_cut_at_once_loses_no_row(dsn, connection):
    """A failover cuts pool, heartbeat and listener together, in the middle of whatever they do."""
    async with running(dsn, quick, concurrency=50) as engine:
        ids = ids_of(await engine.client.insert_many([quick.with_args(n=n) for n in range(2000)], notify=False))
        engine.parts.hub.poke("default")
        for _ in range(5):
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.03)
        left = "select not exists (select from gendurable.gen_durable where finished_at is null)"
        await until_true(connection, left, within_s=30)
        attempts = await connection.fetch("select distinct status::text, attempt from gendurable.gen_durable")
        await at_rest(engine)

    assert [tuple(row) for row in attempts] == [("done", 0)]
    assert len(ids) == 2000


async def test_a_caller_is_told_that_the_database_is_away(dsn, door):
    """Waiting without an end would be worse: the caller decides what to do."""
    async with gd.Client(dsn, connect_timeout=1) as client:
        await client.insert(quick.with_args())
        await door.shut()
        started_s = time.monotonic()
        for call in (client.list, lambda: client.insert(quick.with_args()), lambda: client.get(1)):
            with pytest.raises(gd.errors.StoreUnavailableError):
                await soon(call())
        assert time.monotonic() - started_s < 10
        await door.open()
        assert isinstance(await client.insert(quick.with_args()), gd.Inserted)


async def test_a_connection_that_ends_between_two_messages_is_an_outage(dsn, door):
    """The driver calls it an internal error, in some tries out of many; untranslated, it would end a whole worker."""
    for _ in range(12):
        async with gd.Client(dsn) as client:
            await client.insert(quick.with_args())
            await door.shut()
            with pytest.raises(gd.errors.StoreUnavailableError):
                await soon(client.insert(quick.with_args()))
            await door.open()
            await soon(client.insert(quick.with_args()))


async def test_a_waiting_caller_outlives_an_outage(dsn, door, connection):
    """Its question is still the same when the database is back."""
    del connection
    async with gd.Client(dsn) as client:
        answer = await client.insert(quick.with_args(n=5))
        waiting = asyncio.create_task(client.result(answer.id, timeout=50))
        await until(lambda: client._watcher.waiting == 1)
        await door.shut()
        await asyncio.sleep(0.1)
        await door.open()
        async with running(dsn, quick):
            # The look of the waiting caller happens after the end; its answer does not depend on when that was.
            try:
                assert await soon(waiting) == {"n": 5}
            except gd.errors.StoreUnavailableError:
                pytest.fail("the caller was ended by the outage")


async def test_rows_left_by_an_outage_are_in_no_hurry_to_be_reaped(dsn, connection, door):
    """Every worker missed its heartbeats alike; the reaper gives each one before it takes anybody's rows."""
    job, gate, started = gated()
    async with running(dsn, job, ttl_s=0.9, heartbeat_s=0.3) as engine:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: started)
        await connection.close()
        await door.shut()
        await until(lambda: engine.parts.heartbeat.age_s > 1.5)
        await door.open()
        await until(lambda: engine.parts.heartbeat.age_s < 0.3)
        gate.set()
        assert await engine.client.result(answer.id, timeout=10) == {"n": 0, "attempt": 0}
        read = await engine.client.get(answer.id)

    assert (read.crashes, started) == (0, [0])


async def test_until_row_is_honest(dsn, connection):
    """The helper of these tests must fail, or they could not."""
    async with gd.Client(dsn) as client:
        answer = await client.insert(quick.with_args())
    with pytest.raises(AssertionError, match="wanted"):
        await until_row(connection, answer.id, within_s=0.01, status="done")


async def test_a_heartbeat_whose_connection_is_stuck_takes_another_one_within_the_lease(dsn, connection):
    """A firewall forgets a connection and says nothing; a statement may wait for as long as a lease lasts."""
    ttl_s = 6.0
    async with running(dsn, quick, ttl_s=ttl_s, heartbeat_s=0.1) as engine:
        assert engine.parts.settings.pool.command_timeout_s > ttl_s
        backend = await connection.fetchval(
            "select pid from pg_stat_activity where datname = current_database() and query like $1 and pid <> $2",
            "%update gendurable.nodes as n%",
            connection.get_server_pid(),
        )
        os.kill(backend, signal.SIGSTOP)
        try:
            stopped_at = await connection.fetchval("select now()")
            await until_true(
                connection, "select bool_or(beat_at > $1) from gendurable.nodes", stopped_at, within_s=ttl_s
            )
        finally:
            os.kill(backend, signal.SIGCONT)
