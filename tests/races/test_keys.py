"""A concurrency key changes hands: whoever is held for it must be un-held by somebody, whatever meets whatever."""

import asyncio
import itertools

import pytest

from gendurable.errors import StoreContendedError
from gendurable.store.claims import SCAN_START
from tests.races import staging
from tests.races.staging import (
    LEASE_MS,
    add_executing,
    add_row,
    connected,
    done,
    goes_on,
    soon,
    stored,
    text_of,
    worker,
)

CLAIM = ("default", 10, "other", LEASE_MS, SCAN_START.priority, SCAN_START.eligible_at, SCAN_START.id, True, [])


class Flush:
    """The flush of R1, statement by statement on one session."""

    statements = ("begin", "update", "unhold", "commit")

    def __init__(self, connection, first_id):
        self.connection = connection
        self.first_id = first_id
        self.transaction = connection.transaction()

    async def begin(self):
        await self.transaction.start()

    async def update(self):
        arguments = ([self.first_id], [1], "me", ["done"], [None], [None], [0], [0], [None], [None], [None], [None])
        written = await self.connection.fetch(text_of("commit_outcomes"), *arguments, [None], [None], [False], [None])
        assert len(written) == 1

    async def unhold(self):
        await self.connection.fetch(text_of("unhold_keys"), ["k"])

    async def commit(self):
        await self.transaction.commit()


class Claim:
    """The claim that finds R2, and what it does afterwards about the keys it held rows for."""

    statements = ("begin", "claim", "commit", "settle")

    def __init__(self, connection, store):
        self.connection = connection
        self.store = store
        self.transaction = connection.transaction()
        self.changing = []

    async def begin(self):
        await self.transaction.start()

    async def claim(self):
        rows = await self.connection.fetch(text_of("claim_runnable"), *CLAIM)
        assert [row for row in rows if row["answer"] == "claimed"] in ([], rows[:1])
        self.changing = sorted({row["concurrency_key"] for row in rows if row["answer"] == "held"})

    async def commit(self):
        await self.transaction.commit()

    async def settle(self):
        if self.changing:
            _, self.changing = await self.store.settle_held_keys(self.changing)


ORDERS = [
    tuple("claim" if place in chosen else "flush" for place in range(8))
    for chosen in itertools.combinations(range(8), 4)
]


async def play(order, flush, claim):
    """Run the steps of both in this order."""
    left = {"flush": iter(flush.statements), "claim": iter(claim.statements)}
    for name in order:
        actor = flush if name == "flush" else claim
        await soon(getattr(actor, next(left[name]))())


@pytest.fixture(scope="module")
def shared_dsn(postgres, template_database):
    with staging.shared_database(postgres, template_database) as address:
        yield address


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "".join(name[0] for name in order))
async def test_a_row_held_while_its_key_is_let_go_is_runnable_in_the_end(shared_dsn, order):
    """L14: the race drawn at ``key_holders``, at every boundary: a row that nobody un-holds waits for ever."""
    async with connected(shared_dsn, 3) as (first, second, watcher), worker(shared_dsn, "other") as other:
        await watcher.execute(f"delete from {staging.TABLE}")
        holder = await add_executing(watcher, concurrency_key="k")
        waiting = await add_row(watcher, concurrency_key="k")
        flush, claim = Flush(first, holder), Claim(second, other.claims)

        await play(order, flush, claim)
        # A key that is changing hands is asked for again; here nothing goes on any more.
        await claim.settle()

        row = await stored(watcher, waiting)
        assert (row["status"], row["held"]) in {("runnable", False), ("executing", False)}
        assert claim.changing == []


async def test_without_asking_after_the_claim_the_row_stays_held(shared_dsn):
    """That the test above can fail: in this order the flush cannot see the row it would have to un-hold."""
    async with connected(shared_dsn, 3) as (first, second, watcher), worker(shared_dsn, "other") as other:
        await watcher.execute(f"delete from {staging.TABLE}")
        holder = await add_executing(watcher, concurrency_key="k")
        waiting = await add_row(watcher, concurrency_key="k")
        flush, claim = Flush(first, holder), Claim(second, other.claims)

        await play(("flush", "flush", "claim", "claim", "flush", "flush", "claim"), flush, claim)

        assert (await stored(watcher, waiting))["held"]
        assert await other.claims.orphaned_held_keys(keys_max=10) == ["k"]


async def test_a_key_that_is_being_let_go_is_neither_held_nor_free(shared_dsn):
    """L14: answering either would be wrong half of the time; the claim asks again instead of waiting for the flush."""
    async with connected(shared_dsn, 2) as (first, watcher), worker(shared_dsn, "other") as other:
        await watcher.execute(f"delete from {staging.TABLE}")
        flush = Flush(first, await add_executing(watcher, concurrency_key="k"))
        waiting = await add_row(watcher, concurrency_key="k", held=True)

        assert await other.claims.settle_held_keys(["k"]) == ([], [])
        await flush.begin()
        await flush.update()
        assert await soon(other.claims.settle_held_keys(["k"])) == ([], ["k"])
        assert (await stored(watcher, waiting))["held"]
        await flush.commit()
        assert await other.claims.settle_held_keys(["k"]) == (["default"], [])
        assert not (await stored(watcher, waiting))["held"]


