"""Jobs: functions whose return, exception or absence of both is the outcome."""

import msgspec
import pytest

import gendurable as gd
from gendurable.errors import InstanceCancelledError, InstanceFailedError
from gendurable.settings import StepSettings
from tests.runtime.running import running, until_row


class Receipt(msgspec.Struct):
    amount: int


@pytest.mark.parametrize(
    ("returned", "result"),
    [(None, {}), ({"a": [1]}, {"a": [1]}), ({}, {}), (Receipt(amount=5), {"amount": 5}), (gd.Done({"x": 1}), {"x": 1})],
)
@pytest.mark.parametrize("is_sync", [False, True])
async def test_what_a_job_returns_is_its_result(dsn, returned, result, is_sync):
    """E29: nothing is an empty result, a mapping or a struct is itself; in a thread as on the loop."""

    async def give(_ctx: gd.Context) -> object:
        return returned

    def give_sync(_ctx: gd.Context) -> object:
        return returned

    job = gd.job(name="give")(give_sync if is_sync else give)
    async with running(dsn, job) as engine:
        answer = await engine.client.insert(job.with_args())
        assert await engine.client.result(answer.id, timeout=10) == result
        assert (await engine.client.get(answer.id)).status == "done"


@pytest.mark.parametrize("returned", [7, "text", [1], True, object()])
async def test_a_result_that_is_no_mapping_is_an_error_of_the_job(dsn, returned):
    """E28, E29: a bare number could not be told from a field of a mapping later; the message says how to wrap it."""

    @gd.job(max_attempts=1)
    async def give(_ctx: gd.Context) -> object:
        return returned

    async with running(dsn, give) as engine:
        answer = await engine.client.insert(give.with_args())
        with pytest.raises(InstanceFailedError, match="wrap it"):
            await engine.client.result(answer.id, timeout=10)


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_job_that_fails_twice_and_then_returns_is_done_with_attempt_2(dsn, is_sync):
    """E29: attempts count failures, so the third try is attempt 2, and the errors of the first two are kept."""

    async def flaky(ctx: gd.Context) -> None:
        if ctx.attempt < 2:
            raise ZeroDivisionError

    def flaky_sync(ctx: gd.Context) -> None:
        if ctx.attempt < 2:
            raise ZeroDivisionError

    job = gd.job(name="flaky")(flaky_sync if is_sync else flaky)
    async with running(dsn, job) as engine:
        answer = await engine.client.insert(job.with_args())
        await engine.client.result(answer.id, timeout=10)
        read = await engine.client.get(answer.id)

    assert (read.status, read.attempt, read.last_error) == ("done", 2, None)
    assert [(error.attempt, error.kind) for error in read.errors] == [
        (0, "ZeroDivisionError"),
        (1, "ZeroDivisionError"),
    ]
    assert "test_jobs.py" in read.errors[0].text


async def test_a_job_that_always_fails_stops_after_max_attempts(dsn):
    """E29: three attempts are three runs, and the last error is what the instance ends with."""
    runs: list[int] = []

    @gd.job(max_attempts=3)
    async def hopeless(ctx: gd.Context) -> None:
        runs.append(ctx.attempt)
        raise ZeroDivisionError(f"run {ctx.attempt}")

    async with running(dsn, hopeless) as engine:
        answer = await engine.client.insert(hopeless.with_args())
        with pytest.raises(InstanceFailedError, match="run 2"):
            await engine.client.result(answer.id, timeout=10)
        read = await engine.client.get(answer.id)

    assert runs == [0, 1, 2]
    assert (read.attempt, len(read.errors)) == (2, 3)


async def test_the_engines_max_attempts_holds_for_jobs_without_their_own(dsn):
    """E29: a default of twenty tries, unless the operator says otherwise."""

    @gd.job()
    async def hopeless(_ctx: gd.Context) -> None:
        raise ZeroDivisionError

    async with running(dsn, hopeless, steps=StepSettings(max_attempts=2)) as engine:
        answer = await engine.client.insert(hopeless.with_args())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.attempt) == ("failed", 1)


async def test_the_last_ten_errors_are_kept(dsn):
    """A row must not grow with every failure for years."""

    @gd.job(max_attempts=13, backoff=lambda _attempt: 0.001)
    async def hopeless(ctx: gd.Context) -> None:
        raise ZeroDivisionError(f"run {ctx.attempt}")

    async with running(dsn, hopeless) as engine:
        answer = await engine.client.insert(hopeless.with_args())
        read = await engine.client.wait(answer.id, timeout=10)

    assert [error.attempt for error in read.errors] == list(range(3, 13))


@pytest.mark.parametrize("is_raised", [False, True])
@pytest.mark.parametrize("is_sync", [False, True])
async def test_cancel_returned_or_raised_ends_at_once(dsn, is_raised, is_sync):
    """E29: no attempt is spent and nothing is retried; the reason is kept."""

    def answer_of() -> gd.Cancel:
        if is_raised:
            raise gd.Cancel("not needed")
        return gd.Cancel("not needed")

    async def quit_(_ctx: gd.Context) -> object:
        return answer_of()

    def quit_sync(_ctx: gd.Context) -> object:
        return answer_of()

    job = gd.job(name="quit")(quit_sync if is_sync else quit_)
    async with running(dsn, job) as engine:
        answer = await engine.client.insert(job.with_args())
        with pytest.raises(InstanceCancelledError, match="not needed"):
            await engine.client.result(answer.id, timeout=10)
        read = await engine.client.get(answer.id)

    assert (read.status, read.attempt, read.cancel_reason) == ("cancelled", 0, "not needed")


async def test_a_job_may_replace_the_backoff(dsn, connection):
    """E30: a job knows better than the engine how long its mail server needs."""

    @gd.job(backoff=lambda attempt: 1000.0 * (attempt + 1))
    async def slow(_ctx: gd.Context) -> None:
        raise ZeroDivisionError

    async with running(dsn, slow) as engine:
        answer = await engine.client.insert(slow.with_args())
        row = await until_row(connection, answer.id, attempt=1)

    assert 999 < (row["eligible_at"] - row["updated_at"]).total_seconds() < 1001


async def test_the_default_backoff_doubles_with_jitter(dsn, connection):
    """E30: the engine's own backoff is one second, give or take a fifth, after the first failure."""

    @gd.job()
    async def slow(_ctx: gd.Context) -> None:
        raise ZeroDivisionError

    async with running(dsn, slow, backoff_base_s=1.0) as engine:
        answers = await engine.client.insert_many([slow.with_args() for _ in range(5)])
        waits = set()
        for answer in answers:
            row = await until_row(connection, answer.id, attempt=1)
            waits.add((row["eligible_at"] - row["updated_at"]).total_seconds())

    assert all(0.79 <= wait <= 1.21 for wait in waits), waits
    assert len(waits) > 1


async def test_arguments_arrive_typed_with_their_defaults(dsn):
    """A job is called like the function it is."""
    seen: list[object] = []

    @gd.job()
    async def send(ctx: gd.Context, to: str, receipt: Receipt, copies: int = 2) -> None:
        seen.append((to, receipt, copies, ctx.machine, ctx.step, dict(ctx.metadata), ctx.tags, ctx.correlation_key))

    async with running(dsn, send) as engine:
        request = send.with_args(to="a@example.org", receipt=Receipt(amount=3))
        answer = await engine.client.insert(request, metadata={"m": 1}, tags=["t"], correlation_key="k")
        await engine.client.result(answer.id, timeout=10)

    assert seen == [("a@example.org", Receipt(amount=3), 2, "send", "run", {"m": 1}, ("t",), "k")]
