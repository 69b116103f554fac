"""Cancelling and deadlines on a running engine."""

import asyncio
import threading

import pytest

import gendurable as gd
from gendurable.errors import StepTimeoutError
from tests.runtime.running import row_of, running, settings_for, soon, until, until_row, until_true


def hanging() -> tuple[gd.Job, list[str]]:
    """A job that waits for ever, and what it saw."""
    seen: list[str] = []

    @gd.job(name="hang")
    async def hang(_ctx: gd.Context) -> None:
        seen.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("interrupted")
            raise

    return hang, seen


@pytest.mark.parametrize("way", ["engine", "other process", "asyncpg transaction", "client transaction"])
async def test_a_cancel_interrupts_the_step_through_a_notification(dsn, connection, way):
    """With heartbeats a minute away only the notification can be the cause; within a transaction after its commit."""
    job, seen = hanging()
    async with running(dsn, job) as engine, gd.Client(dsn) as other:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: seen)
        if way == "engine":
            asked = await engine.client.cancel(answer.id, reason="enough")
        elif way == "other process":
            asked = await other.cancel(answer.id, reason="enough")
        elif way == "client transaction":
            async with other.transaction() as own:
                asked = await other.cancel(answer.id, reason="enough", connection=own)
                await asyncio.sleep(0.05)
                assert seen == ["started"]
        else:
            async with connection.transaction():
                asked = await other.cancel(answer.id, reason="enough", connection=connection)
                await asyncio.sleep(0.05)
                assert seen == ["started"]
        row = await until_row(connection, answer.id, status="cancelled")

    assert asked == gd.CancelRequested(answer.id)
    assert seen == ["started", "interrupted"]
    assert (row["cancel_reason"], row["attempt"], row["locked_by"]) == ("enough", 0, None)


async def test_a_cancel_rolled_back_interrupts_nothing(dsn, connection):
    """The caller changed their mind before anybody could know."""
    job, seen = hanging()
    async with running(dsn, job) as engine:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: seen)
        transaction = connection.transaction()
        await transaction.start()
        await engine.client.cancel(answer.id, connection=connection)
        await transaction.rollback()
        other = await engine.client.insert(job.with_args())
        await until(lambda: len(seen) == 2)
        await engine.client.cancel(other.id)
        await until_row(connection, other.id, status="cancelled")
        assert (await row_of(connection, answer.id))["status"] == "executing"
        assert seen == ["started", "started", "interrupted"]
        await engine.client.cancel(answer.id)
        await until_row(connection, answer.id, status="cancelled")


async def test_a_cancel_is_found_by_the_heartbeat_when_notifications_are_off(dsn, connection):
    """The floor under the notification, as the poll is under wake-ups."""
    job, seen = hanging()
    client = gd.Client(dsn, notify=False)
    async with running(dsn, job, listens=False, ttl_s=1, heartbeat_s=0.1) as engine, client as other:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: seen)
        await other.cancel(answer.id)
        await until_row(connection, answer.id, status="cancelled")

    assert seen == ["started", "interrupted"]


