"""Four pickers of four processes on one deep backlog, each with its own idea of where to go on."""

import asyncio
import time
from random import Random

import pytest

from gendurable.metrics import Metrics
from gendurable.runtime.holdings import Holdings
from gendurable.runtime.left import Left
from gendurable.runtime.owed import Owed
from gendurable.runtime.picker import Picker
from gendurable.runtime.picking import Pace
from gendurable.settings import QueueSettings
from tests.races.staging import LEASE_MS, TABLE, add_many, add_row, connected, done, shared_database, soon, worker
from tests.runtime.running import until

BACKLOG = 300_000
PROMISE_S = 0.15
"""Far past it is ten times as long: the machine under the tests is not the promise's."""


class Slots:
    """Takes rows and ends them at once, as an executor of no-op steps would; tells when a sought row came."""

    def __init__(self, one):
        self.one = one
        self.unflushed = 0
        self.running = 0
        self.waiting = 0
        self.pace = Pace()
        self.claimed = 0
        self.sought: dict[int, asyncio.Future[float]] = {}
        self.tasks = set()
        self.wake = lambda: None

    def submit(self, claims):
        for claim in claims:
            seeker = self.sought.get(claim.id)
            if seeker is not None and not seeker.done():
                seeker.set_result(time.monotonic())
        self.claimed += len(claims)
        if claims:
            self.running += len(claims)
            task = asyncio.get_running_loop().create_task(self.end(claims))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return Left()

    def start_suspect(self):
        return False

    async def end(self, claims):
        await self.one.outcomes.commit(sorted((done(row.id, row.claim) for row in claims), key=lambda entry: entry.id))
        self.running -= len(claims)
        self.wake()

    def on_free(self, wake):
        self.wake = wake


def picker(one, slots):
    return Picker(
        queue="default",
        settings=QueueSettings(concurrency=500, prefetch=0, claim_max=500, poll_interval_s=60),
        lease_ttl_ms=LEASE_MS,
        store=one.claims,
        executor=slots,
        holdings=Holdings(),
        owed=Owed(
            claims=one.claims,
            leases=one.leases,
            retry_max_s=60,
            metrics=Metrics(),
            rng=Random(1),
            on_runnable=lambda _queue, _due_in_s: None,
        ),
        metrics=Metrics(),
        rng=Random(1),
        unflushed_max=5000,
        on_runnable=lambda _queue, _due_in_s: None,
    )


@pytest.fixture(scope="module")
def backlog_dsn(postgres, template_database):
    async def load(dsn):
        async with connected(dsn, 1) as (connection,):
            await add_many(connection, BACKLOG)

    with shared_database(postgres, template_database) as dsn:
        asyncio.run(load(dsn))
        yield dsn


async def test_an_urgent_and_a_returned_row_are_claimed_soon_under_a_backlog(backlog_dsn):
    """E45a, L15: both lie before the place where every picker goes on, and nobody tells the pickers."""
    delays_s = []
    async with (
        worker(backlog_dsn, "a") as a,
        worker(backlog_dsn, "b") as b,
        worker(backlog_dsn, "c") as c,
        worker(backlog_dsn, "d") as d,
        worker(backlog_dsn, "other") as other,
        connected(backlog_dsn, 1) as (caller,),
    ):
        held_back = await other.claim(3)
        all_slots = [Slots(one) for one in (a, b, c, d)]
        pickers = [picker(slots.one, slots) for slots in all_slots]
        loops = [asyncio.ensure_future(one.run()) for one in pickers]
        try:
            for claim in held_back:
                await until(lambda: min(slots.claimed for slots in all_slots) >= 2000)
                for come_back in (False, True):
                    found = asyncio.get_running_loop().create_future()
                    if come_back:
                        row_id = claim.id
                        for slots in all_slots:
                            slots.sought[row_id] = found
                        await other.claims.release_claims([claim], delays_ms=[None])
                        since_s = time.monotonic()
                    else:
                        async with caller.transaction():
                            row_id = await add_row(caller, priority=-1)
                            for slots in all_slots:
                                slots.sought[row_id] = found
                        since_s = time.monotonic()
                    delays_s.append(await soon(found) - since_s)
            left = await caller.fetchval(f"select count(*) from {TABLE} where status = 'runnable'")
        finally:
            for one in pickers:
                one.drain()
            await soon(asyncio.gather(*loops))
            for slots in all_slots:
                await soon(asyncio.gather(*slots.tasks))

    # The backlog was there all the time: a picker that had merely come to the end of it would prove nothing.
    assert left > 1000
    assert max(delays_s) < 10 * PROMISE_S, delays_s


class FullSlots(Slots):
    """Takes no more after its first row, which keeps the loop busy for longer than the next one is away."""

    def submit(self, claims):
        self.claimed += len(claims)
        if self.claimed == 1:
            time.sleep(0.3)
            self.unflushed = 5000
        return Left()

    def flushed(self):
        self.unflushed = 0
        self.wake()


async def test_a_row_that_came_due_unseen_is_claimed_when_there_is_room_again(dsn):
    """The queue was empty when it was last looked at, and its next row came due before the loop could sleep for it."""
    async with worker(dsn) as me, connected(dsn, 1) as (caller,):
        await caller.execute(
            f"insert into {TABLE} (fsm, step, eligible_at)"
            " values ('machine', 'run', now()), ('machine', 'run', now() + interval '0.2 s')"
        )
        slots = FullSlots(me)
        one = picker(me, slots)
        loop = asyncio.ensure_future(one.run())
        await until(lambda: one._is_full)
        assert slots.claimed == 1
        slots.flushed()

        await until(lambda: slots.claimed == 2)
        one.drain()
        await soon(loop)