async def test_two_claims_of_one_key_collide_and_leave_unkeyed_work_to_both(shared_dsn):
    """L13: the loser of a race over a key has claimed nothing, and takes what has no key at once."""
    async with connected(shared_dsn, 2) as (first, watcher), worker(shared_dsn, "other") as other:
        await watcher.execute(f"delete from {staging.TABLE}")
        keyed = [await add_row(watcher, concurrency_key="k") for _ in range(2)]
        transaction = first.transaction()
        await transaction.start()
        # The first session takes one row only, so that the other's claim meets the key and not the rows.
        await first.fetch(text_of("claim_runnable"), CLAIM[0], 1, "first", *CLAIM[3:])
        plain = await add_row(watcher)

        claiming = asyncio.ensure_future(other.claim())
        await asyncio.wait([claiming], timeout=0.05)
        assert not claiming.done(), "the unique index makes the second claim wait for the first one's commit"
        await transaction.commit()
        with pytest.raises(StoreContendedError) as caught:
            await soon(claiming)
        again = await other.claim(with_keys=False)
        answer = await other.claims.claim_runnable(queue="default", rows_max=10, lease_ttl_ms=LEASE_MS)

        assert caught.value.constraint == "gen_durable_concurrency_active"
        assert [claim.id for claim in again] == [plain]
        assert (answer.claims, answer.held_keys) == ([], ["k"])
        assert [(await stored(watcher, row))["held"] for row in keyed] == [False, True]


async def test_a_key_goes_from_row_to_row_in_their_order(shared_dsn):
    """E05, E23: each end gives the key to the next row by priority and age, in the transaction that frees it."""
    async with connected(shared_dsn, 1) as (watcher,), worker(shared_dsn) as me:
        await watcher.execute(f"delete from {staging.TABLE}")
        ids = [await add_row(watcher, concurrency_key="k", priority=priority) for priority in (5, 3, 3, 0)]
        ran = []
        for _ in ids:
            (claim,) = await me.claim()
            ran.append(claim.id)
            answer = await me.outcomes.commit([done(claim.id, claim.claim, held_key="k")])

        assert ran == [ids[3], ids[1], ids[2], ids[0]]
        assert answer.unheld_queues == []


@pytest.mark.parametrize("way", ["release", "reap", "stale", "new key", "slow lane"])
async def test_every_exit_passes_the_key_on(shared_dsn, way):
    """E23: the next row waits for nobody's poll, whichever way the holder goes, and not at all if it does not go."""
    async with connected(shared_dsn, 1) as (watcher,), worker(shared_dsn) as me:
        await watcher.execute(f"delete from {staging.TABLE}")
        first, second = [await add_row(watcher, concurrency_key="k", priority=priority) for priority in (0, 1)]
        (claim,) = await me.claim()
        assert claim.id == first
        assert (await stored(watcher, second))["held"]

        if way == "release":
            await me.claims.release_claims([claim], delays_ms=[60_000])
        elif way == "reap":
            await watcher.execute(f"update {staging.TABLE} set lease_expires_at = now() where id = $1", first)
            await me.leases.reap_expired(rows_max=10, crashes_max=5, patience_ms=0)
        elif way == "stale":
            await me.outcomes.commit([done(first, claim.claim + 1, held_key="k")])
        elif way == "new key":
            moved = goes_on(
                first, claim.claim, held_key="k", is_key_changed=True, concurrency_key="other", delay_ms=60_000
            )
            await me.outcomes.commit([moved])
        else:
            await me.outcomes.commit_waiting(done(first, claim.claim, held_key="k"), lock_wait_ms=1000)

        assert (await stored(watcher, second))["held"] is (way == "stale")


async def test_rows_of_two_keys_run_side_by_side_and_one_key_without_a_key_does_not_count(shared_dsn):
    """E06, E07: one row of each key, and every row without one; a key that spells an id is not that row."""
    async with connected(shared_dsn, 1) as (watcher,), worker(shared_dsn) as me:
        await watcher.execute(f"delete from {staging.TABLE}")
        first_id = await watcher.fetchval("select nextval(pg_get_serial_sequence('gendurable.gen_durable', 'id'))") + 1
        keys = [None, "k", "k", "k", "k2", None, str(first_id)]
        ids = [await add_row(watcher, concurrency_key=key) for key in keys]
        assert ids[0] == first_id

        answer = await me.claims.claim_runnable(queue="default", rows_max=100, lease_ttl_ms=LEASE_MS)
        later = await me.claim()

        assert [claim.id for claim in answer.claims] == [ids[0], ids[1], ids[4], ids[5], ids[6]]
        assert answer.held_keys == ["k"]
        assert later == []
