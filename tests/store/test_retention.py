"""The collector: what ended long ago goes, in batches, and nothing that somebody still needs."""

import asyncio
import datetime as dt

import pytest

from gendurable.store.database import ConnectOptions, Database
from gendurable.store.retention import RetentionStore
from tests.races.staging import TABLE, add_many, add_row, closed_gate, connected, gated, soon, text_of, until_waiting

DAY_MS = 86_400_000
OLD = "=now() - interval '8 days'"


@pytest.fixture
async def retention(dsn):
    database = Database(ConnectOptions(dsn=dsn))
    await database.open()
    yield RetentionStore(database)
    await database.close()


async def collect(store, *, rows_max=100, after=None):
    return await store.collect_finished(
        done_ms=7 * DAY_MS, cancelled_ms=7 * DAY_MS, failed_ms=30 * DAY_MS, rows_max=rows_max, after=after
    )


async def left(connection):
    return [row[0] for row in await connection.fetch(f"select id from {TABLE} order by id")]


async def test_each_end_has_its_own_retention(connection, retention):
    """A failed row is evidence and stays longer; a live row stays whatever its age."""
    await add_row(connection, status="='done'", finished_at=OLD)
    await add_row(connection, status="='cancelled'", finished_at=OLD)
    await add_row(connection, status="='failed'", finished_at="=now() - interval '31 days'")
    spared = [
        await add_row(connection, status="='failed'", finished_at=OLD),
        await add_row(connection, status="='done'", finished_at="=now() - interval '6 days'"),
        await add_row(connection, inserted_at="=now() - interval '1 year'"),
    ]

    batch = await collect(retention)

    assert (batch.deleted, batch.seen, await left(connection)) == (3, 4, spared)


async def test_families_stay_until_all_of_them_have_ended(connection, retention):
    """E61, L8: a parent that wakes reads its children, and a child's parent is where its result goes."""
    live_parent = await add_row(connection, status="='awaiting_children'", children_pending=1)
    joined = await add_row(connection, status="='done'", finished_at=OLD, parent_id=live_parent)
    ended_parent = await add_row(connection, status="='done'", finished_at=OLD)
    live_child = await add_row(connection, parent_id=ended_parent)
    gone_parent = await add_row(connection, status="='done'", finished_at=OLD)
    await add_row(connection, status="='done'", finished_at=OLD, parent_id=gone_parent)

    await collect(retention)

    assert await left(connection) == [live_parent, joined, ended_parent, live_child]


async def test_a_key_that_is_still_reserved_keeps_its_row(connection, retention):
    """``unique_for`` outlives the retention; deleting the row would free the key early."""
    columns = {
        "status": "='done'",
        "finished_at": OLD,
        "correlation_scope": "=enum_range(null::gendurable.durable_status)",
    }
    reserved = await add_row(connection, correlation_key="a", unique_until="=now() + interval '1 h'", **columns)
    await add_row(connection, correlation_key="b", unique_until="=now() - interval '1 h'", **columns)

    await collect(retention)

    assert await left(connection) == [reserved]


async def test_a_pass_goes_on_where_a_batch_ended(connection, retention):
    """A batch of rows that are all spared must not be looked at again and again."""
    await add_many(connection, 5, status="'failed'", finished_at="now() - interval '9 days' + n * interval '1 s'")
    await add_many(connection, 3, status="'done'", finished_at="now() - interval '8 days' + n * interval '1 s'")

    first = await collect(retention, rows_max=5)
    second = await collect(retention, rows_max=5, after=first.reached)

    assert (first.deleted, first.seen) == (0, 5)
    assert (second.deleted, second.seen) == (3, 3)


async def test_a_row_that_ran_again_meanwhile_is_not_deleted(connection, dsn):
    """L8: retried and done between the snapshot and the lock, it has ended just now, and somebody will ask for it."""
    row_id = await add_row(connection, status="='failed'", finished_at="=now() - interval '40 days'")
    arguments = (DAY_MS, DAY_MS, DAY_MS, 10, dt.datetime(1, 1, 1, tzinfo=dt.UTC), 0)

    async with connected(dsn, 2) as (collector, other):
        async with closed_gate(connection):
            collecting = asyncio.ensure_future(collector.fetchrow(gated(text_of("collect_finished")), *arguments))
            await until_waiting(connection, collector)
            await other.execute(f"update {TABLE} set status = 'done', finished_at = now() where id = $1", row_id)
        row = await soon(collecting)

    assert (row["deleted"], await left(connection)) == (0, [row_id])


async def test_touching_a_finished_row_leaves_the_retention_index_alone(connection):
    """L32: the index stands on a column that is written once, so that such an update can be heap-only."""
    await add_row(connection, status="='done'", finished_at=OLD)
    definition = await connection.fetchval("select pg_get_indexdef('gendurable.gen_durable_gc'::regclass)")

    async with connection.transaction():
        await connection.execute(f"update {TABLE} set updated_at = now(), last_error = 'looked at'")
        hot = await connection.fetchval(f"select pg_stat_get_xact_tuples_hot_updated('{TABLE}'::regclass)")

    assert "(finished_at) WHERE (finished_at IS NOT NULL)" in definition
    assert hot == 1


async def test_the_table_is_vacuumed_by_counts_and_without_pauses(connection):
    """L32: a share of a queue's size means nothing, and a vacuum that sleeps falls behind the workers."""
    options = dict(
        option.split("=")
        for option in await connection.fetchval(f"select reloptions from pg_class where oid = '{TABLE}'::regclass")
    )

    assert options["autovacuum_vacuum_scale_factor"] == "0"
    assert options["autovacuum_vacuum_threshold"] == "10000"
    assert options["autovacuum_vacuum_cost_delay"] == "0"
    assert options["vacuum_index_cleanup"] == "on"
