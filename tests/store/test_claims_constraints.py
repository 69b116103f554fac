"""What cannot be committed, whoever tries: the table refuses it, so no race and no stranger can bring it about."""

import asyncio

import asyncpg
import pytest

import gendurable as gd
from gendurable.errors import StoreContendedError
from gendurable.store.inserts import InsertStore, NewRow
from gendurable.store.instances import InstanceStore
from tests.races.staging import TABLE, add_executing, add_row, connected, done, soon, worker

LIVE = "='{runnable,executing,awaiting_signal,awaiting_children}'"
COMMON = '{"fsm": "f", "version": 1, "step": "run", "queue": "default", "priority": 0}'


def keyed(key, scope="live"):
    return NewRow(common=1, state="{}", correlation_key=key, scope=scope, unique_ms=None)


@pytest.fixture
async def me(dsn):
    async with worker(dsn) as one:
        yield one


@pytest.mark.parametrize(
    ("columns", "constraint"),
    [
        ({"status": "='executing'"}, "gen_durable_locked_iff_executing"),
        ({"locked_by": "me", "lease_expires_at": "=now()"}, "gen_durable_locked_iff_executing"),
        ({"status": "='executing'", "locked_by": "me"}, "gen_durable_lease_iff_executing"),
        ({"lease_expires_at": "=now()"}, "gen_durable_lease_iff_executing"),
        ({"status": "='done'"}, "gen_durable_finished_iff_terminal"),
        ({"finished_at": "=now()"}, "gen_durable_finished_iff_terminal"),
        ({"state": "='[1]'"}, "gen_durable_state_is_object"),
        ({"weight": 0.0}, "gen_durable_weight_positive"),
        ({"weight": float("inf")}, "gen_durable_weight_positive"),
        ({"correlation_key": "k"}, "gen_durable_scope_iff_key"),
        ({"correlation_scope": LIVE}, "gen_durable_scope_iff_key"),
    ],
)
async def test_a_row_that_contradicts_itself_is_refused(connection, columns, constraint):
    """L3, section 3.2: every guard relies on these, and none of them asks."""
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await add_row(connection, **columns)

    assert caught.value.constraint_name == constraint


@pytest.mark.parametrize(
    ("time", "is_allowed"),
    [
        ("1970-01-01 00:00:00+00", True),
        ("1969-12-31 23:59:59+00", False),
        ("8999-12-31 23:59:59+00", True),
        ("9000-01-01 00:00:00+00", False),
        ("infinity", False),
        ("-infinity", False),
    ],
)
async def test_a_time_that_the_driver_cannot_read_is_refused(connection, me, time, is_allowed):
    """L26: one such row would break every claim that meets it."""
    if not is_allowed:
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await add_row(connection, eligible_at=f"=timestamptz '{time}'")
        assert caught.value.constraint_name == "gen_durable_eligible_at_readable"
        return
    await add_row(connection, eligible_at=f"=timestamptz '{time}'")
    answer = await me.claims.claim_runnable(queue="default", rows_max=1, lease_ttl_ms=1000)
    assert (len(answer.claims) == 1) is (answer.next_due_in_s is None)


@pytest.mark.parametrize(
    "scope",
    ["{runnable}", "{runnable,executing,awaiting_signal}", "{done}", "{executing,awaiting_signal,awaiting_children}"],
)
async def test_a_scope_that_leaves_out_a_live_status_is_refused(connection, scope):
    """E38, L23: two rows could share a key, and a transition of one would fail for ever."""
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await add_row(connection, correlation_key="k", correlation_scope=f"='{scope}'")

    assert caught.value.constraint_name == "gen_durable_scope_whole"


