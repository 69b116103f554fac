"""Writing outcomes at the store: what each does to its row, and what a worker that has lost the row can do: nothing."""

import datetime as dt
import json

import pytest

from gendurable.errors import StoreDataError
from gendurable.model.transition import Transition
from tests.races.staging import LEASE_MS, TABLE, add_executing, add_row, done, goes_on, stored, worker

SCOPE = "='{runnable,executing,awaiting_signal,awaiting_children}'"


@pytest.fixture
async def me(dsn):
    async with worker(dsn) as one:
        yield one


def retry(row_id, claim=1, **fields):
    return Transition(
        id=row_id, claim=claim, outcome="retry", status="runnable", attempt=3, error="oops", error_kind="E", **fields
    )


def snooze(row_id, claim=1):
    return Transition(id=row_id, claim=claim, outcome="snooze", status="runnable", attempt=2, snoozes=5, delay_ms=9000)


def stop(row_id, claim=1):
    return Transition(
        id=row_id, claim=claim, outcome="stop", status="failed", attempt=2, error="gave up", error_kind="stop"
    )


def cancel(row_id, claim=1):
    return Transition(
        id=row_id, claim=claim, outcome="cancel", status="cancelled", attempt=2, cancel_reason="not wanted"
    )


OUTCOMES = {"next": goes_on, "retry": retry, "snooze": snooze, "done": done, "stop": stop, "cancel": cancel}


async def test_a_mixed_batch_lands_each_in_its_own_way(connection, me):
    """E42: next, retry, snooze, done, stop and cancel in one statement; a foreign worker's entry is left out."""
    before = {"attempt": 2, "snoozes": 4, "crashes": 1}
    ids = {name: await add_executing(connection, concurrency_key=name, **before) for name in OUTCOMES}
    foreign = await add_executing(connection, boot="other")
    batch = [
        goes_on(ids["next"], state='{"n": 2}', delay_ms=5000, is_key_changed=True),
        retry(ids["retry"], delay_ms=None, at=dt.datetime(2100, 1, 1, tzinfo=dt.UTC)),
        snooze(ids["snooze"]),
        done(ids["done"], result='{"ok": true}'),
        stop(ids["stop"]),
        cancel(ids["cancel"]),
        done(foreign),
    ]

    answer = await me.outcomes.commit(batch)

    rows = {name: await stored(connection, row_id) for name, row_id in ids.items()}
    assert answer.statuses == {
        ids["next"]: "runnable",
        ids["retry"]: "runnable",
        ids["snooze"]: "runnable",
        ids["done"]: "done",
        ids["stop"]: "failed",
        ids["cancel"]: "cancelled",
    }
    assert answer.due_in_s[ids["next"]] == pytest.approx(5, abs=1)
    assert answer.due_in_s.keys() == {ids["next"], ids["retry"], ids["snooze"]}
    assert (rows["next"]["step"], rows["next"]["state"], rows["next"]["attempt"]) == ("second", '{"n": 2}', 0)
    assert (rows["next"]["snoozes"], rows["next"]["concurrency_key"]) == (0, None)
    assert (rows["retry"]["step"], rows["retry"]["attempt"], rows["retry"]["concurrency_key"]) == ("run", 3, "retry")
    assert rows["retry"]["eligible_at"].year == 2100
    assert (rows["snooze"]["attempt"], rows["snooze"]["snoozes"], rows["snooze"]["last_error"]) == (2, 5, None)
    assert (rows["done"]["result"], rows["done"]["last_error"]) == ('{"ok": true}', None)
    assert (rows["stop"]["last_error"], rows["stop"]["attempt"], rows["stop"]["result"]) == ("gave up", 2, None)
    assert (rows["cancel"]["last_error"], rows["cancel"]["cancel_reason"]) == (None, "not wanted")
    for name, row in rows.items():
        assert (row["locked_by"], row["lease_expires_at"]) == (None, None)
        assert (row["finished_at"] is None) is (row["status"] == "runnable")
        # Crashes are counted for a step: a long machine would else end after so many deploys that went wrong.
        assert (row["claim"], row["crashes"]) == (1, 0 if name == "next" else 1)
    assert (await stored(connection, foreign))["status"] == "executing"


@pytest.mark.parametrize("lost", ["reaped", "claimed by another", "claimed again by the same worker", "ended"])
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_late_outcome_changes_nothing(connection, me, outcome, lost):
    """E13, L18: whatever became of the row meanwhile, also when the same worker has it under another claim."""
    row_id = await add_executing(connection, lease_expires_at="=now() - interval '1 s'", concurrency_key="k")
    waiting = await add_row(connection, concurrency_key="k", held=True)
    await connection.execute(f"update {TABLE} set locked_by = 'gone' where id = $1", row_id)
    if lost == "ended":
        await connection.execute(f"update {TABLE} set cancel_reason = 'not wanted' where id = $1", row_id)
    await me.leases.reap_expired(rows_max=10, crashes_max=5, patience_ms=0)
    await connection.execute(f"update {TABLE} set held = true where id = $1", waiting)
    if lost.startswith("claimed"):
        await connection.execute(
            f"update {TABLE} set status = 'executing', locked_by = $2, claim = claim + 1, lease_expires_at = now()"
            f" where id = $1",
            row_id,
            "other" if "another" in lost else "me",
        )
    before = await stored(connection, row_id), await stored(connection, waiting)
    late = OUTCOMES[outcome](row_id)
    late.held_key = "k"

    in_batch = await me.outcomes.commit([late])
    slowly = await me.outcomes.commit_waiting(late, lock_wait_ms=1000)

    assert (in_batch.statuses, slowly.statuses) == ({}, {})
    assert await me.outcomes.still_owned([late]) == set()
    assert (await stored(connection, row_id), await stored(connection, waiting)) == before


