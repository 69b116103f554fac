"""The end of a worker: what it hands back, what it waits for, and what it never does again."""

import asyncio
import datetime as dt
import threading
import time

import gendurable as gd
from gendurable.settings import QueueSettings
from tests.runtime.running import (
    at_rest,
    ids_of,
    let_claims_go,
    row_of,
    running,
    settings_for,
    soon,
    stall_claims,
    until,
    until_row,
    until_stalled,
    until_true,
)


def gated(name: str = "gated", **options) -> tuple[gd.Job, asyncio.Event, list[int]]:
    """A job that ends when the event is set, and the numbers of those that started."""
    gate, started = asyncio.Event(), []

    @gd.job(name=name, **options)
    async def wait_for_gate(_ctx: gd.Context, n: int = 0) -> None:
        started.append(n)
        await gate.wait()

    return wait_for_gate, gate, started


async def test_prefetched_rows_are_handed_back_and_the_running_step_ends(dsn, connection):
    """E76: concurrency 1, prefetch 5, four jobs, stop: one done, three runnable at once, nothing executing."""
    job, gate, started = gated()
    async with running(dsn, job, concurrency=1, prefetch=5) as engine:
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(4)]))
        for instance_id in ids:
            await until_row(connection, instance_id, status="executing")
        engine.stop()
        for instance_id in ids[1:]:
            row = await until_row(connection, instance_id, status="runnable")
            assert (row["attempt"], row["crashes"], row["locked_by"], row["held"]) == (0, 0, None, False)
            assert await connection.fetchval("select $1 <= now()", row["eligible_at"])
        assert (await row_of(connection, ids[0]))["status"] == "executing"
        gate.set()

    assert started == [0]
    assert (await row_of(connection, ids[0]))["status"] == "done"
    report = engine.report
    assert (report.finished, report.handed_back, report.cut, report.unflushed, report.is_clean) == (1, 3, 0, 0, True)


async def test_queues_drain_together(dsn):
    """E77: the time limit is one for the whole process, and a step of one queue does not use up another's."""
    jobs = [gated(f"job{n}", queue=f"q{n}") for n in range(4)]
    async with running(dsn, *(job for job, _, _ in jobs), drain_timeout_s=0.3) as engine:
        for job, _, _ in jobs:
            await engine.client.insert(job.with_args())
        for _, _, started in jobs:
            await until(lambda started=started: started)
        stopped_s = time.monotonic()

    seconds = time.monotonic() - stopped_s
    assert engine.report.cut == 4
    assert 0.3 <= seconds < 1.1


async def test_nothing_is_claimed_once_the_stop_has_begun(dsn, connection):
    """E77: a row inserted during the drain belongs to the next process."""
    job, gate, started = gated()
    async with running(dsn, job) as engine:
        await engine.client.insert(job.with_args())
        await until(lambda: started)
        engine.stop()
        await until(lambda: engine.is_draining)
        late = await engine.client.insert(job.with_args(n=1))
        engine.parts.hub.poke("default")
        await asyncio.sleep(0.1)
        gate.set()

    row = await row_of(connection, late.id)
    assert (row["status"], row["claim"]) == ("runnable", 0)
    assert started == [0]


async def test_a_step_cut_off_by_the_time_limit_is_released_without_an_attempt(dsn, connection):
    """E31: shutting down is no failure of the step; its row runs elsewhere at once, not after a lease of minutes."""
    seen: list[str] = []

    class Long(gd.Machine[dict]):
        @gd.step
        async def only(self, ctx: gd.Context[dict]) -> gd.Outcome:
            if seen:
                return gd.Done({"attempt": ctx.attempt, "crashes": ctx.crashes})
            seen.append("started")
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("interrupted")
            return gd.Done()

        def handle(self, _error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append("handled")
            return gd.Stop("must not happen")

    async with running(dsn, Long, drain_timeout_s=0.05) as first:
        answer = await first.client.insert(Long.with_state())
        await until(lambda: seen)

    row = await row_of(connection, answer.id)
    assert (row["status"], row["attempt"], row["crashes"], row["last_error"]) == ("runnable", 0, 0, None)
    assert seen == ["started", "interrupted"]
    assert (first.report.cut, first.report.is_clean) == (1, False)
    async with running(dsn, Long) as second:
        assert await second.client.result(answer.id, timeout=10) == {"attempt": 0, "crashes": 0}


async def test_a_second_stop_hands_everything_back_at_once(dsn, connection):
    """An operator who asks twice does not want to wait for the time limit."""
    job, _, started = gated()
    async with running(dsn, job, drain_timeout_s=60) as engine:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: started)
        engine.stop()
        await until(lambda: engine.is_draining)
        assert (await row_of(connection, answer.id))["status"] == "executing"
        engine.stop()
        row = await until_row(connection, answer.id, status="runnable")

    assert row["attempt"] == 0
    assert engine.report.cut == 1


