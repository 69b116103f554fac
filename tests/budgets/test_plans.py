"""The plans of all hot statements on large tables: what they read must depend on the batch and on nothing else.

The planner gets what production gives it: no statistics at all, or statistics from a moment when nothing was running.
"""

import asyncio
import datetime as dt
import json
from urllib.parse import urlsplit

import asyncpg
import pytest

from gendurable.store.claims import SCAN_START
from tests.budgets.plans import AUTO_RUNS, buffers, full_scans, plan_of, rows_sorted_max
from tests.races.staging import (
    LEASE_MS,
    TABLE,
    add_many,
    connected,
    done,
    goes_on,
    shared_database,
    text_of,
    worker,
)

BATCH = 500
ROWS = 100_000
DAY_MS = 86_400_000
BEGINNING = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
COMMON = json.dumps({"fsm": "machine", "version": 1, "step": "run", "queue": "default", "priority": 0})


def claim_arguments(rows_max, *, queue="default", boot="me", with_keys=True, unresolved=()):
    start = SCAN_START
    return (
        queue, rows_max, boot, LEASE_MS, start.priority, start.eligible_at, start.id, with_keys, list(unresolved),
    )  # fmt: skip


async def fill(dsn, *, is_analysed):
    """A table as it is in use: a backlog, rows for later, rows that ended, rows that wait for a key; nothing runs."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"alter table {TABLE} set (autovacuum_enabled = off)")
        due = "now() - interval '1 h'"
        await add_many(connection, ROWS, eligible_at=due, concurrency_key="case when n % 10 = 0 then 'k' || n end")
        await add_many(
            connection, ROWS // 10, queue="'later'", eligible_at="now() + interval '1 day' + n * interval '1 s'"
        )
        ended = "now() - interval '8 days' - n * interval '1 s'"
        await add_many(connection, ROWS // 5, status="'done'", finished_at=ended, eligible_at=due)
        await add_many(connection, ROWS // 50, held="true", concurrency_key="'h' || n % 100", eligible_at=due)
        await connection.execute(
            "insert into gendurable.nodes values"
            " ('me', 'me', 'host', 'machine', 'namespace', 1, '1', '0', '{}', now(), now(), now() + interval '1 day')"
        )
        if is_analysed:
            await connection.execute(f"analyze {TABLE}")
    finally:
        await connection.close(timeout=5)


async def start_rows(dsn, count):
    """Let rows execute: most of them here, some by a worker that is gone."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            f"""
            update {TABLE}
            set
                status = 'executing', claim = 1,
                locked_by = case when id % 10 = 1 then 'gone' else 'me' end,
                lease_expires_at = now() + case when id % 10 = 1 then -1 else 1 end * interval '1 day'
            where id > {ROWS} - $1 and id <= {ROWS}
            """,
            count,
        )  # fmt: skip
    finally:
        await connection.close(timeout=5)


@pytest.fixture(scope="module", params=["never analysed", "analysed while idle"])
def base(request, postgres, template_database):
    """A filled database that only serves as a template."""
    with shared_database(postgres, template_database) as dsn:
        asyncio.run(fill(dsn, is_analysed=request.param == "analysed while idle"))
        yield dsn


@pytest.fixture(scope="module", params=[0, 500, 5000], ids=lambda count: f"{count} executing")
def busy(request, base, postgres):
    """The address of a table with so many executing rows, and how many of them are ours."""
    with shared_database(postgres, urlsplit(base).path.removeprefix("/")) as dsn:
        asyncio.run(start_rows(dsn, request.param))
        yield dsn


@pytest.fixture
async def session(busy):
    async with connected(busy, 1) as (one,):
        yield one


async def own_ids(session):
    """A batch of what this worker executes; rows it does not own when it executes nothing."""
    rows = await session.fetch(
        f"select id from {TABLE} where id <= {ROWS} and id % 10 <> 1 order by (locked_by is null), id limit {BATCH}"
    )
    return sorted(row[0] for row in rows)


def outcomes(ids):
    """A batch of steps that go on."""
    columns = ["runnable", "second", '{"n": 1}', 0, 0, 0, None, None, None, None, None, "f", None]
    return (ids, [1] * len(ids), "me", *([value] * len(ids) for value in columns))


STATEMENTS = {
    "claim_runnable": (lambda _: claim_arguments(BATCH), 30 * BATCH),
    "claim_runnable (one)": (lambda _: claim_arguments(1), 120),
    "claim_runnable (none)": (lambda _: claim_arguments(BATCH, queue="empty"), 40),
    "claim_runnable (later)": (lambda _: claim_arguments(BATCH, queue="later"), 40),
    "commit_done": (lambda ids: (ids, [1] * len(ids), "me", [None] * len(ids)), 30 * BATCH),
    "commit_outcomes": (outcomes, 30 * BATCH),
    "release_claims": (lambda ids: (ids, [1] * len(ids), "me", [None] * len(ids)), 30 * BATCH),
    "renew_leases": (lambda ids: (ids, [1] * len(ids), "me", LEASE_MS), 30 * BATCH),
    "claims_still_owned": (lambda ids: (ids, [1] * len(ids), "me"), 10 * BATCH),
    "outcome_landed": (lambda ids: (ids, [1] * len(ids)), 10 * BATCH),
    "reap_expired": (lambda _: (BATCH, 5, 2 * LEASE_MS), 30 * BATCH),
    "next_sweep_due": (lambda _: (), 60),
    "end_overdue": (lambda _: (BATCH,), 60),
    "unhold_keys": (lambda _: ([f"h{n}" for n in range(100)],), 60 * 100),
    "key_holders": (lambda _: ([f"k{n}" for n in range(ROWS - 490, ROWS + 10, 10)],), 20 * 50),
    "orphaned_held_keys": (lambda _: (100,), 20 * 100),
    "insert_alike": (lambda _: (COMMON, ["{}"] * BATCH), 30 * BATCH),
    "insert_rows": (
        lambda _: (
            [COMMON], [1] * BATCH, ["{}"] * BATCH, [f"c{n}" for n in range(BATCH)], ["live"] * BATCH, [None] * BATCH,
        ),
        30 * BATCH,
    ),
    "collect_finished": (lambda _: (7 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS, BATCH, BEGINNING, 0), 30 * BATCH),
    "get_instance": (lambda ids: (ids[0], None), 20),
    "watch_instances": (lambda ids: (ids,), 10 * BATCH),
    "cancel_instance": (lambda ids: (ids[0], None, "not wanted"), 100),
    "retry_instance": (lambda ids: (ids[0],), 100),
}  # fmt: skip


@pytest.mark.parametrize("is_generic", [False, True], ids=["auto", "generic"])
@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_hot_statement_reads_what_its_batch_needs(session, name, is_generic):
    """E08, L3, L10, L11: no scan of the table, no sort beyond the batch, and pages by the row."""
    arguments_of, pages_max = STATEMENTS[name]
    arguments = arguments_of(await own_ids(session))

    plan = await plan_of(session, name.partition(" ")[0], arguments, is_generic=is_generic)

    assert full_scans(plan) == []
    # An incremental sort knows that a group has ended by the first row of the next.
    assert rows_sorted_max(plan) <= BATCH + 1
    assert buffers(plan) <= pages_max


@pytest.fixture(scope="module")
def one_time(postgres, template_database):
    """300,000 rows of one insert, so with one time, and as many that are not due yet; nothing analysed."""

    async def load(dsn):
        async with connected(dsn, 1) as (connection,):
            await connection.execute(f"alter table {TABLE} set (autovacuum_enabled = off)")
            await add_many(connection, 300_000, queue="'due'")
            await add_many(
                connection, 300_000, queue="'later'", eligible_at="now() + interval '1 day'", priority="n % 3"
            )

    with shared_database(postgres, template_database) as dsn:
        asyncio.run(load(dsn))
        yield dsn


@pytest.mark.parametrize("is_generic", [False, True], ids=["auto", "generic"])
async def test_a_claim_of_300000_rows_with_one_time_stops_after_a_batch(one_time, is_generic):
    """E03, E09, L10: the ties are in the order of the index, so nothing is sorted and nothing is read ahead."""
    async with connected(one_time, 1) as (session,):
        plan = await plan_of(session, "claim_runnable", claim_arguments(BATCH, queue="due"), is_generic=is_generic)
        rows = await session.fetch(text_of("claim_runnable"), *claim_arguments(BATCH, queue="due"))
        await session.execute(f"update {TABLE} set queue = 'taken' where locked_by is not null")

    claimed = [row["id"] for row in rows if row["answer"] == "claimed"]
    assert len(claimed) == BATCH
    assert claimed == list(range(claimed[0], claimed[0] + BATCH))
    assert (full_scans(plan), rows_sorted_max(plan) <= BATCH) == ([], True)
    assert buffers(plan) <= 30 * BATCH


@pytest.mark.parametrize("is_generic", [False, True], ids=["auto", "generic"])
async def test_300000_future_rows_cost_a_claim_nothing(one_time, is_generic):
    """L12: they are walked past in one step for each priority, and the first of them is when to come again."""
    async with connected(one_time, 1) as (session,):
        plan = await plan_of(session, "claim_runnable", claim_arguments(BATCH, queue="later"), is_generic=is_generic)

    assert full_scans(plan) == []
    assert buffers(plan) <= 100


async def test_an_order_that_is_not_the_index_would_sort_everything(one_time):
    """That the tests above can fail: L10's experiment, a claim whose order is not exactly the index's."""
    text = text_of("claim_runnable")
    other_order = text.replace(
        "order by g.eligible_at, g.id\n        limit $2::int", "order by g.id\n        limit $2::int"
    )
    assert other_order != text
    async with connected(one_time, 1) as (session,):
        arguments = claim_arguments(BATCH, queue="due")
        plan = await plan_of(session, "claim_runnable", arguments, is_generic=True, text=other_order)

    assert rows_sorted_max(plan) > BATCH or buffers(plan) > 30 * BATCH


@pytest.fixture(scope="module")
def ended(postgres, template_database):
    """300,000 rows that ended in commits of 500 and stay, because their retention is longer; nothing analysed."""

    async def load(dsn):
        async with connected(dsn, 1) as (connection,):
            await connection.execute(f"alter table {TABLE} set (autovacuum_enabled = off)")
            time = f"now() - interval '8 days' + n / {BATCH} * interval '1 s'"
            await add_many(connection, 300_000, status="'failed'", finished_at=time)

    with shared_database(postgres, template_database) as dsn:
        asyncio.run(load(dsn))
        yield dsn


@pytest.mark.parametrize(("is_generic", "runs"), [(False, 0), (False, AUTO_RUNS), (True, 0)])
@pytest.mark.parametrize("is_begun", [False, True], ids=["at the start", "in the middle"])
async def test_a_batch_of_a_collection_reads_a_batch_and_the_rest_of_its_last_commit(
    ended, is_generic, runs, is_begun
):  # fmt: skip
    """A table that nobody has analysed looks as if little had ended, and reading all of it would look cheap."""
    async with connected(ended, 1) as (session,):
        half = await session.fetchrow(f"select finished_at, id from {TABLE} where id = {ROWS}")
        start = tuple(half) if is_begun else (BEGINNING, 0)
        arguments = (7 * DAY_MS, 7 * DAY_MS, 30 * DAY_MS, BATCH, *start)

        plan = await plan_of(session, "collect_finished", arguments, is_generic=is_generic, runs=runs)
        (row,) = await session.fetch(text_of("collect_finished"), *arguments)

    assert (row["seen"], row["reached_id"]) == (BATCH, ROWS + BATCH if is_begun else BATCH)
    assert full_scans(plan) == []
    assert rows_sorted_max(plan) <= 3 * BATCH
    assert buffers(plan) <= 10 * BATCH


async def test_plans_made_on_an_empty_table_do_not_outlive_its_growth(dsn):
    """Section 3.9: a scan is right for ten rows and is kept for 100,000, unless the worker makes its plans anew."""
    async with worker(dsn, pool_max=1) as me, connected(dsn, 1) as (loader,):
        await loader.execute(f"alter table {TABLE} set (autovacuum_enabled = off)")
        for _ in range(AUTO_RUNS):
            await add_many(loader, 3)
            claims = await me.claim()
            await me.outcomes.commit([done(claim.id, claim.claim) for claim in claims])
        await add_many(loader, ROWS)
        # The first claim may still use its old plan; it is the one that learns how large the table is.
        await me.claim(1)
        before = await rows_scanned(me)

        claims = await me.claim(BATCH)
        await me.outcomes.commit([done(claim.id, claim.claim) for claim in claims[:100]])
        await me.outcomes.commit([goes_on(claim.id, claim.claim) for claim in claims[100:200]])
        await me.claims.release_claims(claims[200:], delays_ms=[None] * (BATCH - 200))

        assert await rows_scanned(me) == before


async def rows_scanned(one):
    """Rows of the instance table that full scans of this worker's only connection have read."""
    async with one.database.connection() as session:
        await session.execute("select pg_stat_force_next_flush()")
        return await session.fetchval(f"select seq_tup_read from pg_stat_user_tables where relid = '{TABLE}'::regclass")
