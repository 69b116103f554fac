"""Every pair of statements that can meet on a row, in both ways in which they can meet.

Overtaken: the other one commits between a statement's snapshot and its locks. The statement then has to see the row as
it is, not as the snapshot shows it, so everything must end as if the two had run one after the other.

Met: the other one is not committed yet. A worker's statement must then skip the row, a caller's must wait for it.
"""

import asyncio
import datetime as dt
import itertools
import json
import re

import pytest

from tests.races import staging
from tests.races.staging import TABLE, add_row, closed_gate, connected, gated, shared_database, soon, text_of

MINUTE_MS = 60_000
DAY_MS = 86_400_000

STATES = {
    # Lapsed but not taken: its owner, the reaper and callers may all come for it [E16].
    "lapsed": {
        "status": "='executing'",
        "locked_by": "me",
        "claim": 1,
        "lease_expires_at": "=now() - interval '1 second'",
        "concurrency_key": "k",
    },
    "owned": {
        "status": "='executing'",
        "locked_by": "me",
        "claim": 1,
        "lease_expires_at": "=now() + interval '1 minute'",
        "deadline_at": "=now() - interval '1 second'",
    },
    "due": {"deadline_at": "=now() - interval '1 second'", "concurrency_key": "k"},
    "held": {"held": True, "deadline_at": "=now() - interval '1 second'", "concurrency_key": "k"},
    "ended": {"status": "='failed'", "finished_at": "=now() - interval '40 days'", "last_error": "gave up"},
}

ARGUMENTS = {
    "claim_runnable": lambda _: (
        "default",
        10,
        "other",
        MINUTE_MS,
        -32768,
        dt.datetime(1969, 12, 31, tzinfo=dt.UTC),
        0,
        True,
        [],
    ),
    "commit_done": lambda row: ([row], [1], "me", ['{"n": 1}']),
    "commit_outcomes": lambda row: (
        [row],
        [1],
        "me",
        ["runnable"],
        ["second"],
        ['{"n": 2}'],
        [1],
        [0],
        [0],
        [None],
        [None],
        ["oops"],
        ["ValueError"],
        [None],
        [False],
        [None],
    ),
    "commit_outcomes (stop)": lambda row: (
        [row],
        [1],
        "me",
        ["failed"],
        [None],
        [None],
        [1],
        [0],
        [0],
        [None],
        [None],
        ["gave up"],
        ["stop"],
        [None],
        [False],
        [None],
    ),
    "renew_leases": lambda row: ([row], [1], "me", MINUTE_MS),
    "release_claims": lambda row: ([row], [1], "me", [None]),
    "reap_expired": lambda _: (10, 5, MINUTE_MS),
    "expire_boot_leases": lambda _: ("me", 10),
    "end_overdue": lambda _: (10,),
    "unhold_keys": lambda _: (["k"],),
    "collect_finished": lambda _: (DAY_MS, DAY_MS, DAY_MS, 10, dt.datetime(1, 1, 1, tzinfo=dt.UTC), 0),
    "cancel_instance": lambda row: (row, None, "not wanted"),
    "retry_instance": lambda row: (row,),
}

CALLERS = {"cancel_instance", "retry_instance"}

WORKER_OF_AN_OWNED_ROW = ["commit_done", "commit_outcomes", "renew_leases", "release_claims"]
MEET = {
    "lapsed": [
        *WORKER_OF_AN_OWNED_ROW,
        "commit_outcomes (stop)",
        "reap_expired",
        "cancel_instance",
        "retry_instance",
    ],
    "owned": [*WORKER_OF_AN_OWNED_ROW, "expire_boot_leases", "end_overdue", "cancel_instance"],
    "due": ["claim_runnable", "end_overdue", "cancel_instance"],
    "held": ["unhold_keys", "end_overdue", "cancel_instance", "claim_runnable"],
    "ended": ["collect_finished", "retry_instance", "cancel_instance"],
}
PAIRS = [
    (state, *pair)
    for state, names in MEET.items()
    for pair in itertools.product(names, names)
    # Twice the same time, by two clocks: whether the second finds something to do decides nothing.
    if pair != ("expire_boot_leases", "expire_boot_leases")
]
# These look for rows instead of being given one. What became theirs after their snapshot they find the next time, and
# whoever made it so has poked.
SEARCHES = {"claim_runnable", "end_overdue", "unhold_keys"}


@pytest.fixture(scope="module")
def shared_dsn(postgres, template_database):
    with shared_database(postgres, template_database) as address:
        yield address


@pytest.fixture
async def sessions(shared_dsn):
    """Three sessions on a table without rows; nothing here may take longer than a wait that never ends."""
    async with connected(shared_dsn, 3) as three:
        await three[2].execute(f"delete from {TABLE}")
        yield three


async def run(connection, name, row_id, *, text=None):
    """Run a statement about a row; answers how many rows it says it changed."""
    rows = await connection.fetch(text or text_of(name.partition(" ")[0]), *ARGUMENTS[name](row_id))
    if name == "claim_runnable":
        return sum(row["answer"] == "claimed" for row in rows)
    if name in CALLERS:
        return rows[0]["changed"] if rows else 0
    return rows[0]["deleted"] if name == "collect_finished" else len(rows)


