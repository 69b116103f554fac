"""Claiming and handing back, as the store offers it: what one worker takes, in which order, and what stays."""

import datetime as dt

import pytest

from gendurable.store.claims import SCAN_START
from tests.races.staging import LEASE_MS, TABLE, add_many, add_row, statuses, stored, worker


@pytest.fixture
async def me(dsn):
    async with worker(dsn, "node/me") as one:
        yield one


async def claim(worker_, rows_max=100, **options):
    return await worker_.claims.claim_runnable(
        **{"queue": "default", "rows_max": rows_max, "lease_ttl_ms": LEASE_MS, **options}
    )


async def test_a_claimed_row_is_executing_and_owned(connection, me):
    """E01: from here on nobody else may touch it, and its outcome can be told from a late one by the claim."""
    row_id = await add_row(connection, fsm="ship", fsm_version=2, step="pack", state={"n": 1}, tags=["blue"])

    (claimed,) = await me.claim()

    row = await stored(connection, row_id)
    assert (row["status"], row["locked_by"], row["claim"]) == ("executing", "node/me", 1)
    lease = row["lease_expires_at"] - await connection.fetchval("select now()")
    assert dt.timedelta(seconds=50) < lease <= dt.timedelta(milliseconds=LEASE_MS)
    assert (claimed.id, claimed.claim, claimed.machine, claimed.version, claimed.step) == (row_id, 1, "ship", 2, "pack")
    assert (claimed.attempt, claimed.crashes, claimed.state, claimed.tags) == (0, 0, '{"n": 1}', ["blue"])
    assert (row["started_at"], row["attempt"]) == (row["updated_at"], 0)


async def test_a_claim_takes_from_its_own_queue_and_takes_each_row_once(connection, me):
    """E02: a second claim finds nothing, and the other queue's rows are the other queue's."""
    ours = [await add_row(connection, queue="a") for _ in range(2)]
    theirs = await add_row(connection, queue="b")

    first, second = await me.claim(queue="a"), await me.claim(queue="a")

    assert ([row.id for row in first], second) == (ours, [])
    assert await statuses(connection, [theirs]) == ["runnable"]


async def test_rows_come_by_priority_then_time_then_id(connection, me):
    """E03, L10: the order of the index is the order of the batch, also across several claims."""
    ids = [
        await add_row(connection, priority=priority, eligible_at=f"=now() - interval '{age} s'")
        for priority, age in [(5, 60), (0, 10), (0, 20), (-3, 1), (5, 60), (0, 20)]
    ]
    expected = [ids[place] for place in (3, 2, 5, 1, 0, 4)]

    one_by_one = [(await me.claim(1))[0].id for _ in range(2)]
    rest = [row.id for row in await me.claim()]

    assert one_by_one + rest == expected


async def test_a_future_row_is_not_taken_and_says_when_it_is_due(connection, me):
    """E04, L12: the answer of an empty claim is what the picker sets its timer to, whatever the priority."""
    await add_row(connection, priority=9, eligible_at="=now() + interval '40 s'")
    await add_row(connection, priority=1, eligible_at="=now() + interval '90 s'")

    empty = await claim(me)
    due = await add_row(connection)
    answer = await claim(me)
    nothing = await claim(me, queue="other")

    assert (empty.claims, empty.position) == ([], None)
    assert empty.next_due_in_s == pytest.approx(40, abs=5)
    assert [row.id for row in answer.claims] == [due]
    assert answer.next_due_in_s == pytest.approx(40, abs=5)
    assert nothing.next_due_in_s is None


async def test_a_full_batch_says_where_it_got_to_and_the_next_goes_on_from_there(connection, me):
    """L15: the hint is a place in the pick index; rows of one insert share one time, so the id belongs to it."""
    ids = await add_many(connection, 10)

    first = await claim(me, 4)
    assert first.position is not None
    second = await claim(me, 4, start=first.position)
    before = await add_row(connection, priority=-1)
    blind = await claim(me, 100, start=second.position)
    full = await claim(me)

    assert [[row.id for row in answer.claims] for answer in (first, second, blind)] == [ids[:4], ids[4:8], ids[8:]]
    assert first.next_due_in_s is None
    assert [row.id for row in full.claims] == [before]


async def test_the_hint_reaches_rows_of_later_priorities(connection, me):
    """L15: a place within one priority must not hide the next priority's older rows."""
    ids = [await add_row(connection, priority=priority, eligible_at=f"=now() - interval '{age} s'")
           for priority, age in [(0, 50), (1, 90)]]  # fmt: skip

    first = await claim(me, 1)
    second = await claim(me, 1, start=first.position)

    assert [row.id for row in first.claims + second.claims] == ids


