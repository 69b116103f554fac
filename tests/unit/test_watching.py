"""The watcher behind wait(): its looks, its pace and what it remembers."""

import asyncio

import pytest

from gendurable.errors import NotFoundError, StoreUnavailableError
from gendurable.watching import IDS_MAX, InstanceWatcher
from tests.runtime.running import soon, until


class Rows:
    """Instances that end when told; counts the looks."""

    def __init__(self) -> None:
        self.ended: dict[int, bool] = {}
        self.looks: list[int] = []
        self.errors: list[Exception] = []

    async def watch(self, instance_ids):
        self.looks.append(len(instance_ids))
        if self.errors:
            raise self.errors.pop(0)
        return {i: self.ended[i] for i in instance_ids if i in self.ended}


async def test_an_end_is_seen_by_a_look():
    """Whoever ended it, and however."""
    rows = Rows()
    watcher = InstanceWatcher(rows)
    waiting = asyncio.create_task(watcher.wait_ended(7, timeout_s=50))
    await until(lambda: rows.looks)
    rows.ended[7] = True

    assert await soon(waiting)
    assert watcher.waiting == 0


async def test_an_end_of_this_process_needs_no_look():
    """The engine next door tells it, so the answer costs no statement."""
    rows = Rows()
    watcher = InstanceWatcher(rows)
    waiting = asyncio.create_task(watcher.wait_ended(7, timeout_s=50))
    await asyncio.sleep(0)
    watcher.note_ended(7)
    watcher.note_ended(8)

    assert await soon(waiting)
    assert rows.looks == []


async def test_one_that_is_gone_is_not_found():
    """Waiting for it until the timeout would hide that."""
    rows = Rows()
    rows.ended[7] = False
    with pytest.raises(NotFoundError):
        await soon(InstanceWatcher(rows).wait_ended(7, timeout_s=50))


async def test_a_lost_look_is_made_up_for():
    """An outage of the database must not end the wait."""
    rows = Rows()
    rows.errors = [StoreUnavailableError("away")]
    rows.ended[7] = True

    assert await soon(InstanceWatcher(rows).wait_ended(7, timeout_s=50))
    assert len(rows.looks) == 2


async def test_nobody_waiting_nothing_is_looked_at():
    """E69: an idle client is silent."""
    rows = Rows()
    watcher = InstanceWatcher(rows)
    assert not await watcher.wait_ended(7, timeout_s=0.02)
    await until(watcher._loop.done)
    before = len(rows.looks)
    await asyncio.sleep(0.1)

    assert (len(rows.looks), watcher._waiters) == (before, {})


async def test_the_pace_slows_down_and_starts_fast_again_for_a_new_caller():
    """A long wait is cheap, and a short job behind it is still answered fast."""
    rows = Rows()
    watcher = InstanceWatcher(rows)
    long = asyncio.create_task(watcher.wait_ended(1, timeout_s=50))
    await asyncio.sleep(0.5)
    assert len(rows.looks) < 30
    rows.ended[2] = True
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert await soon(watcher.wait_ended(2, timeout_s=50))
    assert loop.time() - started_s < 0.5
    rows.ended[1] = True
    assert await soon(long)


async def test_a_look_has_a_maximum():
    """Ten thousand waits are ten statements, not one of any size."""
    rows = Rows()
    watcher = InstanceWatcher(rows)
    waits = [asyncio.create_task(watcher.wait_ended(n, timeout_s=50)) for n in range(2 * IDS_MAX + 1)]
    await until(lambda: len(rows.looks) >= 3)
    rows.ended = dict.fromkeys(range(2 * IDS_MAX + 1), True)

    assert all(await soon(asyncio.gather(*waits)))
    assert max(rows.looks) == IDS_MAX


async def test_closing_answers_not_yet():
    """E68: never an error, never a hang."""
    watcher = InstanceWatcher(Rows())
    waits = [asyncio.create_task(watcher.wait_ended(n, timeout_s=50)) for n in (1, 1, 2)]
    await until(lambda: watcher.waiting == 2)
    await watcher.close()

    assert await soon(asyncio.gather(*waits)) == [False] * 3
    assert watcher.waiting == 0
