"""What a worker owes the table: rows it could not hand back at once, and held rows whose key it could not look at."""

import asyncio
import contextlib
from random import Random

import pytest

import gendurable as gd
from gendurable.metrics import Metrics
from gendurable.runtime.owed import Owed
from tests.races.staging import TABLE, add_executing, add_row, connected, stored, worker
from tests.runtime.running import count_rows, ids_of, running, soon, until, until_row, until_true

LOCK = f"select from {TABLE} where id = $1 for no key update"


@gd.job()
async def quick(_ctx: gd.Context) -> None:
    """Do nothing."""


def gated() -> tuple[gd.Job, asyncio.Event, asyncio.Event]:
    """A job that says when it has started, and ends when told to."""
    started, gate = asyncio.Event(), asyncio.Event()

    @gd.job(name="gated")
    async def wait_for_gate(_ctx: gd.Context) -> None:
        started.set()
        await gate.wait()

    return wait_for_gate, started, gate


@contextlib.asynccontextmanager
async def owing(one, **options):
    """What one worker owes, at work; yields it with the list of (queue, seconds) it tells."""
    told = []
    owed = Owed(
        claims=one.claims,
        leases=one.leases,
        retry_max_s=options.get("retry_max_s", 0.1),
        metrics=Metrics(),
        rng=Random(1),
        on_runnable=lambda queue, due_in_s: told.append((queue, due_in_s)),
    )
    task = asyncio.create_task(owed.run())
    try:
        yield owed, told
    finally:
        owed.drain()
        await soon(task)


async def test_a_row_that_a_caller_holds_is_handed_back_soon_after(dsn, connection):
    """L1: handing back never waits for a caller, and the row must not wait for a lease of minutes instead."""
    job, started, gate = gated()
    async with running(dsn, job, concurrency=1, prefetch=5) as engine, connected(dsn, 1) as (caller,):
        ids = ids_of(await engine.client.insert_many([job.with_args() for _ in range(3)]))
        await soon(started.wait())
        for instance_id in ids:
            await until_row(connection, instance_id, status="executing")
        async with caller.transaction():
            await caller.execute(LOCK, ids[1])
            engine.stop()
            await until_row(connection, ids[2], status="runnable")
            assert (await stored(connection, ids[1]))["status"] == "executing"
        row = await until_row(connection, ids[1], status="runnable")
        assert (row["attempt"], row["crashes"], row["locked_by"]) == (0, 0, None)
        gate.set()

    assert (engine.report.owed, engine.report.is_clean) == (0, True)


async def test_a_drain_does_not_wait_for_a_callers_transaction_beyond_its_time(dsn, connection):
    """The caller may be idle for an hour; what is left behind is said, and the lease decides."""
    job, started, gate = gated()
    async with (
        connected(dsn, 1) as (caller,),
        caller.transaction(),
        running(dsn, job, concurrency=1, prefetch=5, drain_timeout_s=0.5) as engine,
    ):
        ids = ids_of(await engine.client.insert_many([job.with_args() for _ in range(2)]))
        await soon(started.wait())
        await until_row(connection, ids[1], status="executing")
        await caller.execute(LOCK, ids[1])
        engine.stop()
        await until(lambda: engine.report.handed_back)
        gate.set()
        # The end of the engine comes first, then that of the transaction.

    assert (engine.report.owed, engine.report.is_clean) == (1, False)
    assert (await stored(connection, ids[1]))["status"] == "executing"


async def test_a_row_whose_release_was_cut_off_is_released_again(dsn, connection):
    """A connection that breaks leaves open whether the row was handed back; asking again is safe."""
    job, started, gate = gated()
    await connection.execute(
        """
        create function stall() returns trigger language plpgsql as $$
        begin
            if new.status = 'runnable' and old.status = 'executing' then perform pg_advisory_xact_lock(7); end if;
            return new;
        end $$;
        create trigger stall before update on gendurable.gen_durable for each row execute function stall();
        select pg_advisory_lock(7);
        """
    )
    stalled = "select max(pid) from pg_locks where locktype = 'advisory' and not granted"
    async with running(dsn, job, concurrency=1, prefetch=5) as engine:
        ids = ids_of(await engine.client.insert_many([job.with_args() for _ in range(2)]))
        await soon(started.wait())
        await until_row(connection, ids[1], status="executing")
        engine.stop()
        await until_true(connection, stalled)
        await connection.execute(f"select pg_terminate_backend(({stalled})), pg_advisory_unlock(7)")
        row = await until_row(connection, ids[1], status="runnable")
        gate.set()

    assert (row["attempt"], row["crashes"]) == (0, 0)


