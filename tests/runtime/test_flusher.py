"""The flusher on a running engine: outcomes that wait together commit together, and each is answered once."""

import asyncio

import pytest

import gendurable as gd
from gendurable.errors import StoreDataError
from gendurable.settings import FlushSettings
from tests.runtime.running import ids_of, row_of, running, soon, until, until_row, until_true


def gated(name: str = "gated", queue: str = "default") -> tuple[gd.Job, asyncio.Event, list[int]]:
    """A job that ends when the event is set, and the numbers of those that started."""
    gate, started = asyncio.Event(), []

    @gd.job(name=name, queue=queue)
    async def wait_for_gate(_ctx: gd.Context, n: int = 0) -> dict[str, int]:
        started.append(n)
        await gate.wait()
        return {"n": n}

    return wait_for_gate, gate, started


class Gate:
    """Stops the flusher's transactions one by one."""

    def __init__(self, flusher) -> None:
        self.batches: list[list[int]] = []
        self.arrived = asyncio.Semaphore(0)
        self.go = asyncio.Semaphore(0)
        self._commit = flusher._store.commit
        flusher._store.commit = self

    async def __call__(self, batch):
        self.batches.append([entry.id for entry in batch])
        self.arrived.release()
        await self.go.acquire()
        return await self._commit(batch)


async def test_outcomes_that_arrive_during_a_flush_commit_in_one_transaction(dsn, connection):
    """E43: group commit without a timer: the next batch grows while the present one is under way."""
    first, first_gate, _ = gated("first")
    rest, rest_gate, started = gated("rest")
    async with running(dsn, first, rest) as engine:
        gate = Gate(engine.parts.flushers[0])
        one = await engine.client.insert(first.with_args())
        three = ids_of(await engine.client.insert_many([rest.with_args(n=n) for n in range(3)]))
        await until(lambda: len(started) == 3)
        first_gate.set()
        await soon(gate.arrived.acquire())
        rest_gate.set()
        await until(lambda: engine.parts.flushers[0].backlog == 4)
        gate.go.release()
        await soon(gate.arrived.acquire())
        gate.go.release()
        for instance_id in three:
            await engine.client.result(instance_id, timeout=10)
        commits = await connection.fetch(
            "select distinct finished_at from gendurable.gen_durable where id = any($1)", three
        )
        for _ in range(5):
            gate.go.release()

    assert gate.batches == [[one.id], three]
    assert len(commits) == 1


async def test_a_batch_has_a_maximum(dsn):
    """A transaction of any size would hold its locks for any time."""
    job, job_gate, started = gated()
    async with running(dsn, job, concurrency=30, flush=FlushSettings(batch_max=10)) as engine:
        gate = Gate(engine.parts.flushers[0])
        for _ in range(50):
            gate.go.release()
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(25)]))
        await until(lambda: len(started) == 25)
        job_gate.set()
        for instance_id in ids:
            await engine.client.result(instance_id, timeout=10)

    assert [len(batch) for batch in gate.batches] == [10, 10, 5]


async def test_a_linger_gathers_outcomes(dsn):
    """An operator with a slow disk trades latency for fewer commits."""
    job, job_gate, started = gated()
    async with running(dsn, job, concurrency=30, flush=FlushSettings(delay_max_s=0.2)) as engine:
        gate = Gate(engine.parts.flushers[0])
        for _ in range(50):
            gate.go.release()
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(20)]))
        await until(lambda: len(started) == 20)
        job_gate.set()
        for instance_id in ids:
            await engine.client.result(instance_id, timeout=10)

    assert len(gate.batches) == 1


async def test_routes_send_each_queue_to_the_first_flusher_that_names_it(dsn):
    """E45: a queue with heavy outcomes may have a flusher of its own; the first match wins."""
    left, left_gate, _ = gated("left", "left")
    right, right_gate, _ = gated("right", "right")
    flush = FlushSettings(routes={"one": ("left",), "two": ("left", "*")})
    async with running(dsn, left, right, flush=flush) as engine:
        flushers = {flusher.name: flusher for flusher in engine.parts.flushers}
        assert set(flushers) == {"flusher:one", "flusher:two"}
        gates = {name: Gate(flusher) for name, flusher in flushers.items()}
        for gate in gates.values():
            gate.go.release()
        left_gate.set()
        right_gate.set()
        answers = {job: await engine.client.insert(job.with_args()) for job in (left, right)}
        for answer in answers.values():
            await engine.client.result(answer.id, timeout=10)

    assert gates["flusher:one"].batches == [[answers[left].id]]
    assert gates["flusher:two"].batches == [[answers[right].id]]


