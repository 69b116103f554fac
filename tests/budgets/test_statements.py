"""How many statements an operation costs, counted where they are sent; BEGIN and COMMIT are counted apart."""

import contextlib

import pytest

import gendurable as gd
from gendurable.store.inserts import InsertStore, NewRow
from tests.races.staging import LEASE_MS, TABLE, add_executing, add_many, add_row, done, goes_on, worker

COMMON = '{"fsm": "f", "version": 1, "step": "run", "queue": "default", "priority": 0}'
NO_KEY = {"correlation_key": None, "scope": "live", "unique_ms": None}
TRANSACTION = ("begin", "commit", "rollback", "savepoint", "release")


@pytest.fixture
async def me(dsn):
    """A worker with one connection, so that everything it does can be counted there."""
    async with worker(dsn, pool_max=1) as one:
        # The driver looks up each array type once for a connection.
        await one.leases.renew_leases({0: 0}, lease_ttl_ms=LEASE_MS)
        await one.claims.release_claims([await a_claim(one)], delays_ms=[None])
        await one.outcomes.commit([goes_on(0)])
        await InsertStore(one.database).insert_rows([COMMON], [NewRow(common=1, state="{}", **NO_KEY)])
        await one.database.fetch("collect_finished", 0, 0, 0, 1, None, 0)
        async with one.database.connection() as session:
            await session.execute(f"delete from {TABLE}")
        yield one


async def a_claim(one):
    async with one.database.connection() as session:
        await add_row(session)
    return (await one.claim())[0]


@contextlib.asynccontextmanager
async def counted(database):
    """The statements a database is sent during the block: (ordinary ones, transaction control)."""
    sent = []

    def note(record):
        sent.append(record.query.split(maxsplit=1)[0].lower().rstrip(";"))

    seen = ([], [])
    async with database.connection() as session:
        raw = session._con
    raw.add_query_logger(note)
    try:
        yield seen
    finally:
        raw.remove_query_logger(note)
        for word in sent:
            seen[word in TRANSACTION].append(word)


async def test_a_claim_is_one_statement_whatever_it_brings(connection, me):
    """Empty, full, or with rows held for a key: the budget is 1 for an empty claim and 3 for any."""
    for rows, expected in [(0, 0), (1, 1), (500, 500)]:
        await add_many(connection, rows) if rows else None
        async with counted(me.database) as (plain, control):
            claims = await me.claim(500)
        assert (len(claims), len(plain), control) == (expected, 1, [])

    await add_many(connection, 500, concurrency_key="'k' || n % 2")
    async with counted(me.database) as (plain, control):
        answer = await me.claims.claim_runnable(queue="default", rows_max=500, lease_ttl_ms=LEASE_MS)
        await me.claims.settle_held_keys(answer.held_keys)
    assert (len(answer.claims), answer.held_keys) == (2, ["k0", "k1"])
    assert (len(plain), control) == (2, [])


@pytest.mark.parametrize("count", [1, 500])
async def test_a_flush_is_one_transaction_of_at_most_three_statements(connection, me, count):
    """Group commit pays off only if a batch costs what a row costs."""
    for kind, key, statements, transactions in [
        ("done", None, 1, 0),
        ("next", None, 1, 0),
        ("done", "k", 2, 1),
        ("next", "k", 2, 1),
    ]:
        ids = await add_many(
            connection,
            count,
            status="'executing'",
            locked_by="'me'",
            claim="1",
            lease_expires_at="now() + interval '1 h'",
            concurrency_key=f"'{key}' || n" if key else "null",
        )
        make = done if kind == "done" else goes_on
        async with counted(me.database) as (plain, control):
            answer = await me.outcomes.commit([make(row_id, held_key=key) for row_id in ids])
        assert len(answer.statuses) == count
        assert (len(plain), len(control)) == (statements, 2 * transactions)
        await connection.execute(f"delete from {TABLE}")


async def test_a_release_and_a_heartbeat_are_one_statement_each(connection, me):
    """The heartbeat is on the clock of every process for ever, and a drain hands back thousands of rows."""
    await add_many(connection, 500)
    claims = await me.claim(500)

    async with counted(me.database) as (plain, control):
        await me.leases.renew_leases({claim.id: claim.claim for claim in claims}, lease_ttl_ms=LEASE_MS)
    assert (len(plain), control) == (1, [])
    async with counted(me.database) as (plain, control):
        await me.claims.release_claims(claims, delays_ms=[None] * 500)
    assert (len(plain), control) == (1, [])


async def test_a_reap_is_one_transaction(connection, me):
    """The keys it frees are given on in the transaction that frees them."""
    for key in (None, "k"):
        await add_executing(connection, boot="gone", lease_expires_at="=now() - interval '1 s'", concurrency_key=key)
        async with counted(me.database) as (plain, control):
            reaped = await me.leases.reap_expired(rows_max=10, crashes_max=5, patience_ms=LEASE_MS)
        assert (len(reaped), len(plain), len(control)) == (1, 2 if key else 1, 2)


async def test_an_insert_of_any_number_of_rows_is_one_statement(me):
    """Alike or mixed, with keys or without; only a taken key costs a look at who has it."""
    store = InsertStore(me.database)
    async with counted(me.database) as (plain, control):
        ids = await store.insert_alike(COMMON, ["{}"] * 1000)
    assert (len(ids), len(plain), control) == (1000, 1, [])
    rows = [
        NewRow(common=1, state="{}", correlation_key=f"k{n}" if n % 2 else None, scope="live", unique_ms=None)
        for n in range(1000)
    ]
    async with counted(me.database) as (plain, control):
        answers = await store.insert_rows([COMMON], rows)
    assert (len(answers), len(plain), control) == (1000, 1, [])
    async with counted(me.database) as (plain, control):
        answers = await store.insert_rows([COMMON], rows)
    assert {type(answer) for answer in answers[1::2]} == {gd.Duplicate}
    assert (len(plain), control) == (2, [])


async def test_the_counter_of_the_database_tells_the_same(connection, me):
    """The bench reports it; a counter that misses statements would praise the engine for nothing."""
    await add_row(connection)
    before = me.database.statements_total
    async with counted(me.database) as (plain, _):
        (claim,) = await me.claim()
        await me.outcomes.commit([done(claim.id, claim.claim, held_key="k")])

    assert me.database.statements_total - before == len(plain) == 3
