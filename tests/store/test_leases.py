"""Leases: who is alive, what they hold, and when others may take it."""

import asyncio
import json

import pytest

from tests.races.staging import (
    LEASE_MS,
    TABLE,
    add_executing,
    add_many,
    add_row,
    connected,
    done,
    identity,
    soon,
    statuses,
    stored,
    worker,
)

PATIENCE_MS = 2 * LEASE_MS
LAPSED = "=now() - interval '1 s'"


@pytest.fixture
async def me(dsn):
    async with worker(dsn) as one:
        yield one


async def reap(worker_, *, rows_max=100, crashes_max=5):
    return await worker_.leases.reap_expired(rows_max=rows_max, crashes_max=crashes_max, patience_ms=PATIENCE_MS)


async def test_a_row_of_a_worker_that_is_gone_is_handed_back(connection, me):
    """E15, E23: due as before, attempt untouched, a crash counted, and the row says what happened."""
    row_id = await add_executing(connection, boot="gone", claim=7, lease_expires_at=LAPSED, attempt=2, queue="a")

    (reaped,) = await reap(me)

    row = await stored(connection, row_id)
    assert (row["status"], row["attempt"], row["crashes"], row["claim"]) == ("runnable", 2, 1, 8)
    assert (row["locked_by"], row["lease_expires_at"], row["finished_at"]) == (None, None, None)
    assert (reaped.id, reaped.queue, reaped.status, reaped.worker) == (row_id, "a", "runnable", "gone")
    (error,) = json.loads(row["errors"])
    assert (error["kind"], error["attempt"], error["text"]) == ("crash", 2, "the worker gone is gone")


async def test_a_living_worker_keeps_its_row_although_the_rows_lease_has_lapsed(connection, me):
    """L2, E23a: a caller's lock can keep a heartbeat off a row, but never off the worker's own lease."""
    row_id = await add_executing(connection, lease_expires_at=LAPSED)
    await me.leases.register_node(queues=["default"], lease_ttl_ms=LEASE_MS)

    assert await reap(me) == []
    await connection.execute("update gendurable.nodes set lease_expires_at = now()")
    assert [row.id for row in await reap(me)] == [row_id]


async def test_a_row_is_not_left_to_a_living_worker_for_ever(connection, me):
    """L2: a process whose heartbeat lives but which has forgotten the row gives it up two leases later."""
    row_id = await add_executing(connection, lease_expires_at=f"=now() - {PATIENCE_MS} * interval '1 ms'")
    await me.leases.register_node(queues=["default"], lease_ttl_ms=LEASE_MS)

    assert [row.id for row in await reap(me)] == [row_id]


async def test_a_lease_that_still_runs_is_respected_although_the_worker_is_silent(connection, me):
    """E17: two engines with one configured name, one of them just started: nothing of the first is taken."""
    await add_executing(connection, boot="node/first")
    await me.leases.register_node(queues=["default"], lease_ttl_ms=LEASE_MS)

    assert await reap(me) == []


async def test_a_lapsed_lease_not_yet_reaped_does_not_stop_its_owner(connection, me):
    """E16: the work was done and nobody else has begun it."""
    row_id = await add_executing(connection, lease_expires_at=LAPSED)

    answer = await me.outcomes.commit([done(row_id)])

    assert answer.statuses == {row_id: "done"}
    assert await reap(me) == []


async def test_a_step_that_kills_its_process_ends_after_so_many_crashes(connection, me):
    """E21: the third crash is the last, the row says so, and no attempt was spent on any of them."""
    row_id = await add_row(connection, step="explode", attempt=1)
    seen = []
    for _ in range(3):
        await me.claim()
        await connection.execute(f"update {TABLE} set lease_expires_at = now() where id = $1", row_id)
        seen += [(row.status, row.crashes) for row in await reap(me, crashes_max=3)]
        await connection.execute(f"update {TABLE} set eligible_at = now() where id = $1", row_id)

    row = await stored(connection, row_id)
    assert seen == [("runnable", 1), ("runnable", 2), ("failed", 3)]
    assert row["last_error"] == "step explode was running in 3 processes that died; max_crashes is 3"
    assert (row["attempt"], len(json.loads(row["errors"]))) == (1, 3)
    assert row["finished_at"] is not None