async def test_the_outcome_of_a_cancelled_step_is_refused(dsn, connection):
    """The step finished before it could be interrupted; the cancellation was promised to the caller and wins."""
    may_end, started = asyncio.Event(), asyncio.Event()

    class Two(gd.Machine[dict]):
        @gd.step
        async def first(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            started.set()
            await may_end.wait()
            return gd.Next(self.second)

        @gd.step
        async def second(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done()

    client = gd.Client(dsn, notify=False)
    async with running(dsn, Two, listens=False) as engine, client as other:
        answer = await engine.client.insert(Two.with_state())
        await soon(started.wait())
        await other.cancel(answer.id, reason="too late for more")
        may_end.set()
        row = await until_row(connection, answer.id, status="cancelled")

    assert (row["step"], row["cancel_reason"]) == ("second", "too late for more")


async def test_a_done_of_a_cancelled_step_is_refused_as_well(dsn, connection):
    """The lean statement for finished jobs must know cancellations too, and keep no result of what is cancelled."""
    may_end, started = asyncio.Event(), asyncio.Event()

    @gd.job()
    async def give(_ctx: gd.Context) -> dict[str, int]:
        started.set()
        await may_end.wait()
        return {"n": 1}

    client = gd.Client(dsn, notify=False)
    async with running(dsn, give, listens=False) as engine, client as other:
        answer = await engine.client.insert(give.with_args())
        await soon(started.wait())
        await other.cancel(answer.id)
        may_end.set()
        row = await until_row(connection, answer.id, status="cancelled")

    assert row["last_error"] == row["cancel_reason"]
    assert row["result"] is None


async def test_a_sync_step_that_is_cancelled_ends_its_row_at_once(dsn, connection):
    """The thread goes on, but nobody waits for what it brings."""
    may_end, started = threading.Event(), threading.Event()

    @gd.job()
    def block(_ctx: gd.Context) -> None:
        started.set()
        may_end.wait(30)

    async with running(dsn, block) as engine:
        answer = await engine.client.insert(block.with_args())
        await asyncio.to_thread(started.wait, 10)
        await engine.client.cancel(answer.id)
        await until_row(connection, answer.id, status="cancelled")
        assert engine.parts.executors["default"].running == 1
        may_end.set()
        await until(lambda: engine.parts.executors["default"].running == 0)


async def test_a_cancelled_row_whose_worker_dies_ends_as_cancelled(dsn, connection):
    """The reaper must not run again what somebody called off."""
    job, _ = hanging()
    async with gd.Client(dsn) as client:
        answer = await client.insert(job.with_args())
        await connection.execute(
            "update gendurable.gen_durable set status = 'executing', locked_by = 'gone/x', claim = 1,"
            " lease_expires_at = now() + interval '100 ms' where id = $1",
            answer.id,
        )
        assert await client.cancel(answer.id, reason="enough") == gd.CancelRequested(answer.id)
        async with running(dsn, job, ttl_s=0.3, heartbeat_s=0.1):
            row = await until_row(connection, answer.id, status="cancelled")

    assert (row["cancel_reason"], row["crashes"]) == ("enough", 1)


async def test_a_waiting_row_ends_on_its_deadline(dsn, connection):
    """A customer who was promised an answer by noon gets one, also when nothing could run."""
    job, seen = hanging()
    async with running(dsn, job) as engine:
        answer = await engine.client.insert(job.with_args(), delay=3600, deadline=0.3)
        row = await until_row(connection, answer.id, status="failed")

    late_s = (row["finished_at"] - row["deadline_at"]).total_seconds()
    assert (row["last_error"], row["attempt"], seen) == ("the deadline has passed", 0, [])
    assert 0 <= late_s < 1.5


async def test_a_running_step_is_interrupted_by_its_deadline(dsn, connection):
    """The step's own limit is an hour, the instance's deadline comes first; the handler hears of it."""
    seen: list[object] = []

    class Slow(gd.Machine[dict]):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append("started")
            await asyncio.Event().wait()
            return gd.Done()

        def handle(self, error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append(type(error))
            return gd.Retry(delay=0)

    async with running(dsn, Slow) as engine:
        answer = await engine.client.insert(Slow.with_state(), deadline=0.3)
        row = await until_row(connection, answer.id, status="failed")

    assert seen == ["started", StepTimeoutError]
    assert row["last_error"] == "the deadline has passed"
    assert 0 <= (row["finished_at"] - row["deadline_at"]).total_seconds() < 1.5


async def test_an_outcome_after_the_deadline_does_not_go_on(dsn, connection):
    """A step that ignored its interruption may not start another one beyond the promise."""
    started = asyncio.Event()

    class Stubborn(gd.Machine[dict]):
        @gd.step
        async def first(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return gd.Next(self.second)

        @gd.step
        async def second(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            pytest.fail("it ran after its deadline")

    async with running(dsn, Stubborn) as engine:
        answer = await engine.client.insert(Stubborn.with_state(), deadline=0.2)
        row = await until_row(connection, answer.id, status="failed")

    assert started.is_set()
    assert row["last_error"] == "the deadline has passed"


async def test_a_deadline_that_passes_while_a_row_waits_for_a_slot_keeps_it_from_starting(dsn, connection):
    """A prefetched row counts its time from the claim; started fresh it would overrun by as long as it had waited."""
    may_end, started = asyncio.Event(), []

    @gd.job()
    async def hold(_ctx: gd.Context, n: int) -> None:
        started.append(n)
        await may_end.wait()

    async with running(dsn, hold, concurrency=1, prefetch=1) as engine:
        first, second = await engine.client.insert_many(
            [hold.with_args(n=0), hold.with_args(n=1).with_options(deadline=0.2)]
        )
        await until_row(connection, second.id, status="executing")
        past = "select deadline_at < now() - interval '20 ms' from gendurable.gen_durable where id = $1"
        await until_true(connection, past, second.id)
        may_end.set()
        row = await until_row(connection, second.id, status="failed")
        await engine.client.result(first.id, timeout=10)

    assert started == [0]
    assert row["last_error"] == "the deadline has passed"


async def test_a_row_that_expired_before_it_started_is_cancelled(dsn, connection):
    """A reminder for an hour ago is not sent; one that has started in time goes on."""
    may_end, started = asyncio.Event(), []

    @gd.job()
    async def hold(_ctx: gd.Context, n: int) -> None:
        started.append(n)
        await may_end.wait()

    async with running(dsn, hold) as engine:
        in_time = await engine.client.insert(hold.with_args(n=0), expires_at=0.3)
        late = await engine.client.insert(hold.with_args(n=1), expires_at=0.3, delay=3600)
        await until(lambda: started)
        row = await until_row(connection, late.id, status="cancelled")
        may_end.set()
        assert (await engine.client.wait(in_time.id, timeout=10)).status == "done"

    assert row["cancel_reason"] == "expired before it started"
    assert started == [0]


async def test_a_retried_instance_runs_again_after_its_failure(dsn):
    """From the failed step, with fresh attempts: the whole way, on an engine."""
    seen: list[int] = []

    @gd.job(max_attempts=2)
    async def flaky(ctx: gd.Context) -> dict[str, str]:
        seen.append(ctx.attempt)
        if len(seen) <= 2:
            raise ZeroDivisionError
        return {"now": "well"}

    async with running(dsn, flaky) as engine:
        answer = await engine.client.insert(flaky.with_args())
        assert (await engine.client.wait(answer.id, timeout=10)).status == "failed"
        assert await engine.client.retry(answer.id) == gd.Retried(answer.id)
        assert await engine.client.result(answer.id, timeout=10) == {"now": "well"}

    assert seen == [0, 1, 0]
    assert settings_for(dsn).steps.max_attempts == 20
