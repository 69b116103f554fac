"""Steps on a real engine: what their answers, errors and time limits make of the row."""

import asyncio
import contextvars
import datetime as dt
import itertools
import threading
from dataclasses import dataclass

import pytest

import gendurable as gd
from gendurable.errors import InstanceFailedError, StateDecodeError, StepTimeoutError
from gendurable.logs import step_context
from gendurable.settings import StepSettings
from tests.runtime.running import FAR_S, SOON_S, running, soon, until, until_row


class CountState(gd.State):
    count: int = 0
    target: int = 3


class Count(gd.Machine[CountState]):
    @gd.step
    async def start(self, ctx: gd.Context[CountState]) -> gd.Outcome:
        return gd.Next(self.loop, state=ctx.state.replace(count=0))

    @gd.step
    async def loop(self, ctx: gd.Context[CountState]) -> gd.Outcome:
        if ctx.state.count == ctx.state.target:
            return gd.Done({"count": ctx.state.count})
        return gd.Next(self.loop, state=ctx.state.replace(count=ctx.state.count + 1))


class PlainCount(gd.Machine[dict]):
    @gd.step
    async def loop(self, ctx: gd.Context[dict]) -> gd.Outcome:
        if ctx.state["count"] == ctx.state["target"]:
            return gd.Done(ctx.state)
        return gd.Next("loop", state={**ctx.state, "count": ctx.state["count"] + 1})


@pytest.mark.parametrize("request_", [Count.with_state(count=9), PlainCount.with_state({"count": 0, "target": 3})])
async def test_a_machine_loops_to_its_target(dsn, connection, request_):
    """E24, E39: every step sees the state that the one before it made durable, typed or plain, always an object."""
    async with running(dsn, Count, PlainCount) as engine:
        answer = await engine.client.insert(request_)
        result = await engine.client.result(answer.id, timeout=10)

    row = await until_row(connection, answer.id, status="done", attempt=0)
    kind = await connection.fetchval("select jsonb_typeof(state) from gendurable.gen_durable")
    assert (result["count"], kind) == (3, "object")
    assert row["claim"] == (5 if row["fsm"] == "Count" else 4)
    assert (row["locked_by"], row["lease_expires_at"], row["last_error"]) == (None, None, None)
    assert await connection.fetchval("select state ->> 'count' from gendurable.gen_durable") == "3"


async def test_a_handler_retries_twice_and_then_gives_up(dsn):
    """E25: the attempts are counted, the state a handler returns is kept, and each error can be seen meanwhile."""
    seen: list[tuple[int, str | None]] = []

    class Stubborn(gd.Machine[CountState]):
        @gd.step
        async def only(self, ctx: gd.Context[CountState]) -> gd.Outcome:
            row = await client.get(ctx.id)
            seen.append((ctx.attempt, row.last_error))
            raise ZeroDivisionError(f"number {ctx.attempt}")

        async def handle(self, error: Exception, ctx: gd.Context[CountState]) -> gd.Outcome:
            assert isinstance(error, ZeroDivisionError)
            if ctx.attempt < 2:
                return gd.Retry(delay=0, state=ctx.state.replace(count=ctx.state.count + 1))
            return gd.Stop("gave up")

    async with running(dsn, Stubborn) as engine:
        client = engine.client
        answer = await client.insert(Stubborn.with_state())
        with pytest.raises(InstanceFailedError, match="gave up"):
            await client.result(answer.id, timeout=10)
        read = await client.get(answer.id)

    assert [attempt for attempt, _ in seen] == [0, 1, 2]
    assert seen[0][1] is None
    assert [f"number {n}" in (seen[n + 1][1] or "") for n in (0, 1)] == [True, True]
    assert (read.status, read.attempt, read.last_error, read.state["count"]) == ("failed", 2, "gave up", 2)
    assert [error.attempt for error in read.errors] == [0, 1, 2]


@dataclass
class Odd:
    what: object