async def test_a_cancelled_row_of_a_worker_that_is_gone_ends_cancelled(connection, me):
    """Somebody asked for it while it ran; running it again would ignore them."""
    row_id = await add_executing(connection, boot="gone", lease_expires_at=LAPSED, cancel_reason="not wanted")

    await reap(me, crashes_max=1)

    row = await stored(connection, row_id)
    assert (row["status"], row["last_error"], row["crashes"]) == ("cancelled", "not wanted", 1)


async def test_a_batch_of_the_reaper_is_the_longest_lapsed_first(connection, me):
    """One statement has a maximum, and what waited longest goes first."""
    ids = [
        await add_executing(connection, boot="gone", lease_expires_at=f"=now() - interval '{age} s'")
        for age in (10, 30, 20)
    ]

    assert [row.id for row in await reap(me, rows_max=2)] in ([ids[1], ids[2]], [ids[2], ids[1]])
    assert await statuses(connection, ids) == ["executing", "runnable", "runnable"]


async def test_the_heartbeat_renews_what_is_still_held_and_nothing_else(connection, me):
    """E13, L2: a claim that went elsewhere, or that the same worker has taken again, is left alone."""
    mine = await add_executing(connection, claim=3, lease_expires_at=LAPSED)
    again = await add_executing(connection, claim=4, lease_expires_at=LAPSED)
    theirs = await add_executing(connection, boot="other", claim=3, lease_expires_at=LAPSED)
    wanted_off = await add_executing(connection, claim=1, cancel_reason="not wanted")

    renewed = await me.leases.renew_leases({theirs: 3, again: 3, mine: 3, wanted_off: 1}, lease_ttl_ms=LEASE_MS)

    assert renewed == {mine: False, wanted_off: True}
    assert sorted(row.id for row in await reap(me)) == [again, theirs]


async def test_a_process_whose_row_was_swept_is_told_to_register_again(me):
    """A beat into nothing would leave it without protection."""
    assert not await me.leases.beat_node(lease_ttl_ms=LEASE_MS)
    await me.leases.register_node(queues=["default"], lease_ttl_ms=LEASE_MS)
    assert await me.leases.beat_node(lease_ttl_ms=LEASE_MS)
    await me.leases.remove_node()
    assert not await me.leases.beat_node(lease_ttl_ms=LEASE_MS)


async def test_only_a_silent_process_of_this_machine_and_namespace_can_be_proven_dead(connection, dsn, me):
    """L17: containers of one host share names and boot times and cannot see each other's pids."""
    others = {
        "same": identity("same"),
        "fresh": identity("fresh"),
        "container": identity("container", pid_namespace="another"),
        "elsewhere": identity("elsewhere", host_boot="another machine"),
    }
    for boot, node in others.items():
        async with worker(dsn, boot) as one:
            one.leases.identity = node
            await one.leases.register_node(queues=[], lease_ttl_ms=LEASE_MS)
    await me.leases.register_node(queues=[], lease_ttl_ms=LEASE_MS)
    await connection.execute(
        "update gendurable.nodes set beat_at = now() - interval '20 s' where boot <> 'fresh' or boot = 'me'"
    )

    assert await me.leases.silent_neighbours(silence_ms=10_000) == [("same", 1, "1")]


async def test_the_rows_of_a_process_proven_dead_need_not_wait_for_their_leases(connection, dsn, me):
    """E18, L17: a restart within two seconds runs them at once; rows of the living stay where they are."""
    dead = [await add_executing(connection, boot="dead") for _ in range(2)]
    await add_executing(connection, boot="alive")
    for boot in ("dead", "alive"):
        async with worker(dsn, boot) as one:
            await one.leases.register_node(queues=[], lease_ttl_ms=LEASE_MS)

    assert await me.leases.declare_dead("dead", rows_max=10) == 2
    assert sorted(row.id for row in await reap(me)) == dead


