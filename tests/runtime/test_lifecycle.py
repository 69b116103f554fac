"""The life of an engine: what opens and closes around it, what keeps it from starting, and what ends it."""

import asyncio

import pytest

import gendurable as gd
from gendurable.errors import ConfigurationError, DiscoveryError
from gendurable.settings import (
    CollectorSettings,
    FlushSettings,
    LeaseSettings,
    QueueSettings,
    ReaperSettings,
    ReconcilerSettings,
    Secret,
    Settings,
)
from gendurable.wiring import build_engine
from tests.runtime.running import (
    at_rest,
    count_rows,
    ids_of,
    row_of,
    running,
    settings_for,
    soon,
    until,
    until_row,
)


@gd.job()
async def quick(_ctx: gd.Context, n: int = 0) -> dict[str, int]:
    return {"n": n}


async def test_lifespans_open_before_and_close_after_everything_in_reverse(dsn):
    """A step may use its resources to its very end, and a resource those it was built on."""
    events: list[str] = []

    @gd.lifespan
    async def database():
        events.append("database opened")
        yield {"database": "db"}
        events.append("database closed")

    @gd.lifespan
    async def cache():
        events.append("cache opened")
        yield {"cache": "c"}
        events.append("cache closed")

    @gd.lifespan
    async def silent():
        events.append("silent opened")
        yield None
        events.append("silent closed")

    may_end = asyncio.Event()

    @gd.job()
    async def use(ctx: gd.Context) -> dict[str, str]:
        events.append("step started")
        await may_end.wait()
        events.append("step ended")
        return dict(ctx.resources)

    async with running(dsn, database, use, cache, silent) as engine:
        answer = await engine.client.insert(use.with_args())
        await until(lambda: "step started" in events)
        engine.stop()
        await until(lambda: engine.is_draining)
        may_end.set()

    async with gd.Client(dsn) as client:
        assert await client.result(answer.id) == {"database": "db", "cache": "c"}
    assert events == [
        "database opened",
        "cache opened",
        "silent opened",
        "step started",
        "step ended",
        "silent closed",
        "cache closed",
        "database closed",
    ]


async def test_a_lifespan_that_fails_stops_the_start_and_closes_those_before_it(dsn, connection):
    """A worker without its resources must not claim anything."""
    events: list[str] = []

    @gd.lifespan
    async def first():
        events.append("opened")
        yield {}
        events.append("never")

    @gd.lifespan
    async def closing():
        try:
            yield {}
        finally:
            events.append("closed")

    @gd.lifespan
    async def broken():
        raise ZeroDivisionError("no such host")
        yield {}

    async with gd.Client(dsn) as client:
        answer = await client.insert(quick.with_args())
    engine = build_engine(settings_for(dsn), gd.Registry([quick, first, closing, broken]))
    with pytest.raises(ZeroDivisionError, match="no such host"):
        await soon(engine.run())

    assert not engine.is_ready
    assert events == ["opened", "closed"]
    assert (await row_of(connection, answer.id))["claim"] == 0


async def test_a_failing_lifespan_reaches_the_block_that_started_the_engine(dsn):
    """running() must not hang in waiting for a readiness that never comes."""

    @gd.lifespan
    async def broken():
        raise ZeroDivisionError
        yield {}

    engine = build_engine(settings_for(dsn), gd.Registry([quick, broken]))
    with pytest.raises(ZeroDivisionError):
        await soon(engine.running().__aenter__())


async def test_two_lifespans_may_not_offer_the_same_resource(dsn):
    """One would silently win, and a step would talk to the wrong host."""

    @gd.lifespan
    async def one():
        yield {"database": 1}

    @gd.lifespan
    async def two():
        yield {"database": 2}

    engine = build_engine(settings_for(dsn), gd.Registry([quick, one, two]))
    with pytest.raises(DiscoveryError, match="database a second time"):
        await soon(engine.run())


async def test_a_start_that_is_given_up_leaves_nothing_running(dsn, connection):
    """A caller whose patience ends during a slow start must not leave a worker behind that nobody stops."""
    opening = asyncio.Event()

    @gd.lifespan
    async def slow():
        opening.set()
        await asyncio.Event().wait()
        yield {}

    before = asyncio.all_tasks()
    engine = build_engine(settings_for(dsn), gd.Registry([quick, slow]))
    starting = asyncio.create_task(engine.running().__aenter__())
    await soon(opening.wait())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: asyncio.all_tasks() == before)

    assert await connection.fetchval("select count(*) from gendurable.nodes") == 0