async def test_a_released_row_is_as_it_was(connection, me):
    """E12: five claimed rows that cannot be run now are runnable again at once, and no attempt is spent."""
    ids = [await add_row(connection, attempt=attempt) for attempt in range(5)]
    before = [await stored(connection, row_id) for row_id in ids]
    claims = await me.claim()

    released = await me.claims.release_claims(claims, delays_ms=[None] * 5)

    assert released == set(ids)
    after = [await stored(connection, row_id) for row_id in ids]
    for name in (
        "status",
        "attempt",
        "crashes",
        "eligible_at",
        "locked_by",
        "lease_expires_at",
        "errors",
        "last_error",
    ):
        assert [row[name] for row in after] == [row[name] for row in before]
    assert [row.id for row in await me.claim()] == ids


async def test_a_released_row_can_be_left_alone_for_a_while(connection, me):
    """E23c, L16: a machine nobody here knows must not stand at the head of the queue for ever."""
    row_id = await add_row(connection)
    claims = await me.claim()

    await me.claims.release_claims(claims, delays_ms=[5000])

    assert await me.claim() == []
    row = await stored(connection, row_id)
    assert (row["eligible_at"] - row["updated_at"], row["attempt"]) == (dt.timedelta(seconds=5), 0)


async def test_a_release_that_comes_late_changes_nothing(connection, dsn, me):
    """E13: the row was reaped and belongs to another worker, or to the same one under another claim."""
    row_id = await add_row(connection)
    (late,) = await me.claim()
    await connection.execute(f"update {TABLE} set claim = claim + 1 where id = $1", row_id)
    async with worker(dsn, "node/other") as other:
        before = await stored(connection, row_id)

        assert await me.claims.release_claims([late], delays_ms=[None]) == set()
        late.claim += 1
        assert await other.claims.release_claims([late], delays_ms=[None]) == set()
        assert await stored(connection, row_id) == before


async def test_a_release_of_a_cancelled_row_ends_it(connection, me):
    """A step cut off by the drain is handed back; one that somebody cancelled meanwhile must not run again."""
    row_id = await add_row(connection)
    claims = await me.claim()
    await connection.execute(f"update {TABLE} set cancel_reason = 'not wanted' where id = $1", row_id)

    await me.claims.release_claims(claims, delays_ms=[None])

    row = await stored(connection, row_id)
    assert (row["status"], row["last_error"]) == ("cancelled", "not wanted")
    assert row["finished_at"] is not None


async def test_machines_unknown_here_are_skipped_and_run_elsewhere(connection, dsn, me):
    """E23c, L16: 500 rows of a machine only another node knows do not hide what is behind them, and spend nothing."""
    unknown = await add_many(connection, 500, fsm="'elsewhere'", fsm_version="2")
    known = await add_row(connection, fsm="elsewhere", fsm_version=1)
    async with worker(dsn, "node/other") as other:
        met = await me.claim(500)
        await me.claims.release_claims(met, delays_ms=[0] * len(met))

        ours = await me.claim(500, unresolved=["elsewhere@2"])
        theirs = await other.claim(500)

    assert [row.id for row in ours] == [known]
    assert sorted(row.id for row in theirs) == unknown
    assert {(row.attempt, row.crashes) for row in theirs} == {(0, 0)}


async def test_a_row_held_for_a_key_leaves_the_way_to_everything_behind_it(connection, me):
    """L14: 500 rows of one key at the head cost one claim, not every claim."""
    keyed = await add_many(connection, 500, concurrency_key="'k'")
    plain = await add_row(connection)

    first = await claim(me, 500)
    second = await claim(me, 500)

    assert ([row.id for row in first.claims], first.held_keys) == (keyed[:1], ["k"])
    assert ([row.id for row in second.claims], second.held_keys) == ([plain], [])


async def test_orphaned_keys_are_found_and_given_on(connection, me):
    """L14: what a process leaves that dies between holding rows and asking; the reconciler repairs it."""
    await add_many(connection, 3, concurrency_key="'k' || n", held="true")
    await add_row(connection, concurrency_key="k2", status="='executing'", locked_by="x", lease_expires_at="=now()")

    keys = await me.claims.orphaned_held_keys(keys_max=10)
    queues = await me.claims.unhold_keys(keys)

    assert (keys, queues) == (["k1", "k3"], ["default"])
    assert await connection.fetchval(f"select array_agg(concurrency_key) from {TABLE} where held") == ["k2"]


async def test_a_row_that_expired_before_its_first_start_is_marked(connection, me):
    """The worker ends it instead of running it; a row that has started before is past that question."""
    ids = [
        await add_row(connection, expires_at="=now() - interval '1 s'"),
        await add_row(connection, expires_at="=now() - interval '1 s'", started_at="=now() - interval '1 h'"),
        await add_row(connection, expires_at="=now() + interval '1 h'"),
    ]

    claims = await me.claim()

    assert {row.id: row.is_expired for row in claims} == dict(zip(ids, [True, False, False], strict=True))


async def test_the_start_of_a_scan_is_before_every_row_there_can_be(connection, me):
    """L26: the earliest time and the lowest priority that the constraints allow are still behind the start."""
    row_id = await add_row(connection, priority=-32768, eligible_at="=timestamptz '1970-01-01 00:00:00+00'")

    assert [row.id for row in await me.claim(start=SCAN_START)] == [row_id]