async def test_silent_processes_are_forgotten_when_they_hold_nothing(connection, dsn, me):
    """The row of a process that still owns rows is what says who had them."""
    await add_executing(connection, boot="holds")
    for boot in ("holds", "empty", "fresh"):
        async with worker(dsn, boot) as one:
            await one.leases.register_node(queues=[], lease_ttl_ms=LEASE_MS)
    await connection.execute(
        "update gendurable.nodes set lease_expires_at = now() - interval '2 h' where boot <> 'fresh'"
    )

    await me.leases.sweep_nodes(silence_ms=3_600_000)

    assert await connection.fetchval("select array_agg(boot order by boot) from gendurable.nodes") == ["fresh", "holds"]


async def test_the_next_sweep_is_due_at_the_first_lease_deadline_or_expiry(connection, me):
    """L25: the reaper sleeps until then instead of polling."""
    assert await me.leases.next_sweep_due_s() is None
    await add_executing(connection, lease_expires_at="=now() + interval '300 s'")
    assert await me.leases.next_sweep_due_s() == pytest.approx(300, abs=5)
    await add_row(connection, expires_at="=now() + interval '200 s'")
    assert await me.leases.next_sweep_due_s() == pytest.approx(200, abs=5)
    await add_row(connection, deadline_at="=now() + interval '100 s'")
    assert await me.leases.next_sweep_due_s() == pytest.approx(100, abs=5)


async def test_waiting_rows_end_at_their_deadline_or_expiry(connection, me):
    """Failed when time ran out, cancelled when it never began; an executing row ends at its own commit."""
    past = "=now() - interval '1 s'"
    overdue = await add_row(connection, deadline_at=past, fsm="a")
    expired = await add_row(connection, expires_at=past, held=True, concurrency_key="k")
    both = await add_row(connection, deadline_at=past, expires_at=past)
    others = [
        await add_row(connection, deadline_at="=now() + interval '1 h'"),
        await add_row(connection, expires_at=past, started_at=past),
        await add_executing(connection, deadline_at=past),
    ]

    ended = await me.leases.end_overdue(rows_max=10)

    assert {row[0]: row[1] for row in ended} == {overdue: "failed", expired: "cancelled", both: "failed"}
    assert await statuses(connection, others) == ["runnable", "runnable", "executing"]
    row = await stored(connection, expired)
    assert (row["held"], row["cancel_reason"], row["claim"]) == (False, "expired before it started", 1)


async def test_a_row_that_ends_while_it_has_its_keys_turn_passes_it_on(connection, me):
    """L14: it was un-held and not claimed yet, and those behind it would wait for the reconciler."""
    past = "=now() - interval '1 s'"
    await add_row(connection, concurrency_key="k", deadline_at=past)
    held = [await add_row(connection, concurrency_key="k", held=True, deadline_at=at) for at in (past, None, None)]

    await me.leases.end_overdue(rows_max=10)

    assert await statuses(connection, held) == ["failed", "runnable", "runnable"]
    assert [(await stored(connection, row_id))["held"] for row_id in held] == [False, False, True]


async def test_a_bad_scope_blocks_no_sweep(connection, me):
    """E38: should a scope without live statuses be in the table, the reaper still hands back every row."""
    await connection.execute(f"alter table {TABLE} drop constraint gen_durable_scope_whole")
    holder = await add_row(connection, correlation_key="k", correlation_scope="='{runnable}'")
    taker = await add_executing(
        connection, correlation_key="k", correlation_scope="='{runnable}'", lease_expires_at=LAPSED
    )
    plain = await add_executing(connection, lease_expires_at=LAPSED)

    overdue = await add_row(
        connection,
        status="='awaiting_signal'",
        correlation_key="k",
        correlation_scope="='{runnable,failed}'",
        deadline_at="=now() - interval '1 s'",
    )
    await connection.execute(f"update {TABLE} set correlation_scope = '{{runnable,failed}}' where id = $1", holder)

    await reap(me)
    await me.leases.end_overdue(rows_max=10)

    assert await statuses(connection, [holder, taker, plain, overdue]) == ["runnable", "runnable", "runnable", "failed"]