@pytest.mark.parametrize(
    ("outcome", "place"),
    [
        (lambda: gd.Done({"a": [1, object()]}), "result.a[1]"),
        (lambda: gd.Done({"a": float("nan")}), "result.a"),
        (lambda: gd.Done({"a": "x\0y"}), "result.a"),
        (lambda: gd.Done(Odd({1, "\udcff"})), "result.what"),
        (lambda: gd.Next("only", state={"a": {"b": float("inf")}}), "state.a.b"),
        (lambda: gd.Next("only", state=[1]), "state"),
        (lambda: gd.Retry(state={"a": object()}), "state.a"),
        (lambda: gd.Done({"a": "x" * 1024 * 1024}), "result"),
    ],
)
async def test_a_value_that_cannot_be_stored_fails_the_instance_at_once(dsn, outcome, place):
    """E26: retrying cannot help, the lease must not have to, and the error says where to look."""

    class Bad(gd.Machine[dict]):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return outcome()

    async with running(dsn, Bad) as engine:
        answer = await engine.client.insert(Bad.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.attempt) == ("failed", 0)
    assert place in read.last_error


async def test_a_new_state_of_the_wrong_type_fails_where_it_is_made(dsn):
    """A wrong type that is stored would fail the next step instead, far from the mistake."""

    class Wrong(gd.Machine[CountState]):
        @gd.step
        async def only(self, ctx: gd.Context[CountState]) -> gd.Outcome:
            return gd.Next(self.only, state=ctx.state.replace(count="many"))

    async with running(dsn, Wrong) as engine:
        answer = await engine.client.insert(Wrong.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.step) == ("failed", "only")
    assert "$.count" in read.last_error


async def test_a_stored_state_that_no_longer_decodes_goes_to_the_handler(dsn, connection):
    """E27: the machine may know how to read its old form; the error and the id are there to do it with."""
    seen: list[object] = []

    class Renamed(gd.Machine[CountState]):
        @gd.step
        async def only(self, ctx: gd.Context[CountState]) -> gd.Outcome:
            return gd.Done({"count": ctx.state.count})

        def handle(self, error: Exception, ctx: gd.Context[CountState]) -> gd.Outcome:
            seen.extend([type(error), ctx.state])
            return gd.Next(self.only, state=CountState(count=7))

    async with running(dsn, Renamed) as engine:
        answer = await engine.client.insert(Renamed.with_state(), delay=3600)
        await connection.execute(
            """update gendurable.gen_durable set state = '{"count": "many"}', eligible_at = now() where id = $1""",
            answer.id,
        )
        engine.parts.hub.poke("default")
        assert await engine.client.result(answer.id, timeout=10) == {"count": 7}

    assert seen == [StateDecodeError, None]


async def test_a_stored_state_that_no_longer_decodes_fails_at_once_and_never_loops(dsn, connection):
    """E27: it will not fit in the twentieth attempt either; meanwhile nobody would know that somebody has to act."""
    async with running(dsn, Count, backoff_base_s=FAR_S) as engine:
        answer = await engine.client.insert(Count.with_state(), delay=3600)
        await connection.execute(
            """update gendurable.gen_durable set state = '{"count": []}', eligible_at = now() where id = $1""",
            answer.id,
        )
        engine.parts.hub.poke("default")
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.attempt, read.state) == ("failed", 0, {"count": []})
    assert "StateDecodeError" in read.last_error
    assert "$.count" in read.last_error


async def test_a_step_answered_that_does_not_exist_fails_at_once(dsn):
    """E28: a bug of the code, which is there in every attempt."""

    class Lost(gd.Machine[dict]):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Next("else" + "where")

    async with running(dsn, Lost, backoff_base_s=FAR_S) as engine:
        answer = await engine.client.insert(Lost.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.attempt) == ("failed", 0)
    assert "Lost has no step 'elsewhere'; it has only" in read.last_error