async def test_a_step_that_answers_its_interruption_is_committed(dsn, connection):
    """It came to its own end within the grace; its work is not thrown away."""
    started = asyncio.Event()

    @gd.job()
    async def tidy(_ctx: gd.Context) -> dict[str, str]:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"ended": "tidily"}

    async with running(dsn, tidy, drain_timeout_s=0.05) as engine:
        answer = await engine.client.insert(tidy.with_args())
        await soon(started.wait())

    row = await row_of(connection, answer.id)
    assert (row["status"], row["result"]) == ("done", '{"ended": "tidily"}')


async def test_a_step_that_swallowed_its_time_limit_can_still_be_cut_off(dsn, connection):
    """One interruption ignored must not make a step immune against the end of the process."""
    swallowed = asyncio.Event()

    @gd.job(timeout=0.05)
    async def stubborn(_ctx: gd.Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.Event().wait()

    async with running(dsn, stubborn, drain_timeout_s=0.05) as engine:
        answer = await engine.client.insert(stubborn.with_args())
        await soon(swallowed.wait())

    row = await row_of(connection, answer.id)
    assert (row["status"], row["attempt"]) == ("runnable", 0)


async def test_a_sync_step_cut_off_is_handed_back_although_its_thread_goes_on(dsn, connection):
    """A thread cannot be killed; the row must not wait for it, and its late answer must change nothing."""
    may_end, started, returned = threading.Event(), threading.Event(), threading.Event()

    @gd.job()
    def block(_ctx: gd.Context) -> dict[str, str]:
        started.set()
        may_end.wait(30)
        returned.set()
        return {"too": "late"}

    async with running(dsn, block, drain_timeout_s=0.05) as engine:
        answer = await engine.client.insert(block.with_args())
        await asyncio.to_thread(started.wait, 10)

    row = await row_of(connection, answer.id)
    assert (row["status"], row["attempt"], row["result"]) == ("runnable", 0, None)
    may_end.set()
    await asyncio.to_thread(returned.wait, 10)
    assert await row_of(connection, answer.id) == row


async def test_a_sync_step_that_still_waits_for_a_thread_never_runs_after_the_cut(dsn, connection):
    """Its row may run elsewhere by then; running it here as well would be twice at the same time."""
    may_end, started = threading.Event(), threading.Event()
    ran: list[int] = []

    @gd.job()
    def block(_ctx: gd.Context, n: int) -> None:
        ran.append(n)
        started.set()
        may_end.wait(30)

    async with running(dsn, block, sync_threads=1, drain_timeout_s=0.05) as engine:
        executor = engine.parts.executors["default"]
        answers = await engine.client.insert_many([block.with_args(n=n) for n in range(2)])
        await asyncio.to_thread(started.wait, 10)
        await until(lambda: executor.running == 2)

    assert executor.lingering_threads == 1
    may_end.set()
    await until(lambda: executor.lingering_threads == 0)
    assert len(ran) == 1
    for answer in answers:
        assert (await row_of(connection, answer.id))["status"] == "runnable"


async def test_heartbeats_go_on_during_the_drain(dsn, connection):
    """A drain longer than a lease must not lose the rows it waits for."""
    job, gate, started = gated()
    async with running(dsn, job, ttl_s=0.6, heartbeat_s=0.1, drain_timeout_s=30) as engine:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: started)
        engine.stop()
        before = (await row_of(connection, answer.id))["lease_expires_at"]
        renewed = "select lease_expires_at > $2 from gendurable.gen_durable where id = $1"
        await until_true(connection, renewed, answer.id, before + dt.timedelta(seconds=1.2))
        gate.set()

    row = await row_of(connection, answer.id)
    assert (row["status"], row["attempt"], row["crashes"]) == ("done", 0, 0)