async def picture(connection, row_id):
    """A row without what no two runs share: ids and times, of which only what they decide is kept."""
    row = await connection.fetchrow(
        f"""
        select
            g.status::text as status, g.step, g.state, g.attempt, g.crashes, g.snoozes, g.result,
            g.last_error, g.errors,
            g.cancel_reason, g.held, g.locked_by, g.claim, g.concurrency_key, g.lease_expires_at > now() as is_leased,
            g.finished_at is not null as is_finished, g.finished_at > now() - interval '1 day' as is_fresh,
            g.started_at is not null as is_started
        from {TABLE} as g
        where g.id = $1
        """,
        row_id,
    )
    if row is None:
        return None
    errors = json.loads(row["errors"] or "[]")
    return {**dict(row), "errors": [{**error, "time": None} for error in errors]}


async def in_turn(connection, state, *names):
    """What a row and the last statement's answer look like when the statements run one after the other."""
    row_id = await add_row(connection, **STATES[state])
    answer = None
    for name in names:
        answer = await run(connection, name, row_id)
    seen = await picture(connection, row_id)
    await connection.execute(f"delete from {TABLE}")
    return seen, answer


@pytest.mark.parametrize(("state", "late", "early"), PAIRS)
async def test_a_statement_overtaken_after_its_snapshot_sees_the_row_as_it_is(sessions, state, late, early):
    """E23b: a heartbeat must not make an outcome stale, nor a cancel or a reap let a late one through [L11, L18]."""
    first, second, watcher = sessions
    alone, _ = await in_turn(watcher, state, early)
    both = await in_turn(watcher, state, early, late)
    row_id = await add_row(watcher, **STATES[state])

    async with closed_gate(watcher):
        overtaken = asyncio.ensure_future(run(first, late, row_id, text=gated(text_of(late.partition(" ")[0]))))
        await staging.until_waiting(watcher, first)
        await run(second, early, row_id)
    answer = await soon(overtaken)

    seen = await picture(watcher, row_id)
    assert (seen, answer) == both or (late in SEARCHES and (seen, answer) == (alone, 0))


@pytest.mark.parametrize(("state", "holder", "comer"), PAIRS)
async def test_a_worker_skips_a_row_in_change_and_a_caller_waits_for_it(sessions, state, holder, comer):
    """E19: what waits for a lock can deadlock, so only callers wait, and only for one row at a time [L1, 3.3]."""
    first, second, watcher = sessions
    alone, _ = await in_turn(watcher, state, holder)
    both = await in_turn(watcher, state, holder, comer)
    row_id = await add_row(watcher, **STATES[state])

    transaction = first.transaction()
    await transaction.start()
    await run(first, holder, row_id)
    coming = asyncio.ensure_future(run(second, comer, row_id))
    if comer in CALLERS:
        await asyncio.wait([coming], timeout=0.005)
    else:
        await soon(coming)
    await transaction.commit()
    answer = await soon(coming)

    seen = await picture(watcher, row_id)
    assert (seen, answer) == both or (comer not in CALLERS and (seen, answer) == (alone, 0))


@pytest.mark.parametrize("comer", [*WORKER_OF_AN_OWNED_ROW, "reap_expired"])
async def test_a_caller_that_holds_a_row_makes_no_worker_wait(sessions, comer):
    """E23a: a caller's transaction may last for seconds; a batch that waits for it costs everybody's leases [L1]."""
    first, second, watcher = sessions
    row_id = await add_row(watcher, **STATES["lapsed"])
    before = await picture(watcher, row_id)

    async with first.transaction():
        await run(first, "cancel_instance", row_id)
        answer = await soon(run(second, comer, row_id))
        seen = await picture(watcher, row_id)

    assert (seen, answer) == (before, 0)


@pytest.mark.parametrize(
    ("comer", "count"),
    [("commit_done", 1), ("commit_outcomes", 1), ("renew_leases", 1), ("release_claims", 1), ("reap_expired", 1)],
)
async def test_a_reference_from_another_table_keeps_no_worker_out(sessions, comer, count):
    """A signal or a child that is not committed yet shares the target's key, and no outcome changes a key."""
    first, second, watcher = sessions
    row_id = await add_row(watcher, **STATES["lapsed"])

    async with first.transaction():
        await first.execute("insert into gendurable.signals (target_id, name, payload) values ($1, 'go', '1')", row_id)

        assert await soon(run(second, comer, row_id)) == count


async def test_the_collector_does_not_wait_for_a_reference_to_its_row(sessions):
    """L8: a weaker lock is granted beside a caller's key share, and the DELETE behind it then waits for the caller."""
    first, second, watcher = sessions
    row_id = await add_row(watcher, **STATES["ended"])

    async with first.transaction():
        await first.execute("insert into gendurable.signals (target_id, name, payload) values ($1, 'go', '1')", row_id)
        answer = await soon(run(second, "collect_finished", row_id))
        weaker = text_of("collect_finished").replace("for update skip locked", "for no key update skip locked")
        waiting = asyncio.ensure_future(run(second, "collect_finished", row_id, text=weaker))
        await staging.until_waiting(watcher, second, kind="any")

    assert answer == 0
    await soon(waiting)


async def test_an_outcome_without_the_guard_would_let_a_late_one_through(sessions):
    """That the tests above can fail: the same statement without its guard ends a row that was reaped meanwhile."""
    first, second, watcher = sessions
    row_id = await add_row(watcher, **STATES["lapsed"])
    text = text_of("commit_done")
    unguarded = re.sub(r"and g\.locked_by = \$3::text\s+and g\.claim = t\.claim", "and $3::text is not null", text)
    assert unguarded != text

    async with closed_gate(watcher):
        late = asyncio.ensure_future(first.fetch(gated(unguarded), [row_id], [1], "me", [None]))
        await staging.until_waiting(watcher, first)
        await run(second, "reap_expired", row_id)
    await soon(late)

    assert (await picture(watcher, row_id))["status"] == "done"