@pytest.mark.parametrize(
    ("answer_of", "text"),
    [
        (lambda: None, "did you forget `return`?"),
        (lambda: 7, "returned 7: return gd.Next, gd.Done or another outcome"),
        (lambda: gd.Next("elsewhere"), "no step 'elsewhere'; it has only"),
        (lambda: gd.Retry(delay=-1), "delay is -1"),
        (lambda: gd.Done([1]), "a result must be a mapping"),
        (lambda: gd.Snooze(0), "delay is 0"),
        (lambda: gd.Next("only", rate_limit="x"), "rate_limit"),
    ],
)
async def test_a_wrong_answer_goes_to_the_handler_like_an_error(dsn, answer_of, text):
    """E28: refused where it is made, so the traceback points at the step; the handler decides, as for any error."""

    class Wrong(gd.Machine[dict]):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return answer_of()

        async def handle(self, error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Stop(f"handled: {error}")

    async with running(dsn, Wrong) as engine:
        answer = await engine.client.insert(Wrong.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert read.status == "failed"
    assert read.last_error.startswith("handled: ")
    assert text in read.last_error


async def test_a_handler_that_fails_itself_leaves_the_default_policy(dsn):
    """A bug in the last resort must not lose the instance."""

    class Broken(gd.Machine[dict], max_attempts=2):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            raise ZeroDivisionError

        def handle(self, _error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            raise KeyError("in the handler")

    async with running(dsn, Broken) as engine:
        answer = await engine.client.insert(Broken.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.attempt) == ("failed", 1)
    assert "KeyError: 'in the handler'" in read.last_error


async def test_cancel_raised_in_a_nested_call_ends_the_instance_as_cancelled(dsn):
    """E29: a decision made deep below needs no way up through every caller's return value."""

    async def deep(level: int) -> None:
        if level:
            await deep(level - 1)
        raise gd.Cancel("the order was withdrawn")

    class Withdrawn(gd.Machine[dict]):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            await deep(5)
            return gd.Done()

    async with running(dsn, Withdrawn) as engine:
        answer = await engine.client.insert(Withdrawn.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.cancel_reason, read.attempt) == ("cancelled", "the order was withdrawn", 0)


async def test_the_attempt_starts_again_after_next_and_snooze_spends_none(dsn):
    """Attempts belong to one step; waiting for something is no failure."""
    seen: list[tuple[str, int]] = []

    class Walk(gd.Machine[dict]):
        @gd.step
        async def first(self, ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append((ctx.step, ctx.attempt))
            if len(seen) == 1:
                raise ZeroDivisionError
            if len(seen) == 2:
                return gd.Snooze(0.001)
            return gd.Next(self.second)

        @gd.step
        async def second(self, ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append((ctx.step, ctx.attempt))
            return gd.Done()

    async with running(dsn, Walk) as engine:
        answer = await engine.client.insert(Walk.with_state())
        await engine.client.result(answer.id, timeout=10)

    assert seen == [("first", 0), ("first", 1), ("first", 1), ("second", 0)]


async def test_snoozes_in_a_row_are_capped(dsn):
    """A step that always says "later" would otherwise run for years and look healthy."""

    @gd.job()
    async def later(_ctx: gd.Context) -> gd.Outcome:
        return gd.Snooze(0.001)

    async with running(dsn, later, steps=StepSettings(max_snoozes=3)) as engine:
        answer = await engine.client.insert(later.with_args())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.attempt) == ("failed", 0)
    assert "snoozed 3 times in a row" in read.last_error


async def test_a_retry_and_a_next_with_a_delay_run_on_time_without_polling(dsn, connection):
    """A timer, not the poll: with polls at a minute both delays must be met."""
    times: list[dt.datetime] = []

    class Delayed(gd.Machine[dict]):
        @gd.step
        async def first(self, ctx: gd.Context[dict]) -> gd.Outcome:
            times.append(await connection.fetchval("select clock_timestamp()"))
            return gd.Retry(delay=0.15) if ctx.attempt == 0 else gd.Next(self.second, delay=0.15)

        @gd.step
        async def second(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            times.append(await connection.fetchval("select clock_timestamp()"))
            return gd.Done()

    async with running(dsn, Delayed, listens=False) as engine:
        answer = await engine.client.insert(Delayed.with_state())
        await engine.client.result(answer.id, timeout=10)

    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(times)]
    assert len(gaps) == 2
    assert all(0.15 <= gap < 1.5 for gap in gaps), gaps


async def test_next_at_a_moment_runs_then(dsn, connection):
    """A calendar's time is met by the database's clock."""
    started: list[dt.datetime] = []

    class Calendar(gd.Machine[dict]):
        @gd.step
        async def first(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Next(self.second, at=at)

        @gd.step
        async def second(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            started.append(await connection.fetchval("select clock_timestamp()"))
            return gd.Done()

    async with running(dsn, Calendar) as engine:
        at = await connection.fetchval("select clock_timestamp() + interval '200 ms'")
        answer = await engine.client.insert(Calendar.with_state())
        await engine.client.result(answer.id, timeout=10)

    assert dt.timedelta(0) <= started[0] - at < dt.timedelta(seconds=2)


async def test_a_step_timeout_goes_to_the_handler_and_frees_the_slot(dsn):
    """E34: the error says which step and how long; the one slot must go on with other work."""
    was_cancelled = asyncio.Event()

    class Slow(gd.Machine[dict]):
        @gd.step(timeout=0.05)
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            try:
                await asyncio.Event().wait()
            finally:
                was_cancelled.set()
            return gd.Done()

        async def handle(self, error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            assert isinstance(error, StepTimeoutError)
            await asyncio.sleep(0)
            return gd.Done({"limit": error.timeout_s, "step": error.step})

    async with running(dsn, Slow, concurrency=1) as engine:
        first, second = [await engine.client.insert(Slow.with_state()) for _ in range(2)]
        results = [await engine.client.result(answer.id, timeout=10) for answer in (first, second)]
        assert was_cancelled.is_set()
        await until(lambda: engine.parts.executors["default"].running == 0)

    assert results == [{"limit": 0.05, "step": "only"}] * 2


async def test_a_handler_has_the_steps_time_limit_of_its_own(dsn):
    """A handler that hangs must not hold its slot for ever."""

    class Slow(gd.Machine[dict], max_attempts=1):
        @gd.step(timeout=0.05)
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            raise ZeroDivisionError

        async def handle(self, _error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            await asyncio.Event().wait()
            return gd.Done()

    async with running(dsn, Slow) as engine:
        answer = await engine.client.insert(Slow.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert read.status == "failed"
    assert "ZeroDivisionError" in read.last_error or "StepTimeoutError" in read.last_error


async def test_the_engines_time_limit_holds_for_steps_without_their_own(dsn):
    """E34: a default that is not enforced is no default."""

    @gd.job(max_attempts=1)
    async def hang(_ctx: gd.Context) -> None:
        await asyncio.Event().wait()

    async with running(dsn, hang, steps=StepSettings(timeout_s=0.05)) as engine:
        answer = await engine.client.insert(hang.with_args())
        read = await engine.client.wait(answer.id, timeout=10)

    assert read.status == "failed"
    assert "hang.run ran longer than its timeout of 0.05 s" in read.last_error


async def test_a_step_that_cancels_its_own_task_fails_like_any_other(dsn):
    """Nobody but the step knows why; without an outcome the heartbeat would keep its row claimed for ever."""

    @gd.job(max_attempts=2)
    async def suicidal(_ctx: gd.Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(SOON_S)

    async with running(dsn, suicidal) as engine:
        answer = await engine.client.insert(suicidal.with_args())
        read = await engine.client.wait(answer.id, timeout=SOON_S)

    assert (read.status, read.attempt) == ("failed", 1)
    assert "cancelled its task" in read.last_error


async def test_the_handler_of_a_step_that_cancelled_itself_may_wait(dsn):
    """The cancellation is over with the step, and must not strike at the handler's first await."""

    class Suicidal(gd.Machine[CountState]):
        @gd.step
        async def only(self, _ctx: gd.Context[CountState]) -> gd.Outcome:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            task.cancel()
            await asyncio.sleep(SOON_S)
            return gd.Done()

        async def handle(self, error: Exception, _ctx: gd.Context[CountState]) -> gd.Outcome:
            await asyncio.sleep(0.001)
            return gd.Done({"why": str(error)})

    async with running(dsn, Suicidal) as engine:
        answer = await engine.client.insert(Suicidal.with_state())
        result = await engine.client.result(answer.id, timeout=SOON_S)

    assert "cancelled its task" in result["why"]


async def test_a_step_that_swallows_its_cancellation_is_believed(dsn):
    """It finished its work after the time limit; throwing the answer away would do the work twice."""

    @gd.job()
    async def stubborn(_ctx: gd.Context) -> dict[str, str]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"ended": "by myself"}

    async with running(dsn, stubborn, steps=StepSettings(timeout_s=0.05)) as engine:
        answer = await engine.client.insert(stubborn.with_args())
        assert await engine.client.result(answer.id, timeout=10) == {"ended": "by myself"}


async def test_a_sync_steps_late_result_is_ignored_and_its_slot_stays_taken(dsn):
    """E34: a thread cannot be killed; starting another beside it would run more than was allowed."""
    may_end, started = threading.Event(), threading.Event()
    order: list[int] = []

    @gd.job(max_attempts=1, timeout=0.1)
    def block(_ctx: gd.Context, n: int) -> dict[str, int]:
        order.append(n)
        if n == 0:
            started.set()
            assert may_end.wait(30)
        return {"n": n}

    async with running(dsn, block, concurrency=1) as engine:
        executor = engine.parts.executors["default"]
        first = await engine.client.insert(block.with_args(n=0))
        await asyncio.to_thread(started.wait, 10)
        second = await engine.client.insert(block.with_args(n=1))
        read = await engine.client.wait(first.id, timeout=10)
        assert read.status == "failed"
        assert (executor.lingering_threads, executor.running) == (1, 1)
        # The outcome is durable and nothing else could keep the second row: only the slot does.
        assert isinstance(await engine.client.wait(second.id, timeout=0.2), gd.StillRunning)
        may_end.set()
        assert await engine.client.result(second.id, timeout=10) == {"n": 1}
        assert (await engine.client.get(first.id)) == read
        assert executor.lingering_threads == 0

    assert order == [0, 1]


async def test_more_sync_steps_than_threads_wait_their_turn(dsn):
    """Slots and threads are two limits; the smaller one must not break the other's books."""
    running_now, peak = 0, 0
    lock = threading.Lock()

    @gd.job()
    def count(_ctx: gd.Context) -> None:
        nonlocal running_now, peak
        with lock:
            running_now += 1
            peak = max(peak, running_now)
        threading.Event().wait(0.01)
        with lock:
            running_now -= 1

    async with running(dsn, count, concurrency=8, sync_threads=2) as engine:
        answers = await engine.client.insert_many([count.with_args() for _ in range(20)])
        for answer in answers:
            await engine.client.result(answer.id, timeout=10)
        await until(lambda: engine.parts.executors["default"].running == 0)

    assert peak == 2


async def test_a_blocking_sync_step_does_not_delay_heartbeats(dsn, connection):
    """E32: the loop must go on while threads are stuck, or other work is taken away."""
    may_end = threading.Event()

    @gd.job()
    def block(_ctx: gd.Context) -> None:
        assert may_end.wait(30)

    async with running(dsn, block, ttl_s=3, heartbeat_s=0.05, has_reaper=False) as engine:
        answer = await engine.client.insert(block.with_args())
        row = await until_row(connection, answer.id, status="executing")
        for _ in range(3):
            before = row["lease_expires_at"]
            await _until_renewed(connection, answer.id, before)
            row = await until_row(connection, answer.id, status="executing")
        may_end.set()
        await engine.client.result(answer.id, timeout=10)


async def _until_renewed(connection, instance_id: int, before: dt.datetime) -> None:
    async def look() -> None:
        query = "select lease_expires_at > $2 from gendurable.gen_durable where id = $1"
        for _ in range(1000):
            if await connection.fetchval(query, instance_id, before):
                return
            await asyncio.sleep(0.01)

    await soon(look())


async def test_context_variables_do_not_leak_between_steps(dsn):
    """A tenant set by one step must not be the next one's, in a task or in a thread."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []
    both = asyncio.Barrier(2)

    @gd.job()
    async def in_task(_ctx: gd.Context, name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)
        await both.wait()
        seen.append(tenant.get())

    @gd.job()
    def in_thread(_ctx: gd.Context, name: str) -> None:
        seen.append(tenant.get())
        tenant.set(name)

    async with running(dsn, in_task, in_thread, sync_threads=1) as engine:
        tenant.set("the caller")
        rows = [in_task.with_args(name="a"), in_task.with_args(name="b")]
        for answer in await engine.client.insert_many(rows):
            await engine.client.result(answer.id, timeout=10)
        for name in ("c", "d"):
            await engine.client.result((await engine.client.insert(in_thread.with_args(name=name))).id, timeout=10)

    assert sorted(seen) == sorted(["nobody", "nobody", "a", "b", "nobody", "nobody"])


async def test_what_a_step_logs_carries_its_own_ids(dsn):
    """Two steps that run at once must not sign each other's lines, on the loop or in threads."""
    seen: list[tuple[int, dict[str, object]]] = []
    both, both_threads = asyncio.Barrier(2), threading.Barrier(2)

    def fields() -> dict[str, object]:
        return dict(step_context.get().items())

    @gd.job()
    async def on_loop(ctx: gd.Context) -> None:
        await both.wait()
        seen.append((ctx.id, fields()))

    @gd.job()
    def in_thread(ctx: gd.Context) -> None:
        both_threads.wait(10)
        seen.append((ctx.id, fields()))

    async with running(dsn, on_loop, in_thread) as engine:
        requests = [job.with_args().with_options(tags=["t"]) for job in (on_loop, in_thread) for _ in range(2)]
        for answer in await engine.client.insert_many(requests):
            await engine.client.result(answer.id, timeout=10)

    assert len(seen) == 4
    assert all(logged["instance_id"] == instance_id and logged["tags"] == ["t"] for instance_id, logged in seen)
    assert step_context.get() is None


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("kind", ["raised", "handled", "backoff", "nan", "huge", "exit"])
async def test_what_user_code_does_wrong_never_loses_the_row(dsn, kind):
    """Errors without a text, failing backoffs, sys.exit() in a library: the row must not hang in a live process."""

    def backoff(_attempt: int) -> float:
        if kind == "backoff":
            raise ZeroDivisionError("in the backoff")
        return {"nan": float("nan"), "huge": 1e300}.get(kind, 0.001)

    class Rude(gd.Machine[dict], max_attempts=2, backoff=backoff):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            if kind == "exit":
                raise SystemExit(3)
            if kind in {"raised", "handled"}:
                raise UnprintableError
            raise ZeroDivisionError

    if kind == "handled":

        class Handled(Rude, max_attempts=2, name="Rude"):
            def handle(self, error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
                raise error

        Rude = Handled  # noqa: N806 - the class under test

    async with running(dsn, Rude) as engine:
        answer = await engine.client.insert(Rude.with_state())
        read = await engine.client.wait(answer.id, timeout=3)
        assert not isinstance(read, gd.StillRunning)
        assert engine.parts.executors["default"].running == 0
        assert len(engine.parts.holdings) == 0

    assert read.status == "failed"
