"""Concurrency keys on a running engine: one at a time for a key, everything else beside it."""

import asyncio

import gendurable as gd
from gendurable.settings import PoolSettings
from tests.runtime.running import at_rest, ids_of, row_of, running, soon, until, until_row


async def test_steps_of_one_key_never_overlap_and_keys_run_beside_each_other(dsn, connection):
    """E05: four read-sleep-write steps of one key count to four, while those of two keys overlap in time."""
    await connection.execute("create table counters (name text primary key, n int not null)")
    await connection.execute("insert into counters values ('k', 0)")

    @gd.job()
    async def add(_ctx: gd.Context) -> None:
        async with engine.client.database.connection() as own:
            n = await own.fetchval("select n from counters where name = 'k'")
            await asyncio.sleep(0.02)
            await own.execute("update counters set n = $1 where name = 'k'", n + 1)

    both = asyncio.Barrier(2)

    @gd.job()
    async def meet(_ctx: gd.Context) -> None:
        await soon(both.wait())

    async with running(dsn, add, meet) as engine:
        adding = await engine.client.insert_many([add.with_args() for _ in range(4)], concurrency_key="k")
        meeting = [await engine.client.insert(meet.with_args(), concurrency_key=key) for key in ("ka", "kb")]
        for answer in [*adding, *meeting]:
            assert (await engine.client.wait(answer.id, timeout=10)).status == "done"

    assert await connection.fetchval("select n from counters") == 4


async def test_a_key_held_for_long_delays_nothing_else(dsn, connection):
    """Rows behind a busy key are held back, so that they take no place in a claim from work that can run."""
    may_end, started = asyncio.Event(), asyncio.Event()

    @gd.job()
    async def hold(_ctx: gd.Context) -> None:
        started.set()
        await may_end.wait()

    @gd.job()
    async def plain(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with running(dsn, hold, plain, concurrency=4) as engine:
        held = ids_of(await engine.client.insert_many([hold.with_args() for _ in range(20)], concurrency_key="k"))
        await soon(started.wait())
        others = ids_of(await engine.client.insert_many([plain.with_args() for _ in range(20)]))
        for instance_id in others:
            await engine.client.result(instance_id, timeout=10)
        assert engine.parts.executors["default"].running == 1
        assert (await row_of(connection, held[0]))["status"] == "executing"
        may_end.set()
        for instance_id in held:
            await engine.client.result(instance_id, timeout=10)


async def test_rows_of_a_key_run_in_their_order(dsn):
    """A customer's second change must not overtake the first."""
    order: list[int] = []

    @gd.job()
    async def note(_ctx: gd.Context, n: int) -> None:
        order.append(n)
        await asyncio.sleep(0)

    async with running(dsn, note) as engine:
        requests = [note.with_args(n=n).with_options(concurrency_key=f"k{n % 2}") for n in range(20)]
        for answer in await engine.client.insert_many(requests):
            await engine.client.result(answer.id, timeout=10)

    assert [n for n in order if n % 2] == list(range(1, 20, 2))
    assert [n for n in order if not n % 2] == list(range(0, 20, 2))


async def test_next_may_take_change_and_give_up_a_key(dsn):
    """The key belongs to the step that needs it; the next row gets it the moment it is given up."""
    seen: list[tuple[str, str | None]] = []
    may_end = asyncio.Event()

    class Keyed(gd.Machine[dict]):
        @gd.step
        async def take(self, ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append((ctx.step, ctx.concurrency_key))
            return gd.Next(self.keep, concurrency_key="mine")

        @gd.step
        async def keep(self, ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append((ctx.step, ctx.concurrency_key))
            return gd.Next(self.give)

        @gd.step
        async def give(self, ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append((ctx.step, ctx.concurrency_key))
            return gd.Next(self.rest, concurrency_key=None)

        @gd.step
        async def rest(self, ctx: gd.Context[dict]) -> gd.Outcome:
            seen.append((ctx.step, ctx.concurrency_key))
            await may_end.wait()
            return gd.Done()

    @gd.job()
    async def other(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with running(dsn, Keyed, other) as engine:
        answer = await engine.client.insert(Keyed.with_state())
        await until(lambda: len(seen) == 4)
        await engine.client.result(
            (await engine.client.insert(other.with_args(), concurrency_key="mine")).id, timeout=10
        )
        may_end.set()
        await engine.client.result(answer.id, timeout=10)

    assert seen == [("take", None), ("keep", "mine"), ("give", "mine"), ("rest", None)]


async def test_ten_keyed_steps_that_wait_do_not_starve_statements(dsn):
    """E11: a step holds no connection, so a pool of two serves everybody else meanwhile."""
    all_run, may_end = asyncio.Barrier(11), asyncio.Event()

    @gd.job()
    async def wait(_ctx: gd.Context) -> None:
        await all_run.wait()
        await may_end.wait()

    @gd.job()
    async def plain(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with running(dsn, wait, plain, concurrency=20, pool=PoolSettings(min=1, max=2)) as engine:
        requests = [wait.with_args().with_options(concurrency_key=f"k{n}") for n in range(10)]
        keyed = await engine.client.insert_many(requests)
        await soon(all_run.wait())
        for _ in range(5):
            answer = await engine.client.insert(plain.with_args())
            await engine.client.result(answer.id, timeout=10)
        may_end.set()
        for answer in keyed:
            await engine.client.result(answer.id, timeout=10)


async def test_a_failing_row_passes_its_key_on(dsn, connection):
    """A retry far in the future must not keep the key for itself meanwhile."""

    @gd.job(backoff=lambda _attempt: 3600.0)
    async def flaky(_ctx: gd.Context, n: int) -> None:
        if n == 0:
            raise ZeroDivisionError

    async with running(dsn, flaky) as engine:
        first, second = ids_of(
            await engine.client.insert_many([flaky.with_args(n=n) for n in (0, 1)], concurrency_key="k")
        )
        await engine.client.result(second, timeout=10)
        row = await until_row(connection, first, attempt=1)

    assert (row["status"], row["held"]) == ("runnable", False)


async def test_two_engines_share_a_key_without_overlap_or_stall(dsn):
    """The unique index decides between processes; the loser's work must go on at once, polls or not."""
    inside, peak, total = 0, 0, 0

    @gd.job()
    async def one(_ctx: gd.Context) -> None:
        nonlocal inside, peak, total
        inside += 1
        peak = max(peak, inside)
        await asyncio.sleep(0)
        inside -= 1
        total += 1

    async with running(dsn, one) as left, running(dsn, one) as right:
        clients = [left.client, right.client] * 20
        answers = [await client.insert(one.with_args(), concurrency_key="k") for client in clients]
        for answer in answers:
            await left.client.result(answer.id, timeout=10)

    assert (peak, total) == (1, 40)


async def test_a_key_that_a_drain_lets_go_wakes_the_queue_of_its_next_row(dsn, connection):
    """The row that gets the key may wait in a queue only other processes serve, and nobody else would tell them."""
    started = asyncio.Event()

    @gd.job(queue="here")
    async def hold(_ctx: gd.Context) -> None:
        started.set()
        await asyncio.Event().wait()

    @gd.job(queue="there")
    async def follow(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with running(dsn, follow) as second:
        async with running(dsn, hold, drain_timeout_s=0.05) as first:
            await first.client.insert(hold.with_args(), concurrency_key="k")
            await soon(started.wait())
            answer = await second.client.insert(follow.with_args(), concurrency_key="k")
            await until_row(connection, answer.id, held=True)
            await at_rest(second, "there")

        assert (await second.client.wait(answer.id, timeout=10)).status == "done"