async def test_a_row_that_went_to_another_worker_is_owed_no_more(dsn, connection):
    """Its answer was lost, or it was reaped: it is somebody else's, and asking for ever helps nobody."""
    async with worker(dsn, "me") as me, worker(dsn, "other") as other, owing(me) as (owed, told):
        await add_row(connection)
        (mine,) = await me.claim()
        await me.claims.release_claims([mine], delays_ms=[None])
        (theirs,) = await other.claim()
        owed.add_rows([(mine, None)])
        await soon(owed.wait_settled())

    row = await stored(connection, mine.id)
    assert (row["status"], row["locked_by"], row["claim"]) == ("executing", "other", theirs.claim)
    assert (len(owed), told) == (0, [])


async def test_a_row_that_should_wait_still_waits_when_it_is_handed_back_later(dsn, connection):
    """The pause of a machine nobody here knows runs from the first try, not from the last."""
    async with worker(dsn) as me, owing(me) as (owed, told), connected(dsn, 1) as (caller,):
        row_id = await add_row(connection)
        (claim,) = await me.claim()
        async with caller.transaction():
            await caller.execute(LOCK, row_id)
            owed.add_rows([(claim, 60_000)])
            await asyncio.sleep(0.2)
        await soon(owed.wait_settled())
        waits_s = await connection.fetchval(f"select extract(epoch from eligible_at - now()) from {TABLE}")

    assert 58 < waits_s < 59.9
    assert [queue for queue, _ in told] == ["default"]
    assert told[0][1] == pytest.approx(float(waits_s), abs=0.5)


async def test_a_claim_taken_again_is_not_handed_back(dsn, connection):
    """A claim that was lost with the server has the number of the one that follows it; that one runs."""
    async with worker(dsn) as me, owing(me) as (owed, _), connected(dsn, 1) as (caller,):
        row_id = await add_row(connection)
        (claim,) = await me.claim()
        async with caller.transaction():
            await caller.execute(LOCK, row_id)
            owed.add_rows([(claim, None)])
            await asyncio.sleep(0.1)
            owed.forget([claim])
        await soon(owed.wait_settled())

    assert (await stored(connection, row_id))["status"] == "executing"


async def change_hands(flush, holder_id) -> None:
    """Do to the holder of a key what a flush does, up to its commit: end it, and find nobody to give the key to."""
    await flush.execute(
        f"update {TABLE} set status = 'done', finished_at = now(), locked_by = null, lease_expires_at = null"
        " where id = $1",
        holder_id,
    )


async def test_a_held_row_is_found_however_long_its_key_changes_hands(dsn, connection):
    """L14: a flush that takes half a second commits after a claim that held the row; nobody else will look at it.

        flush:   ends the holder, finds no held row ................................. commits
        claim:                                        holds our row, commits, asks ......... asks
    """  # fmt: skip
    holder_id = await add_executing(connection, boot="other", concurrency_key="k")
    async with connected(dsn, 1) as (flush,), running(dsn, quick) as engine:
        async with flush.transaction():
            await change_hands(flush, holder_id)
            answer = await engine.client.insert(quick.with_args(), concurrency_key="k")
            await until_row(connection, answer.id, held=True)
            await asyncio.sleep(0.5)
            assert (await stored(connection, answer.id))["held"]
        row = await until_row(connection, answer.id, status="done")

    assert row["held"] is False


async def test_a_drain_does_not_leave_a_row_held(dsn, connection):
    """L14: the process that held it is the only one that knows; after its end the row would wait for the reconciler."""
    holder_id = await add_executing(connection, boot="other", concurrency_key="k")
    async with connected(dsn, 1) as (flush,):
        async with running(dsn, quick) as engine:
            transaction = flush.transaction()
            await transaction.start()
            await change_hands(flush, holder_id)
            answer = await engine.client.insert(quick.with_args(), concurrency_key="k")
            await until_row(connection, answer.id, held=True)
            engine.stop()
            await until(lambda: engine.is_draining)
            await asyncio.sleep(0.2)
            await transaction.commit()

        assert await count_rows(connection, "held") == 0
        assert (await stored(connection, answer.id))["status"] == "runnable"


async def test_what_a_dead_process_held_is_found_soon_after_a_start(dsn, connection):
    """A deploy that goes wrong leaves such rows; the next process must not wait for its first interval."""
    row_id = await add_row(connection, fsm="quick", held=True, concurrency_key="k")

    async with running(dsn, quick):
        row = await until_row(connection, row_id, status="done")

    assert row["held"] is False
