"""Callers hold rows for as long as they like; workers must neither wait for them nor lose anything by it."""

import asyncio

import pytest

import gendurable as gd
from gendurable.errors import StoreContendedError
from tests.races.staging import (
    LEASE_MS,
    TABLE,
    add_executing,
    add_row,
    closed_gate,
    connected,
    done,
    goes_on,
    pause_between_rows,
    soon,
    statuses,
    stored,
    text_of,
    until_waiting,
    worker,
)

SIGNAL = "insert into gendurable.signals (target_id, name, payload) values ($1, 'go', '1')"
LOCK = f"select from {TABLE} where id = $1 for no key update"


@pytest.fixture
async def me(dsn):
    async with worker(dsn) as one:
        yield one


async def test_a_callers_open_transaction_delays_only_the_outcome_of_its_own_row(connection, dsn, me):
    """E23a, L1: 199 outcomes commit meanwhile, the busy one right after the caller's commit, and nobody is reaped."""
    ids = [await add_executing(connection, lease_expires_at="=now() - interval '1 s'") for _ in range(200)]
    await me.leases.register_node(queues=["default"], lease_ttl_ms=LEASE_MS)
    batch = [done(row_id) if row_id % 2 else goes_on(row_id) for row_id in ids]
    async with connected(dsn, 1) as (caller,):
        transaction = caller.transaction()
        await transaction.start()
        # A delivery locks its target and writes to its inbox; the caller came to rows 3 and then 2.
        for row_id in (ids[0], ids[2], ids[1]):
            await caller.execute(LOCK, row_id)
            await caller.execute(SIGNAL, row_id)

        answer = await soon(me.outcomes.commit(batch))
        owned = await me.outcomes.still_owned(batch)
        renewed = await soon(me.leases.renew_leases(dict.fromkeys(ids[:3], 1), lease_ttl_ms=LEASE_MS))
        reaped = await soon(me.leases.reap_expired(rows_max=500, crashes_max=5, patience_ms=LEASE_MS))
        slowly = [
            asyncio.ensure_future(me.outcomes.commit_waiting(batch[place], lock_wait_ms=9000)) for place in (0, 1)
        ]
        await asyncio.wait(slowly, timeout=0.02)
        assert not any(task.done() for task in slowly)
        await transaction.commit()
        answers = await soon(asyncio.gather(*slowly))

    assert sorted(answer.statuses) == ids[3:]
    assert (owned, renewed, reaped) == (set(ids[:3]), {}, [])
    assert [one.statuses.keys() for one in answers] == [{ids[0]}, {ids[1]}]
    assert "executing" not in await statuses(connection, ids[:2])


async def test_the_slow_lane_waits_a_bounded_time_and_writes_nothing_then(connection, dsn, me):
    """L1: a caller that never commits costs one connection for a while, not for ever."""
    row_id = await add_executing(connection)
    async with connected(dsn, 1) as (caller,), caller.transaction():
        await caller.execute(LOCK, row_id)

        with pytest.raises(StoreContendedError) as caught:
            await soon(me.outcomes.commit_waiting(done(row_id), lock_wait_ms=50))

    assert caught.value.constraint == "lock_timeout"
    assert await statuses(connection, [row_id]) == ["executing"]
    async with me.database.connection() as pooled:
        assert await pooled.fetchval("show lock_timeout") == "0"


async def stall(connection, session, row_id):
    """Make a session's updates wait at the gate when they come to a row."""
    await pause_between_rows(connection, session=session, row_id=row_id)


COMMIT = ([None], [None], [0], [0], [None], [None], [None], [None], [None], [None], [False], [None])


def flush_arguments(ids):
    count = len(ids)
    one_each = [column * count for column in COMMIT]
    return (ids, [1] * count, "me", ["runnable"] * count, *one_each)


@pytest.mark.parametrize("order", ["opposite", "same"])
async def test_a_flush_stopped_between_two_rows_does_not_deadlock_with_a_caller(connection, dsn, order):
    """E19, L1: the flush has row 1 and comes to row 3, the caller has 3 and wants 1; the flush gives way."""
    ids = [await add_executing(connection) for _ in range(3)]
    await stall(connection, "flushing", ids[0])
    async with connected(dsn, 3) as (flusher, caller, keeper):
        await flusher.execute("set application_name = 'flushing'")
        transaction = caller.transaction()
        await transaction.start()
        if order == "opposite":
            await caller.execute(LOCK, ids[2])
        async with closed_gate(keeper):
            flushing = asyncio.ensure_future(flusher.fetch(text_of("commit_outcomes"), *flush_arguments(ids)))
            await until_waiting(connection, flusher)
            wanting = asyncio.ensure_future(caller.fetch(text_of("cancel_instance"), ids[0], None, "not wanted"))
            await until_waiting(connection, caller, kind="any")
        written = await soon(flushing)
        await soon(wanting)
        if order == "same":
            await caller.fetch(text_of("cancel_instance"), ids[2], None, "not wanted")
        await transaction.commit()

    left_out = [ids[2]] if order == "opposite" else []
    assert sorted(row["id"] for row in written) == [row_id for row_id in ids if row_id not in left_out]