async def test_heartbeats_and_reapers_do_not_deadlock(connection, dsn, me):
    """E19: 50 lapsed rows, two reapers, two heartbeats that go through them in opposite directions; none ever waits."""
    ids = await add_many(
        connection,
        50,
        status="'executing'",
        locked_by="'me'",
        claim="1",
        lease_expires_at="now() - n * interval '1 ms'",
    )
    async with worker(dsn, "other") as other:

        async def beat(order):
            for _ in range(20):
                await me.leases.renew_leases(dict.fromkeys(order, 1), lease_ttl_ms=-1000)

        async def sweep(reaper):
            return sum([len(await reap(reaper, rows_max=5)) for _ in range(20)])

        answers = await soon(asyncio.gather(beat(ids), beat(ids[::-1]), sweep(me), sweep(other)))

        assert answers[2] + answers[3] + len(await reap(me)) == 50
    assert set(await statuses(connection, ids)) == {"runnable"}


async def test_rows_locked_elsewhere_are_left_to_the_next_sweep(connection, dsn, me):
    """E19: the reaper takes the others and waits for nobody."""
    ids = [await add_executing(connection, boot="gone", lease_expires_at=LAPSED) for _ in range(3)]
    async with connected(dsn, 1) as (caller,):
        async with caller.transaction():
            await caller.execute(f"select from {TABLE} where id = $1 for no key update", ids[1])
            first = await soon(reap(me))
        second = await reap(me)

    assert sorted(row.id for row in first) == [ids[0], ids[2]]
    assert [row.id for row in second] == [ids[1]]


async def test_the_queue_of_a_row_that_gets_a_freed_key_is_named_after_a_reap(connection, me):
    """L14: the row may wait in another queue than the one that died, and nobody else would wake that queue."""
    await add_executing(connection, boot="gone", lease_expires_at=LAPSED, concurrency_key="k", queue="a")
    await add_row(connection, concurrency_key="k", held=True, queue="b")
    told = []

    await me.leases.reap_expired(rows_max=10, crashes_max=5, patience_ms=PATIENCE_MS, on_unheld=told.append)

    assert told == ["b"]


async def test_the_queue_of_a_row_that_gets_a_freed_key_is_named_after_an_overdue_end(connection, me):
    """L14: as after a reap."""
    await add_row(connection, concurrency_key="k", deadline_at=LAPSED, queue="a")
    await add_row(connection, concurrency_key="k", held=True, queue="b")
    told = []

    await me.leases.end_overdue(rows_max=10, on_unheld=told.append)

    assert told == ["b"]


async def test_rows_that_crashed_together_come_apart_from_the_second_crash_on(connection, me):
    """E21: a poisonous step must not take its neighbours to the last crash with it; the first crash costs no time."""
    first = await add_executing(connection, boot="gone", lease_expires_at=LAPSED)
    again = [await add_executing(connection, boot="gone", lease_expires_at=LAPSED, crashes=2) for _ in range(20)]
    last = await add_executing(connection, boot="gone", lease_expires_at=LAPSED, crashes=4)
    before = [(await stored(connection, row_id))["eligible_at"] for row_id in (first, last)]

    due_in_s = {row.id: row.due_in_s for row in await reap(me)}

    assert [(await stored(connection, row_id))["eligible_at"] for row_id in (first, last)] == before
    assert due_in_s[first] == 0
    waits_s = [due_in_s[row_id] for row_id in again]
    assert len(set(waits_s)) == 20
    assert max(waits_s) <= 8
    assert max(waits_s) - min(waits_s) > 1
    rows = [await stored(connection, row_id) for row_id in again]
    for row, wait_s in zip(rows, waits_s, strict=True):
        assert (row["eligible_at"] - row["updated_at"]).total_seconds() == pytest.approx(wait_s, abs=0.01)