async def test_the_lean_statement_is_fenced_as_well(connection, dsn, me):
    """E13: a batch of nothing but plain results goes another way to the table."""
    row_id = await add_executing(connection, claim=2)
    async with worker(dsn, "other") as other:
        before = await stored(connection, row_id)

        assert (await me.outcomes.commit([done(row_id, 1)])).statuses == {}
        assert (await other.outcomes.commit([done(row_id, 2)])).statuses == {}
        assert await stored(connection, row_id) == before
    assert (await me.outcomes.commit([done(row_id, 2, result='{"n": 1}')])).statuses == {row_id: "done"}
    row = await stored(connection, row_id)
    assert (row["status"], row["result"], row["locked_by"]) == ("done", '{"n": 1}', None)


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_cancellation_asked_for_meanwhile_wins(connection, me, outcome):
    """The caller was told that it would end at its next commit, whatever the step answers."""
    row_id = await add_executing(connection, cancel_reason="not wanted")

    await me.outcomes.commit([OUTCOMES[outcome](row_id)])

    row = await stored(connection, row_id)
    assert (row["status"], row["cancel_reason"], row["last_error"]) == ("cancelled", "not wanted", "not wanted")


@pytest.mark.parametrize(("outcome", "status"), [("next", "failed"), ("retry", "failed"), ("done", "done")])
async def test_a_deadline_that_has_passed_ends_what_would_go_on(connection, me, outcome, status):
    """What is finished is finished; what would need more time has none left."""
    row_id = await add_executing(connection, deadline_at="=now() - interval '1 s'")

    answer = await me.outcomes.commit([OUTCOMES[outcome](row_id)])

    row = await stored(connection, row_id)
    assert (answer.statuses, row["status"]) == ({row_id: status}, status)
    assert row["last_error"] == ("the deadline has passed" if status == "failed" else None)
    assert row_id not in answer.due_in_s


async def test_the_last_ten_errors_are_kept(connection, me):
    """E25: each attempt's error is visible meanwhile, and a row that retries for ever does not grow for ever."""
    row_id = await add_row(connection)
    for attempt in range(12):
        (claim,) = await me.claim()
        failed = Transition(
            id=row_id,
            claim=claim.claim,
            outcome="retry",
            status="runnable",
            attempt=attempt + 1,
            error=f"error {attempt}",
            error_kind="ValueError",
        )
        await me.outcomes.commit([failed])

    row = await stored(connection, row_id)
    errors = json.loads(row["errors"])
    assert [error["text"] for error in errors] == [f"error {attempt}" for attempt in range(2, 12)]
    assert {(error["kind"], error["step"]) for error in errors} == {("ValueError", "run")}
    assert [error["attempt"] for error in errors] == list(range(2, 12))
    assert row["last_error"] == "error 11"


async def test_a_refused_value_takes_its_batch_with_it_and_nothing_is_written(connection, me):
    """Section 3.6: the flusher then halves the batch; half a batch written would be written twice."""
    ids = [await add_executing(connection) for _ in range(3)]

    for refused in ('{"a": "\\u0000"}', "[1]", "{"):
        with pytest.raises(StoreDataError):
            await me.outcomes.commit([goes_on(ids[0]), goes_on(ids[1], state=refused), goes_on(ids[2])])

    assert {(await stored(connection, row_id))["status"] for row_id in ids} == {"executing"}


async def test_what_a_lost_connection_committed_is_recognised(connection, me):
    """L18: asked again after the connection was lost, an outcome that landed is not sent twice, one that did not is."""
    ends = await add_row(connection, status="='done'", finished_at="=now()", claim=1)
    went_on = await add_row(connection, claim=1)
    claimed_since = await add_executing(connection, boot="other", claim=2)
    never = await add_executing(connection, claim=1)
    reaped = await add_row(connection, claim=2)
    reaped_and_claimed = await add_executing(connection, boot="other", claim=3)
    batch = [done(row_id) for row_id in (ends, went_on, claimed_since, never, reaped, reaped_and_claimed)]

    assert await me.outcomes.landed(batch) == {ends, went_on, claimed_since}


async def test_an_outcome_in_a_database_of_other_habits_is_still_read_committed(connection, dsn):
    """L7: under a server whose default is serializable or read only, a flush would fail or see the past."""
    name = await connection.fetchval("select current_database()")
    await connection.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    await connection.execute(f"alter database {name} set default_transaction_read_only = on")
    asked = "select current_setting('transaction_isolation'), current_setting('transaction_read_only')"
    async with worker(dsn, "other") as other:
        async with other.database.transaction() as session:
            in_transaction = await session.fetchrow(asked)
        async with other.database.connection() as session:
            alone = await session.fetchrow(asked)
        apart = await other.database.connect_apart()
        beating = await apart.fetchrow(asked)
        await apart.close()

    assert {tuple(shown) for shown in (in_transaction, alone, beating)} == {("read committed", "off")}


async def test_busy_rows_are_told_from_lost_ones(connection, me):
    """L1: a row left out of a batch is still ours when a caller holds it, and gone when its claim is."""
    busy, lost = await add_executing(connection), await add_executing(connection, claim=2)

    async with connection.transaction():
        await connection.execute(f"select from {TABLE} where id = $1 for no key update", busy)
        answer = await me.outcomes.commit([done(busy), done(lost)])
        owned = await me.outcomes.still_owned([done(busy), done(lost)])

    assert (answer.statuses, owned) == ({}, {busy})
    assert (await me.outcomes.commit_waiting(done(busy), lock_wait_ms=LEASE_MS)).statuses == {busy: "done"}