async def test_middleware_wraps_every_step_from_the_outermost_inwards(dsn):
    """The order of registration is the order in which they see the step."""
    events: list[str] = []

    @gd.middleware
    async def outer(ctx: gd.Context, call_next: gd.Handler) -> object:
        events.append(f"outer {ctx.step}")
        answer = await call_next(ctx)
        events.append("outer done")
        return answer

    @gd.middleware
    async def inner(ctx: gd.Context, call_next: gd.Handler) -> object:
        events.append("inner")
        return await call_next(ctx)

    class Walk(gd.Machine[dict]):
        @gd.step
        async def first(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            events.append("first")
            return gd.Next(self.second)

        @gd.step
        def second(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            events.append("second")
            return gd.Done({"a": 1})

    async with running(dsn, Walk, outer, inner) as engine:
        answer = await engine.client.insert(Walk.with_state())
        assert await engine.client.result(answer.id, timeout=10) == {"a": 1}

    assert events == ["outer first", "inner", "first", "outer done", "outer second", "inner", "second", "outer done"]


async def test_middleware_may_answer_instead_of_the_step_and_change_its_answer(dsn):
    """Feature flags and dry runs live here, and must not need a change of every step."""

    @gd.middleware
    async def gate(ctx: gd.Context, call_next: gd.Handler) -> object:
        if "dry" in ctx.tags:
            return gd.Done({"dry": True})
        answer = await call_next(ctx)
        return {**answer, "seen": True}

    async with running(dsn, quick, gate) as engine:
        dry = await engine.client.insert(quick.with_args(), tags=["dry"])
        wet = await engine.client.insert(quick.with_args(n=2))
        assert await engine.client.result(dry.id, timeout=10) == {"dry": True}
        assert await engine.client.result(wet.id, timeout=10) == {"n": 2, "seen": True}


@pytest.mark.parametrize("is_before", [True, False])
async def test_an_exception_of_middleware_is_treated_like_the_steps(dsn, is_before):
    """It goes to the error handler of the machine, and is retried like any failure."""

    @gd.middleware
    async def broken(ctx: gd.Context, call_next: gd.Handler) -> object:
        if is_before:
            raise ZeroDivisionError("in middleware")
        await call_next(ctx)
        raise ZeroDivisionError("in middleware")

    class Handled(gd.Machine[dict]):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done()

        def handle(self, error: Exception, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Stop(f"handled {error}")

    async with running(dsn, Handled, broken) as engine:
        answer = await engine.client.insert(Handled.with_state())
        read = await engine.client.wait(answer.id, timeout=10)

    assert (read.status, read.last_error) == ("failed", "handled in middleware")


async def test_a_bug_in_a_service_ends_the_engine_with_the_error(dsn):
    """A worker that went on without its heartbeat would lose everything it does."""
    engine = build_engine(settings_for(dsn, heartbeat_s=0.05, ttl_s=1), gd.Registry([quick]))

    async def broken() -> None:
        raise KeyError("a bug")

    running_ = asyncio.create_task(engine.run())
    await soon(engine.wait_ready())
    engine.parts.heartbeat.beat_once = broken

    with pytest.raises(KeyError, match="a bug"):
        await soon(running_)


async def test_a_bug_in_a_service_reaches_the_block_that_started_the_engine(dsn):
    """The application must not go on believing that it has a worker."""
    engine = build_engine(settings_for(dsn, heartbeat_s=0.05, ttl_s=1), gd.Registry([quick]))

    async def broken() -> None:
        raise KeyError("a bug")

    block = engine.running()
    await soon(block.__aenter__())
    engine.parts.heartbeat.beat_once = broken
    await until(lambda: engine.is_draining)

    with pytest.raises(KeyError, match="a bug"):
        await soon(block.__aexit__(None, None, None))


async def test_two_live_engines_of_the_same_name_leave_each_others_work_alone(dsn, connection):
    """E17: a name is a label; only the boot id owns rows, so a second start must take nothing."""
    gate, started = asyncio.Event(), []

    @gd.job()
    async def hold(ctx: gd.Context) -> dict[str, int]:
        started.append(ctx.id)
        await gate.wait()
        return {"attempt": ctx.attempt, "crashes": ctx.crashes}

    async with running(dsn, hold, node="same", ttl_s=6, heartbeat_s=0.1) as first:
        ids = ids_of(await first.client.insert_many([hold.with_args() for _ in range(5)]))
        await until(lambda: len(started) == 5)
        owners = {(await row_of(connection, instance_id))["locked_by"] for instance_id in ids}
        async with running(dsn, hold, node="same", ttl_s=6, heartbeat_s=0.1) as second:
            await at_rest(second)
            await until(lambda: second.parts.heartbeat.age_s < 0.05)
            rows = [await row_of(connection, instance_id) for instance_id in ids]
            assert {row["locked_by"] for row in rows} == owners
            assert {row["claim"] for row in rows} == {1}
            gate.set()
            results = [await first.client.result(instance_id, timeout=10) for instance_id in ids]

    assert len(owners) == 1
    assert next(iter(owners)).startswith("same/")
    assert results == [{"attempt": 0, "crashes": 0}] * 5


async def test_two_engines_in_one_process_have_no_cross_talk(dsn):
    """E80: one serves the left queue, one the right; slots, registry, metrics and stops are each one's own."""
    ran: list[tuple[str, str]] = []

    @gd.job(name="work", queue="left")
    async def left(_ctx: gd.Context) -> None:
        ran.append(("left", _ctx.queue))

    @gd.job(name="work", queue="right")
    async def right(_ctx: gd.Context) -> None:
        ran.append(("right", _ctx.queue))

    async with running(dsn, left, serve=("left",)) as one, running(dsn, right, serve=("right",)) as two:
        answers = [await one.client.insert(request.with_args()) for request in (left, right) for _ in range(5)]
        for answer in answers:
            await two.client.result(answer.id, timeout=10)
        assert one.metrics.steps_executed.total() == two.metrics.steps_executed.total() == 5
        one.stop()
        await until(lambda: one.is_draining)
        again = await two.client.insert(right.with_args())
        await two.client.result(again.id, timeout=10)
        assert not two.is_draining

    assert set(ran) == {("left", "left"), ("right", "right")}


async def test_a_process_without_queues_inserts_and_executes_nothing(dsn, connection):
    """E81: a web process may hold an engine for its client alone."""
    async with running(dsn, quick, serve=()) as engine:
        answer = await engine.client.insert(quick.with_args())
        assert await engine.client.wait(answer.id, timeout=0.1) == gd.StillRunning(answer.id)
        assert isinstance(await engine.client.cancel(answer.id), gd.Cancelled)
        assert (engine.parts.pickers, engine.parts.executors) == ({}, {})

    assert (await row_of(connection, answer.id))["started_at"] is None


async def test_roles_that_are_off_do_not_run(dsn, connection):
    """E81: a process without reaper or collector must not do their work either."""
    off = {
        "collector": CollectorSettings(enabled=False),
        "listens": False,
        "has_reaper": False,
    }
    settings = settings_for(dsn, **off)
    reconciler = ReconcilerSettings(enabled=False)
    settings = Settings(
        **{name: getattr(settings, name) for name in settings.__struct_fields__} | {"reconciler": reconciler}
    )
    engine = build_engine(settings, gd.Registry([quick]))
    assert list(engine.parts.upkeep) == []
    assert engine.parts.listener is None
    async with engine.running():
        await connection.execute(
            "insert into gendurable.gen_durable (fsm, step, status, locked_by, lease_expires_at)"
            " values ('quick', 'run', 'executing', 'gone/x', now() - interval '1 day')"
        )
        answer = await engine.client.insert(quick.with_args())
        await engine.client.result(answer.id, timeout=10)
        assert await count_rows(connection, "status = 'executing'") == 1

    on = build_engine(settings_for(dsn), gd.Registry([quick]))
    assert sorted(service.name for service in on.parts.upkeep) == ["collector", "reaper", "reconciler"]


def test_every_problem_of_the_settings_is_listed_and_nothing_is_started():
    """E79: one run shows everything there is to mend."""
    wrong = Settings(
        dsn=Secret("postgresql://x/y"),
        queue=QueueSettings(concurrency=0, poll_interval_s=-1),
        lease=LeaseSettings(ttl_s=0),
        reaper=ReaperSettings(batch_max=0),
    )

    with pytest.raises(ConfigurationError) as refused:
        build_engine(wrong, gd.Registry([quick]))

    assert len(refused.value.problems) == 4


def test_a_heartbeat_too_slow_for_the_lease_is_refused():
    """E79: two lost beats must not cost the rows."""
    wrong = Settings(dsn=Secret("postgresql://x/y"), lease=LeaseSettings(ttl_s=10, heartbeat_s=4))

    with pytest.raises(ConfigurationError, match="heartbeat"):
        build_engine(wrong, gd.Registry([quick]))


def test_a_queue_that_no_flusher_covers_is_a_start_up_error():
    """E45: its outcomes would have nowhere to go, and that would show with the first of them."""

    @gd.job(queue="mail")
    async def mail(_ctx: gd.Context) -> None:
        """Do nothing."""

    settings = Settings(dsn=Secret("postgresql://x/y"), flush=FlushSettings(routes={"main": ("default", "other")}))

    with pytest.raises(ConfigurationError) as refused:
        build_engine(settings, gd.Registry([mail]))

    assert [problem for problem in refused.value.problems if "'mail'" in problem]


async def test_an_engine_stopped_before_it_is_ready_ends(dsn):
    """A signal may arrive at any time, also during the start."""
    engine = build_engine(settings_for(dsn), gd.Registry([quick]))
    engine.stop()

    report = await soon(engine.run())

    assert report.is_clean


async def test_a_row_that_is_due_at_the_start_runs_without_a_wake_up(dsn, connection):
    """Whatever came in while nobody listened is looked for once, at the start."""
    async with gd.Client(dsn, notify=False) as client:
        answer = await client.insert(quick.with_args())
    async with running(dsn, quick, listens=False):
        await until_row(connection, answer.id, status="done")