async def test_waiting_instead_of_skipping_would_deadlock(connection, dsn):
    """That the test above can fail: the same meeting, with a flush that waits for the rows it cannot have."""
    ids = [await add_executing(connection) for _ in range(3)]
    waiting_text = text_of("commit_outcomes").replace(" skip locked", "")
    await stall(connection, "flushing", ids[0])
    async with connected(dsn, 3) as (flusher, caller, keeper):
        await flusher.execute("set application_name = 'flushing'; set deadlock_timeout = '20ms'")
        transaction = caller.transaction()
        await transaction.start()
        await caller.execute("set local deadlock_timeout = '10s'")
        await caller.execute(LOCK, ids[2])
        async with closed_gate(keeper):
            flushing = asyncio.ensure_future(flusher.fetch(waiting_text, *flush_arguments(ids)))
            # With all locks taken first the flush waits for row 3; else at the gate, with row 1 written.
            await until_waiting(connection, flusher, kind="any")
            wanting = asyncio.ensure_future(caller.fetch(text_of("cancel_instance"), ids[0], None, "not wanted"))
            await until_waiting(connection, caller, kind="any")
        with pytest.raises(Exception, match="deadlock detected"):
            await soon(flushing)
        await soon(wanting)
        await transaction.rollback()


@pytest.mark.parametrize("comer", ["renew_leases", "reap_expired", "release_claims", "commit_done"])
async def test_whoever_meets_a_flush_between_its_rows_goes_the_other_way_round(connection, dsn, comer):
    """E19: two statements of workers on the same rows, each stopped in the middle, in opposite orders."""
    ids = [await add_executing(connection, lease_expires_at="=now() - interval '1 s'") for _ in range(4)]
    await stall(connection, "flushing", ids[0])
    await stall(connection, "coming", ids[3])
    arguments = {
        "renew_leases": (ids[::-1], [1] * 4, "me", LEASE_MS),
        "reap_expired": (10, 5, 0),
        "release_claims": (ids[::-1], [1] * 4, "me", [None] * 4),
        "commit_done": (ids[::-1], [1] * 4, "me", [None] * 4),
    }[comer]
    async with connected(dsn, 3) as (flusher, other, keeper):
        await flusher.execute("set application_name = 'flushing'")
        await other.execute("set application_name = 'coming'")
        async with closed_gate(keeper):
            coming = asyncio.ensure_future(other.fetch(text_of(comer), *arguments))
            await until_waiting(connection, other)
            flushing = asyncio.ensure_future(flusher.fetch(text_of("commit_outcomes"), *flush_arguments(ids)))
            await asyncio.wait([flushing], timeout=0.05)
        answers = await soon(asyncio.gather(coming, flushing))

    written = [{row["id"] for row in answer} for answer in answers]
    assert written[0] | written[1] == set(ids)
    assert written[0] & written[1] == set()


async def test_a_cancel_of_an_executing_row_waits_for_nothing_but_the_row(connection, dsn, me):
    """The caller marks it and goes; the worker's heartbeat tells, and the next commit ends it."""
    row_id = await add_executing(connection)
    async with connected(dsn, 1) as (caller,):
        (found,) = await soon(caller.fetch(text_of("cancel_instance"), row_id, None, "not wanted"))
        renewed = await me.leases.renew_leases({row_id: 1}, lease_ttl_ms=LEASE_MS)
        await me.outcomes.commit([goes_on(row_id)])

    row = await stored(connection, row_id)
    assert (found["status"], renewed) == ("executing", {row_id: True})
    assert (row["status"], row["last_error"]) == ("cancelled", "not wanted")


async def test_a_cancel_by_key_means_the_row_that_has_the_key_when_it_gets_the_lock(dsn):
    """L6: the first ended and another took its key while the caller waited; that one is to be cancelled."""
    live = "=enum_range('runnable'::gendurable.durable_status, 'awaiting_children')"
    keyed = {"correlation_key": "order:1", "correlation_scope": live}
    async with connected(dsn, 3) as (watcher, other, caller), gd.Client(dsn) as client:
        first = await add_row(other, **keyed)
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"update {TABLE} set status = 'done', finished_at = now() where id = $1", first)
        second = await add_row(other, **keyed)

        cancelling = asyncio.ensure_future(client.cancel(key="order:1", connection=caller))
        await until_waiting(watcher, caller, kind="any")
        await transaction.commit()
        answer = await soon(cancelling)

        assert answer == gd.Cancelled(second)
        assert await statuses(watcher, [first, second]) == ["done", "cancelled"]


async def test_a_cancel_by_key_names_the_row_that_ended_when_nobody_took_the_key(dsn):
    """L6: the key addresses nothing any more, but the caller waited for a row, and that one has ended."""
    live = "=enum_range('runnable'::gendurable.durable_status, 'awaiting_children')"
    async with connected(dsn, 3) as (watcher, other, caller), gd.Client(dsn) as client:
        first = await add_row(other, correlation_key="order:1", correlation_scope=live)
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"update {TABLE} set status = 'done', finished_at = now() where id = $1", first)

        cancelling = asyncio.ensure_future(client.cancel(key="order:1", connection=caller))
        await until_waiting(watcher, caller, kind="any")
        await transaction.commit()

        assert await soon(cancelling) == gd.NotCancelled(first, gd.Status.DONE)


async def test_an_uncommitted_row_is_never_claimed(dsn, me):
    """E41: what a caller has not committed does not exist, and a rollback leaves nothing behind."""
    async with connected(dsn, 1) as (caller,):
        for ends_in in ("rollback", "commit"):
            transaction = caller.transaction()
            await transaction.start()
            row_id = await add_row(caller)
            assert await me.claim() == []
            await (transaction.rollback() if ends_in == "rollback" else transaction.commit())
            assert [claim.id for claim in await me.claim()] == ([] if ends_in == "rollback" else [row_id])