async def test_an_idle_engine_stops_at_once_and_forgets_itself(dsn, connection):
    """A deploy of a hundred idle workers should take no time, and leave no ghosts in the table of processes."""
    async with running(dsn, gated()[0]) as engine:
        await at_rest(engine)
        assert await connection.fetchval("select count(*) from gendurable.nodes") == 1
        stopped_s = time.monotonic()

    assert time.monotonic() - stopped_s < 2
    assert await connection.fetchval("select count(*) from gendurable.nodes") == 0


async def test_a_row_claimed_while_the_stop_arrives_is_handed_back(dsn, connection):
    """The claim was under way; nobody would run its rows before the lease ends."""
    job, _, started = gated()
    async with running(dsn, job) as engine:
        picker = await at_rest(engine)
        await stall_claims(connection)
        answer = await engine.client.insert(job.with_args())
        await until_stalled(connection)
        engine.stop()
        await until(lambda: engine.is_draining)
        await let_claims_go(connection)

    row = await row_of(connection, answer.id)
    assert (row["status"], row["attempt"], row["claim"] >= 1) == ("runnable", 0, True)
    assert started == []
    assert picker.claims_total >= 1


async def test_settings_of_one_queue_are_its_own(dsn):
    """E02, E77: each queue has slots of its own."""
    left, _, left_started = gated("left", queue="left")
    right, _, right_started = gated("right", queue="right")
    queues = {"left": QueueSettings(concurrency=1, prefetch=0), "right": QueueSettings(concurrency=3, prefetch=0)}
    assert settings_for(dsn, queues=queues).queues == queues
    async with running(dsn, left, right, queues=queues, drain_timeout_s=0.0) as engine:
        for job in (left, right):
            await engine.client.insert_many([job.with_args(n=n) for n in range(5)])
        await until(lambda: len(right_started) == 3 and len(left_started) == 1)
        await at_work(engine)
        assert (left_started, sorted(right_started)) == ([0], [0, 1, 2])


async def at_work(engine) -> None:
    """Give both queues the chance to claim too much."""
    for queue in engine.parts.pickers:
        engine.parts.hub.poke(queue)
    await asyncio.sleep(0.1)


async def test_a_queue_that_is_slow_to_hand_back_delays_no_other(dsn, connection):
    """E77: one time limit for the process means that the queues are handed back side by side."""
    jobs = [gated(f"job_{name}", queue=name) for name in ("a", "b", "c")]
    await connection.execute(
        """
        create function stall() returns trigger language plpgsql as $$
        begin
            if new.status = 'runnable' and old.status = 'executing' then perform pg_advisory_xact_lock(7); end if;
            return new;
        end $$;
        create trigger stall before update on gendurable.gen_durable for each row when (new.queue = 'a')
        execute function stall();
        select pg_advisory_lock(7);
        """
    )
    async with running(dsn, *(job for job, _, _ in jobs), concurrency=1, prefetch=5) as engine:
        for job, _, _ in jobs:
            await engine.client.insert_many([job.with_args(n=n) for n in range(3)])
        await until_true(connection, "select count(*) = 9 from gendurable.gen_durable where status = 'executing'")
        engine.stop()
        await until_true(connection, "select count(*) = 4 from gendurable.gen_durable where status = 'runnable'")
        queues = await connection.fetch("select distinct queue from gendurable.gen_durable where status = 'runnable'")
        assert {row["queue"] for row in queues} == {"b", "c"}
        await connection.execute("select pg_advisory_unlock(7)")
        for _, gate, _ in jobs:
            gate.set()

    assert (engine.report.handed_back, engine.report.owed, engine.report.is_clean) == (6, 0, True)
