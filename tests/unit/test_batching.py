"""The batcher behind insert_async: back-pressure, bad rows, outages and the close."""

import asyncio

import pytest

import gendurable as gd
from gendurable.batching import InsertBatcher
from gendurable.errors import (
    BatcherClosedError,
    StoreContendedError,
    StoreDataError,
    StoreUnavailableError,
    StoreUnreachableError,
)
from tests.runtime.running import count_rows, soon, until


@gd.job()
async def quick(_ctx: gd.Context, n: int = 0) -> None:
    """Do nothing."""


def request(n: int) -> gd.Request:
    return quick.with_args(n=n)


class Writer:
    """Writes nothing, but remembers, and fails as told; ids are the places in ``written``."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.written: list[str] = []
        self.errors: list[Exception] = []
        self.refused: set[str] = set()
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def __call__(self, requests):
        await self.may_write.wait()
        states = [one.state for one in requests]
        self.batches.append(states)
        if self.errors:
            raise self.errors.pop(0)
        if self.refused.intersection(states):
            raise StoreDataError("one of them is refused")
        self.written.extend(states)
        return [gd.Inserted(self.written.index(state)) for state in states]


async def test_rows_of_many_callers_are_written_together_and_answered_each():
    """The whole point: a thousand callers, a few statements."""
    writer = Writer()
    batcher = InsertBatcher(writer)

    futures = await asyncio.gather(*(batcher.put(request(n)) for n in range(500)))
    answers = await asyncio.gather(*futures)
    await batcher.close()

    assert [answer.id for answer in answers] == [writer.written.index(request(n).state) for n in range(500)]
    assert len(writer.batches) <= 2


async def test_a_batch_has_a_maximum():
    """A statement of any size would block the others for any time."""
    writer = Writer()
    batcher = InsertBatcher(writer, rows_max=10)

    for n in range(35):
        await batcher.put(request(n))
    await batcher.close()

    assert max(map(len, writer.batches)) == 10
    assert len(writer.written) == 35


async def test_a_full_buffer_makes_the_caller_wait():
    """Memory is bounded: a producer faster than the database is slowed down to its pace."""
    writer = Writer()
    writer.may_write.clear()
    batcher = InsertBatcher(writer, rows_max=5, buffer_rows_max=10)

    async def produce() -> int:
        for n in range(40):
            await batcher.put(request(n))
            produced.append(n)
        return len(produced)

    produced: list[int] = []
    producing = asyncio.create_task(produce())
    await until(lambda: len(produced) >= 15)
    await asyncio.sleep(0.05)
    assert len(produced) == 15
    writer.may_write.set()
    assert await soon(producing) == 40
    await batcher.close()
    assert len(writer.written) == 40


async def test_one_bad_row_costs_only_itself():
    """Its caller hears of it; the others of its batch never know."""
    writer = Writer()
    writer.refused = {request(17).state, request(40).state}
    batcher = InsertBatcher(writer)

    futures = [await batcher.put(request(n)) for n in range(64)]
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    with pytest.raises(BatcherClosedError, match="2 rows"):
        await batcher.close()

    assert [n for n, outcome in enumerate(outcomes) if isinstance(outcome, StoreDataError)] == [17, 40]
    assert len(writer.written) == 62


async def test_a_database_that_cannot_be_reached_is_tried_again():
    """Nothing was sent, so sending it again cannot write it twice."""
    writer = Writer()
    writer.errors = [StoreUnreachableError("away"), StoreContendedError("race", constraint="deadlock")]
    batcher = InsertBatcher(writer)

    answer = await soon(await batcher.put(request(1)))
    await batcher.close()

    assert isinstance(answer, gd.Inserted)
    assert len(writer.batches) == 3


@pytest.mark.parametrize("error", [StoreUnavailableError("lost on the way"), KeyError("a bug")])
async def test_rows_that_may_have_been_written_are_not_written_again_but_told(error):
    """Twice would be worse than a caller who has to look."""
    writer = Writer()
    writer.errors = [error]
    batcher = InsertBatcher(writer)

    futures = [await batcher.put(request(n)) for n in range(3)]
    outcomes = await soon(asyncio.gather(*futures, return_exceptions=True))
    again = await soon(await batcher.put(request(9)))
    with pytest.raises(BatcherClosedError, match="3 rows"):
        await batcher.close()

    assert outcomes == [error] * 3
    assert isinstance(again, gd.Inserted)
    assert len(writer.batches) == 2


async def test_races_that_never_end_are_told():
    """A batcher that tried for ever would hide a broken key."""
    writer = Writer()
    writer.errors = [StoreContendedError("race", constraint="deadlock") for _ in range(100)]
    batcher = InsertBatcher(writer)

    future = await batcher.put(request(1))
    with pytest.raises(StoreContendedError):
        await soon(future)
    with pytest.raises(BatcherClosedError):
        await batcher.close()

    assert len(writer.batches) == 5


async def test_the_close_writes_what_is_left_and_takes_nothing_more():
    """The last rows before the end of a process are rows like any other."""
    writer = Writer()
    batcher = InsertBatcher(writer, linger_s=60)
    futures = [await batcher.put(request(n)) for n in range(100)]

    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0)
    with pytest.raises(BatcherClosedError):
        await batcher.put(request(100))
    await soon(closing)

    assert len(writer.written) == 100
    assert all(future.done() for future in futures)


async def test_a_close_that_cannot_write_tells_every_caller():
    """Nothing is lost silently, not even when the database never comes back."""
    writer = Writer()
    writer.may_write.clear()
    batcher = InsertBatcher(writer, rows_max=2)
    futures = [await batcher.put(request(n)) for n in range(5)]

    with pytest.raises(BatcherClosedError, match="5 rows"):
        await batcher.close(timeout_s=0.05)

    outcomes = await soon(asyncio.gather(*futures, return_exceptions=True))
    assert all(isinstance(outcome, BatcherClosedError) for outcome in outcomes)


async def test_a_caller_waiting_for_room_is_told_of_the_close():
    """It handed nothing over yet; it must neither hang nor believe that its row was taken."""
    writer = Writer()
    writer.may_write.clear()
    batcher = InsertBatcher(writer, rows_max=1, buffer_rows_max=1)
    await batcher.put(request(0))
    await until(batcher._queue.empty)
    await batcher.put(request(1))
    waiting = asyncio.create_task(batcher.put(request(2)))
    await asyncio.sleep(0.01)

    with pytest.raises(BatcherClosedError):
        await batcher.close(timeout_s=0.05)
    outcome = (await soon(asyncio.gather(waiting, return_exceptions=True)))[0]

    if isinstance(outcome, asyncio.Future):
        outcome = (await soon(asyncio.gather(outcome, return_exceptions=True)))[0]
    assert isinstance(outcome, BatcherClosedError)


async def test_cancelled_futures_do_not_stop_the_others():
    """A caller who gave up on the answer is no reason to lose somebody else's."""
    writer = Writer()
    batcher = InsertBatcher(writer)
    futures = [await batcher.put(request(n)) for n in range(3)]
    futures[1].cancel()

    await soon(asyncio.gather(futures[0], futures[2]))
    await batcher.close()
    assert len(writer.written) == 3


async def test_closing_an_unused_batcher_is_nothing():
    """Most clients never use it."""
    await InsertBatcher(Writer()).close()


async def test_the_clients_rows_reach_the_table(dsn, connection):
    """The same on a real table: mixed options, duplicates and a parent that does not exist."""
    async with gd.Client(dsn) as client:
        plain = [await client.insert_async(request(n)) for n in range(50)]
        keyed = [await client.insert_async(request(n), correlation_key="k") for n in range(3)]
        orphan = await client.insert_async(request(0), parent_id=404)
        answers = await soon(asyncio.gather(*plain, *keyed))
        with pytest.raises(StoreDataError):
            await soon(orphan)
        client._batcher._failed = 0

    assert [type(answer) for answer in answers[50:]] == [gd.Inserted, gd.Duplicate, gd.Duplicate]
    assert {answer.id for answer in answers[50:]} == {answers[50].id}
    assert await count_rows(connection) == 51