async def test_one_row_has_a_key_while_its_scope_says_so(me):
    """E37: live rows share no key, an empty scope is a label, and an end frees the key unless the scope is for ever."""
    store = InsertStore(me.database)
    first, again, label, forever = await store.insert_rows(
        [COMMON], [keyed("k"), keyed("k"), keyed("k", "none"), keyed("e", "ever")]
    )
    assert (type(first), again, type(label)) == (gd.Inserted, gd.Duplicate(first.id), gd.Inserted)

    for claim in await me.claim():
        await me.outcomes.commit([done(claim.id, claim.claim)])
    new, held = await store.insert_rows([COMMON], [keyed("k"), keyed("e", "ever")])
    label2, taken = await store.insert_rows([COMMON], [keyed("k", "none"), keyed("k")])

    assert (type(new), held) == (gd.Inserted, gd.Duplicate(forever.id))
    assert (type(label2), taken) == (gd.Inserted, gd.Duplicate(new.id))
    assert len({first.id, label.id, forever.id, new.id, label2.id}) == 5


async def test_at_most_one_row_of_a_key_executes(connection):
    """Section 3.2: whatever a claim believes, the second cannot be committed; a gate's slots are counted elsewhere."""
    await add_executing(connection, concurrency_key="k")
    await add_executing(connection, concurrency_key="gate:k", concurrency_shard=0)
    await add_executing(connection, concurrency_key="gate:k", concurrency_shard=0)

    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await add_executing(connection, concurrency_key="k")

    assert caught.value.constraint_name == "gen_durable_concurrency_active"


async def test_the_primary_key_is_the_only_whole_unique_index(connection):
    """Section 2.3: another one over a changing column would raise the lock of every update, and deadlocks with it."""
    whole = await connection.fetch(
        f"""
        select i.indexrelid::regclass::text
        from pg_index as i
        where i.indrelid = '{TABLE}'::regclass and i.indisunique and i.indpred is null
        """
    )

    assert [row[0] for row in whole] == ["gendurable.gen_durable_pkey"]


async def test_a_holder_that_ends_during_the_insert_frees_its_key_for_it(connection, dsn, me):
    """L22: neither inserted nor a duplicate: the holder was there for the insert and gone for the look at it."""
    holder = await add_executing(connection, correlation_key="k", correlation_scope=LIVE)
    store = InsertStore(me.database)
    async with connected(dsn, 1) as (other,):
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"delete from {TABLE} where id = $1", holder)
        inserting = asyncio.ensure_future(store.insert_rows([COMMON], [keyed("k")]))
        await asyncio.wait([inserting], timeout=0.05)
        await transaction.commit()
        (answer,) = await soon(inserting)

    assert isinstance(answer, gd.Inserted)


async def test_a_holder_that_cannot_be_seen_is_a_conflict_and_not_an_answer(connection, dsn, me):
    """L7, L22: a caller's repeatable read met a key that its snapshot does not have; it is told to try again."""
    store = InsertStore(me.database)
    async with connected(dsn, 1) as (caller,):
        for isolation in ("read_committed", "repeatable_read", "serializable"):
            async with caller.transaction(isolation=isolation):
                await caller.fetchval(f"select count(*) from {TABLE}")
                holder = await add_row(connection, correlation_key=isolation, correlation_scope=LIVE)
                if isolation == "read_committed":
                    answers = await store.insert_rows([COMMON], [keyed(isolation)], connection=caller)
                    assert answers == [gd.Duplicate(holder)]
                    continue
                with pytest.raises(StoreContendedError):
                    async with caller.transaction():
                        await store.insert_rows([COMMON], [keyed(isolation)], connection=caller)


async def test_a_retry_whose_key_was_taken_names_the_holder(connection, me, dsn):
    """L23: two rows may have had one key, one after the other; the later one keeps it."""
    failed = await add_row(
        connection, status="='failed'", finished_at="=now()", correlation_key="k", correlation_scope=LIVE
    )
    holder = await add_row(connection, correlation_key="k", correlation_scope=LIVE)

    async with gd.Client(dsn) as client:
        answer = await client.retry(failed)
        await client.cancel(holder)
        later = await client.retry(failed)

    assert (answer, later) == (gd.Conflict(failed, holder), gd.Retried(failed))
    assert await InstanceStore(me.database).key_owner("k") == failed
