"""The picker on a running engine: how much it claims, in which order, and when it leaves the database alone."""

import asyncio
import time

import gendurable as gd
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


def gated() -> tuple[gd.Job, asyncio.Event, list[int]]:
    """A job that ends when the event is set, and the numbers of those that started."""
    gate, started = asyncio.Event(), []

    @gd.job(name="gated")
    async def wait_for_gate(_ctx: gd.Context, n: int = 0) -> None:
        started.append(n)
        await gate.wait()

    return wait_for_gate, gate, started


async def test_no_more_than_concurrency_and_prefetch_is_in_hand(dsn, connection):
    """What one process hoards, no other can run."""
    job, gate, started = gated()
    async with running(dsn, job, concurrency=3, prefetch=2) as engine:
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(10)]))
        for instance_id in ids[:5]:
            await until_row(connection, instance_id, status="executing")
        engine.parts.hub.poke("default")
        await asyncio.sleep(0.05)
        assert started == [0, 1, 2]
        assert [(await row_of(connection, i))["status"] for i in ids[5:]] == ["runnable"] * 5
        gate.set()
        for instance_id in ids:
            await engine.client.result(instance_id, timeout=10)

    assert started == list(range(10))


async def test_lower_priorities_run_first_and_equals_in_the_order_of_their_insert(dsn):
    """E03: with one slot the order of the queue is the order of the runs."""
    order: list[int] = []

    @gd.job()
    async def note(_ctx: gd.Context, n: int) -> None:
        order.append(n)

    async with gd.Client(dsn) as client:
        rows = [(5, 4), (0, 1), (0, 2), (-3, 0), (5, 5), (1, 3)]
        requests = [note.with_args(n=n).with_options(priority=priority) for priority, n in rows]
        answers = await client.insert_many(requests)
        async with running(dsn, note, concurrency=1) as engine:
            for answer in answers:
                await engine.client.result(answer.id, timeout=10)

    assert order == [0, 1, 2, 3, 4, 5]


async def test_an_urgent_row_overtakes_a_backlog(dsn):
    """L15: the claim's place in the queue is dropped by a poke, and at the latest by every 20th claim.

    A poke that meets a claim under way is overwritten by what that claim learns, so the 20 are the promise.
    """
    order: list[int] = []
    tick = asyncio.Semaphore(0)

    @gd.job()
    async def note(_ctx: gd.Context, n: int) -> None:
        await tick.acquire()
        order.append(n)

    async with running(dsn, note, concurrency=1) as engine:
        backlog = await engine.client.insert_many([note.with_args(n=n) for n in range(200)])
        for _ in range(20):
            tick.release()
        await until(lambda: len(order) == 20)
        urgent = await engine.client.insert(note.with_args(n=999), priority=-1)
        for _ in range(300):
            tick.release()
        await soon(engine.client.result(urgent.id))
        assert order.index(999) <= 45
        await soon(engine.client.result(backlog[-1].id), within_s=30)


async def test_queues_are_served_apart(dsn):
    """E02: a full queue must not keep the other one waiting."""
    job, gate, started = gated()

    @gd.job(queue="other")
    async def quick(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with running(dsn, job, quick, concurrency=1) as engine:
        held = await engine.client.insert_many([job.with_args(n=n) for n in range(3)])
        await until(lambda: started)
        answer = await engine.client.insert(quick.with_args())
        await engine.client.result(answer.id, timeout=10)
        gate.set()
        for one in held:
            await engine.client.result(one.id, timeout=10)


async def test_an_idle_queue_claims_nothing(dsn):
    """With polls at a minute an idle engine asks for nothing at all."""
    job, _, _ = gated()
    async with running(dsn, job) as engine:
        picker = await at_rest(engine)
        before = picker.claims_total
        await asyncio.sleep(0.3)

        assert picker.claims_total == before


async def test_a_full_engine_claims_nothing(dsn):
    """Pokes while every slot is taken are remembered, not answered with statements."""
    job, gate, started = gated()
    async with running(dsn, job, concurrency=2) as engine:
        answers = await engine.client.insert_many([job.with_args(n=n) for n in range(6)])
        await until(lambda: len(started) == 2)
        picker = engine.parts.pickers["default"]
        before = picker.claims_total
        for _ in range(100):
            engine.parts.hub.poke("default")
            await asyncio.sleep(0.001)
        assert picker.claims_total == before
        gate.set()
        for answer in answers:
            await engine.client.result(answer.id, timeout=10)


async def test_a_burst_larger_than_a_claim_is_taken_without_waiting_for_polls(dsn, connection):
    """A full claim means that there is more."""

    @gd.job()
    async def quick(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with running(dsn, quick, concurrency=50) as engine:
        ids = ids_of(await engine.client.insert_many([quick.with_args() for _ in range(1000)]))
        await soon(engine.client.result(ids[-1], timeout=50))
        for instance_id in ids:
            await soon(engine.client.result(instance_id, timeout=50))

    assert await connection.fetchval("select count(*) from gendurable.gen_durable where claim = 1") == 1000


async def test_running_and_prefetched_rows_outlive_their_first_lease(dsn, connection):
    """E14: a step longer than the lease, and rows that wait behind it for longer, are the same claim to the end."""
    job, gate, started = gated()
    async with running(dsn, job, concurrency=1, prefetch=2, ttl_s=0.4, heartbeat_s=0.1) as engine:
        ids = ids_of(await engine.client.insert_many([job.with_args(n=n) for n in range(3)]))
        for instance_id in ids:
            row = await until_row(connection, instance_id, status="executing")
        query = "select clock_timestamp() > $1::timestamptz + interval '900 ms'"
        await until_true(connection, query, row["lease_expires_at"])
        gate.set()
        for instance_id in ids:
            await engine.client.result(instance_id, timeout=10)
        rows = [await row_of(connection, instance_id) for instance_id in ids]

    assert [(row["attempt"], row["crashes"], row["claim"]) for row in rows] == [(0, 0, 1)] * 3
    assert started == [0, 1, 2]


async def test_a_queue_is_not_dry_while_its_claim_is_under_way(dsn, connection):
    """``worker --drain`` ends when all queues are dry; what the claim brings is not known before it has answered."""
    job, gate, _ = gated()
    gate.set()
    async with running(dsn, job) as engine:
        picker = await at_rest(engine)
        await stall_claims(connection)
        try:
            answer = await engine.client.insert(job.with_args())
            await until_stalled(connection)
            assert not picker.is_dry
        finally:
            await let_claims_go(connection)
        await engine.client.result(answer.id, timeout=10)

        await until(lambda: picker.is_dry)


async def test_a_claim_that_is_refused_is_repeated_at_a_pace(dsn, connection, caplog):
    """A table without a column is no outage, but asking a hundred times a second for it would make it one."""
    job, gate, started = gated()
    gate.set()
    async with running(dsn, job, listens=False) as engine:
        picker = await at_rest(engine)
        before, since_s = picker.claims_total, time.monotonic()
        await connection.execute("alter table gendurable.gen_durable rename column started_at to gone")
        while time.monotonic() - since_s < 0.5:
            engine.parts.hub.poke("default")
            await asyncio.sleep(0.002)
        refused = picker.claims_total - before
        await connection.execute("alter table gendurable.gen_durable rename column gone to started_at")
        await engine.client.insert(job.with_args(n=1))
        await until(lambda: started == [1])

    assert 1 <= refused <= 4
    assert "a claim failed" in caplog.text