async def test_a_side_effect_that_fails_after_the_commit_changes_no_answer(dsn, connection, caplog):
    """E44: the outcome is durable; a broken metric or a broken wake-up must neither undo nor repeat it."""
    job, job_gate, started = gated()
    async with running(dsn, job) as engine:
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(3)]))
        await until(lambda: len(started) == 3)
        executor = engine.parts.executors["default"]
        told: list[int] = []
        note = executor._on_ended

        def broken(instance_id: int) -> None:
            told.append(instance_id)
            if instance_id == ids[1]:
                raise KeyError("a side effect")
            note(instance_id)

        executor._on_ended = broken
        job_gate.set()
        results = [await soon(engine.client.result(instance_id, timeout=10)) for instance_id in ids]
        await until(lambda: executor.unflushed == 0)
        again = await engine.client.insert(job.with_args(n=9))
        assert await soon(engine.client.result(again.id, timeout=10)) == {"n": 9}
        assert len(engine.parts.holdings) == 0

    assert results == [{"n": n} for n in range(3)]
    assert told[:3] == ids
    assert [(await row_of(connection, instance_id))["claim"] for instance_id in ids] == [1, 1, 1]
    assert sum("side effect" in record.getMessage() or bool(record.exc_info) for record in caplog.records) == 1


async def test_a_refused_outcome_costs_only_its_own_row(dsn, connection):
    """One value that Postgres refuses must not take the batch with it; its row fails with the database's words."""

    @gd.job()
    async def step(_ctx: gd.Context, n: int) -> dict[str, int]:
        await soon(together.wait())
        return {"n": n}

    together = asyncio.Barrier(8)
    await connection.execute(
        "alter table gendurable.gen_durable add constraint no_five check (result is null or result <> '{\"n\": 5}')"
    )
    async with running(dsn, step) as engine:
        ids = ids_of(await engine.client.insert_many([step.with_args(n=n) for n in range(8)]))
        ended = [await soon(engine.client.wait(instance_id, timeout=10)) for instance_id in ids]

    assert [read.status for read in ended] == ["failed" if n == 5 else "done" for n in range(8)]
    assert "no_five" in ended[5].last_error
    assert [read.attempt for read in ended] == [0] * 8


async def test_a_row_that_a_caller_holds_is_committed_when_the_caller_is_done(dsn, connection):
    """E23a: its neighbours commit meanwhile, it commits right after, and nobody is reaped."""
    job, job_gate, started = gated()
    async with running(dsn, job, concurrency=30) as engine:
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(20)]))
        await until(lambda: len(started) == 20)
        holding = connection.transaction()
        await holding.start()
        await connection.execute("select 1 from gendurable.gen_durable where id = $1 for no key update", ids[3])
        job_gate.set()
        for n, instance_id in enumerate(ids):
            if n != 3:
                assert await soon(engine.client.result(instance_id, timeout=10)) == {"n": n}
        await until(lambda: engine.metrics.outcomes_busy.total() == 1)
        await holding.commit()
        assert await soon(engine.client.result(ids[3], timeout=10)) == {"n": 3}
        row = await until_row(connection, ids[3], status="done")

    assert (row["claim"], row["crashes"]) == (1, 0)


async def test_a_stale_outcome_is_reported_and_changes_nothing(dsn, connection):
    """E42: the row went to another worker; its state belongs to that one."""
    job, job_gate, started = gated()
    async with running(dsn, job) as engine:
        answer = await engine.client.insert(job.with_args())
        await until(lambda: started)
        await connection.execute("update gendurable.gen_durable set locked_by = 'other/boot', claim = claim + 1")
        before = await row_of(connection, answer.id)
        job_gate.set()
        await until(lambda: engine.metrics.outcomes_stale.total() == 1)
        assert await row_of(connection, answer.id) == before
        assert len(engine.parts.holdings) == 0
        assert engine.metrics.steps_committed.total() == 0


@pytest.mark.parametrize("times", [1, 3])
async def test_a_lost_connection_during_the_commit_repeats_nothing(dsn, connection, times):
    """L18: the commit may have happened before the connection was lost; asked afterwards, it is answered as it was."""
    job, job_gate, started = gated()
    async with running(dsn, job) as engine:
        store = engine.parts.flushers[0]._store
        commit, lost = store.commit, []

        async def commit_and_lose(batch):
            answer = await commit(batch)
            if len(lost) < times:
                lost.append(answer)
                raise gd.errors.StoreUnavailableError("the answer never arrived")
            return answer

        store.commit = commit_and_lose
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(4)]))
        await until(lambda: len(started) == 4)
        job_gate.set()
        results = [await soon(engine.client.result(instance_id, timeout=10)) for instance_id in ids]
        await until(lambda: len(engine.parts.holdings) == 0)
        assert engine.metrics.outcomes_stale.total() == 0
        assert engine.metrics.steps_committed.total() == 4
        await until_true(connection, "select count(*) = 4 from gendurable.gen_durable where claim = 1")

    assert results == [{"n": n} for n in range(4)]
    assert issubclass(StoreDataError, gd.errors.StoreError)
