"""``gendurable.insert_job``: what other languages insert with, and what it refuses."""

import asyncio
import contextlib
import datetime as dt
import json

import asyncpg
import pytest

from gendurable.model.codec import DEPTH_MAX, KEY_BYTES_MAX, NAME_CHARS_MAX, TAGS_MAX, VALUE_BYTES_MAX
from gendurable.model.instance import LIVE, Status
from gendurable.poke.message import channel_of, decode_message
from gendurable.store.migrations import migrate_up

FUTURE = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


async def insert_job(connection, fsm="send_mail", *, schema="gendurable", **arguments):
    """Call the function with named arguments; JSON as Python values."""
    for name in ("args", "metadata"):
        if isinstance(arguments.get(name), dict):
            arguments[name] = json.dumps(arguments[name])
    named = "".join(f", {name} => ${place}" for place, name in enumerate(arguments, start=2))
    row = await connection.fetchrow(
        f"select id, inserted from {schema}.insert_job($1{named})", fsm, *arguments.values()
    )
    return row["id"], row["inserted"]


async def stored(connection, row_id):
    """The row, its enum columns as text."""
    return await connection.fetchrow(
        """
        select *, status::text as status_text, correlation_scope::text[] as scope_texts
        from gendurable.gen_durable
        where id = $1
        """,
        row_id,
    )


async def finish(connection, row_id):
    await connection.execute(
        "update gendurable.gen_durable set status = 'done', finished_at = now() where id = $1", row_id
    )


@pytest.fixture
async def other_connection(dsn):
    """A second session on the same database."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


async def test_a_name_is_enough(connection):
    """The defaults are those of a job inserted by the client."""
    row_id, inserted = await insert_job(connection)
    row = await stored(connection, row_id)

    assert inserted
    assert (row["fsm"], row["fsm_version"], row["step"], row["queue"]) == ("send_mail", 1, "run", "default")
    assert (row["state"], row["priority"], row["status_text"], row["attempt"]) == ("{}", 0, "runnable", 0)
    assert row["eligible_at"] == row["inserted_at"]
    assert [row["correlation_key"], row["correlation_scope"], row["unique_until"], row["metadata"], row["tags"]] == [
        None
    ] * 5


async def test_null_means_the_default(connection):
    """Drivers of other languages send null for what was not given."""
    row_id, inserted = await insert_job(
        connection, args=None, queue=None, priority=None, scope=None, step=None, fsm_version=None, notify=None
    )
    row = await stored(connection, row_id)

    assert inserted
    assert (row["state"], row["queue"], row["priority"], row["step"], row["fsm_version"]) == (
        "{}",
        "default",
        0,
        "run",
        1,
    )


async def test_everything_given_is_stored(connection):
    """A parameter that lands in the wrong column would go unnoticed."""
    row_id, _ = await insert_job(
        connection,
        "checkout",
        args={"order": 42},
        queue="shop",
        priority=-5,
        eligible_at=FUTURE,
        correlation_key="order:42",
        scope="ever",
        concurrency_key="tenant:1",
        step="start",
        fsm_version=3,
        metadata={"trace": "abc"},
        tags=["eu", "vip"],
        deadline_at=FUTURE + dt.timedelta(days=2),
        expires_at=FUTURE + dt.timedelta(days=1),
    )
    row = await stored(connection, row_id)

    assert (row["fsm"], row["fsm_version"], row["step"], json.loads(row["state"])) == (
        "checkout",
        3,
        "start",
        {"order": 42},
    )
    assert (row["queue"], row["priority"], row["eligible_at"]) == ("shop", -5, FUTURE)
    assert (row["correlation_key"], row["scope_texts"]) == ("order:42", [status.value for status in Status])
    assert (row["concurrency_key"], row["concurrency_name"]) == ("tenant:1", "tenant")
    assert (json.loads(row["metadata"]), row["tags"]) == ({"trace": "abc"}, ["eu", "vip"])
    assert row["deadline_at"] - row["expires_at"] == dt.timedelta(days=1)


async def test_schedule_in_counts_from_the_transaction(connection):
    """By the database's clock, as every delay."""
    row_id, _ = await insert_job(connection, schedule_in=dt.timedelta(hours=2))
    row = await stored(connection, row_id)

    assert row["eligible_at"] - row["inserted_at"] == dt.timedelta(hours=2)


async def test_a_taken_key_answers_its_holder(connection):
    """The caller needs the id either way."""
    first, inserted = await insert_job(connection, correlation_key="k")
    row = await stored(connection, first)

    assert inserted
    assert row["scope_texts"] == [status.value for status in LIVE]
    assert await insert_job(connection, correlation_key="k", args={"other": 1}) == (first, False)
    assert (await insert_job(connection, correlation_key="K"))[1]


async def test_a_live_key_is_free_after_the_end(connection):
    """The preset of the client."""
    first, _ = await insert_job(connection, correlation_key="k")
    await finish(connection, first)

    second, inserted = await insert_job(connection, correlation_key="k")

    assert inserted
    assert second > first


async def test_a_key_for_ever_is_not_free_after_the_end(connection):
    """As long as the row exists."""
    first, _ = await insert_job(connection, correlation_key="k", scope="ever")
    await finish(connection, first)

    assert await insert_job(connection, correlation_key="k") == (first, False)


async def test_a_key_of_no_scope_is_a_mere_label(connection):
    """Many rows carry it, and it addresses none."""
    first, _ = await insert_job(connection, correlation_key="k", scope="none")
    second, inserted = await insert_job(connection, correlation_key="k", scope="none")

    assert inserted
    assert [(await stored(connection, row_id))["scope_texts"] for row_id in (first, second)] == [[], []]


async def test_a_reserved_key_is_free_when_its_time_and_its_row_are_over(connection):
    """ "At most once an hour" must count finished rows, and end."""
    first, _ = await insert_job(connection, correlation_key="k", unique_for=dt.timedelta(hours=1))
    await finish(connection, first)

    assert await insert_job(connection, correlation_key="k") == (first, False)

    await connection.execute("update gendurable.gen_durable set unique_until = now() - interval '1 second'")

    second, inserted = await insert_job(connection, correlation_key="k")
    assert inserted
    assert second > first


async def test_a_reservation_that_is_over_does_not_free_the_key_of_a_live_row(connection):
    """Two rows would own one key."""
    first, _ = await insert_job(connection, correlation_key="k", unique_for=dt.timedelta(hours=1))
    await connection.execute("update gendurable.gen_durable set unique_until = now() - interval '1 second'")

    assert await insert_job(connection, correlation_key="k") == (first, False)


async def test_it_belongs_to_the_callers_transaction(connection, other_connection):
    """No job without the order, and no order without the job."""
    with contextlib.suppress(ZeroDivisionError):
        async with connection.transaction():
            await insert_job(connection, correlation_key="k")
            raise ZeroDivisionError

    assert (await insert_job(other_connection, correlation_key="k"))[1]


async def test_a_holder_that_is_not_committed_is_waited_for(connection, other_connection):
    """Its transaction decides who has the key."""
    transaction = connection.transaction()
    await transaction.start()
    await insert_job(connection, correlation_key="k")
    waiting = asyncio.ensure_future(insert_job(other_connection, correlation_key="k"))
    await waits_for_a_lock(connection, other_connection)
    await transaction.rollback()

    assert (await asyncio.wait_for(waiting, 10))[1]


async def test_a_holder_that_ends_meanwhile_makes_way(connection, other_connection):
    """Between "the key is taken" and "by whom" another transaction ended the holder:

    caller:  insert meets holder ........................ nobody has it: inserts again
    worker:                       holder done, committed
    """
    first, _ = await insert_job(connection, correlation_key="k")
    await connection.execute(
        """
        create function public.pause() returns trigger language plpgsql as
            'begin perform pg_advisory_xact_lock(4242); return null; end';
        create trigger pause after insert on gendurable.gen_durable for each statement execute function public.pause();
        """
    )
    await connection.execute("select pg_advisory_lock(4242)")
    waiting = asyncio.ensure_future(insert_job(other_connection, correlation_key="k"))
    await waits_for_a_lock(connection, other_connection)
    await finish(connection, first)
    await connection.execute("select pg_advisory_unlock(4242)")

    second, inserted = await asyncio.wait_for(waiting, 10)
    assert inserted
    assert second > first


async def waits_for_a_lock(connection, waiter):
    """Return when the other session stands at a lock."""
    async with asyncio.timeout(10):
        while not await connection.fetchval("select cardinality(pg_blocking_pids($1)) > 0", waiter.get_server_pid()):
            pass


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_holder_that_cannot_be_seen_is_a_serialization_failure(connection, other_connection, isolation):
    """An answer from an old snapshot would be wrong; 40001 is what callers retry on."""
    async with connection.transaction(isolation=isolation):
        await connection.fetch("select count(*) from gendurable.gen_durable")
        await insert_job(other_connection, correlation_key="k")

        with pytest.raises(asyncpg.SerializationError):
            await insert_job(connection, correlation_key="k")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fsm": None}, "fsm is empty"),
        ({"fsm": " "}, "fsm is empty"),
        ({"fsm": "x" * (NAME_CHARS_MAX + 1)}, "fsm has 129 characters; at most 128"),
        ({"queue": ""}, "queue is empty"),
        ({"queue": "x" * 129}, "queue has 129 characters"),
        ({"step": "x" * 129}, "step has 129 characters"),
        ({"tags": ["a", ""]}, "a tag is empty"),
        ({"tags": ["a", None]}, "a tag is empty"),
        ({"tags": ["x" * 129]}, "a tag has 129 characters"),
        ({"tags": [["a"], ["b"]]}, "tags must be a plain list"),
        ({"tags": ["a"] * (TAGS_MAX + 1)}, "there are 33 tags"),
        ({"correlation_key": ""}, "correlation_key is empty"),
        ({"correlation_key": "é" * 256 + "x"}, "correlation_key takes 513 bytes; at most 512"),
        ({"concurrency_key": ""}, "concurrency_key is empty"),
        ({"concurrency_key": "x" * 513}, "concurrency_key takes 513 bytes"),
        ({"args": "[1]"}, "args must be a JSON object, not array"),
        ({"args": "null"}, "args must be a JSON object, not null"),
        ({"metadata": '"x"'}, "metadata must be a JSON object, not string"),
        ({"args": {"a": "x" * VALUE_BYTES_MAX}}, "args takes 1048585 bytes as JSON; at most 1048576"),
        ({"metadata": {"a": "x" * VALUE_BYTES_MAX}}, "metadata takes 1048585 bytes"),
        ({"args": '{"a": 1e400}'}, "args holds a number that is too large"),
        ({"args": '{"a": [{"b": -1e309}]}'}, "args holds a number that is too large"),
        ({"priority": 32768}, "priority is 32768"),
        ({"priority": -32769}, "priority is -32769"),
        ({"fsm_version": 0}, "fsm_version is 0"),
        ({"schedule_in": dt.timedelta(seconds=-1)}, "schedule_in is -1 days +23:59:59"),
        ({"schedule_in": dt.timedelta(days=36526)}, "schedule_in is 36526 days"),
        ({"eligible_at": dt.datetime(1969, 12, 31, tzinfo=dt.UTC)}, "eligible_at is 1969-12-31"),
        ({"eligible_at": dt.datetime(9000, 1, 1, tzinfo=dt.UTC)}, "eligible_at is 9000-01-01"),
        ({"eligible_at": dt.datetime.max.replace(tzinfo=dt.UTC)}, "eligible_at is infinity"),
        ({"deadline_at": dt.datetime(9000, 1, 1, tzinfo=dt.UTC)}, "deadline_at is 9000-01-01"),
        ({"expires_at": dt.datetime(1900, 1, 1, tzinfo=dt.UTC)}, "expires_at is 1900-01-01"),
        ({"eligible_at": FUTURE, "schedule_in": dt.timedelta(1)}, "exclude each other"),
        ({"scope": "forever"}, "scope is 'forever'; use live, ever or none"),
        ({"correlation_key": "k", "scope": "LIVE"}, "scope is 'LIVE'"),
        ({"scope": "ever"}, "scope says how long a correlation key is reserved"),
        ({"unique_for": dt.timedelta(hours=1)}, "unique_for reserves a correlation key"),
        ({"unique_for": dt.timedelta(hours=1), "correlation_key": "k", "scope": "none"}, "unique_for reserves"),
        ({"unique_for": dt.timedelta(0), "correlation_key": "k"}, "unique_for is 0"),
        ({"unique_for": dt.timedelta(days=-1), "correlation_key": "k"}, "unique_for is -1 days"),
    ],
)
async def test_what_the_client_refuses_is_refused(connection, arguments, message):
    """A row that a worker cannot read would fail far from whoever wrote it."""
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await insert_job(connection, **arguments)

    assert message in str(caught.value)
    assert await connection.fetchval("select count(*) from gendurable.gen_durable") == 0


async def test_what_is_just_within_the_limits_is_taken(connection):
    """No stricter than the client."""
    row_id, inserted = await insert_job(
        connection,
        "ü" * NAME_CHARS_MAX,
        queue="x" * NAME_CHARS_MAX,
        priority=-32768,
        correlation_key="é" * (KEY_BYTES_MAX // 2),
        concurrency_key="x" * KEY_BYTES_MAX,
        args={"a": "x" * (VALUE_BYTES_MAX - len('{"a": ""}'))},
        metadata='{"a": 1.7976931348623157e308, "b": -1e308, "c": 123456789012345678901234567890}',
        tags=["t" * NAME_CHARS_MAX] * TAGS_MAX,
        eligible_at=dt.datetime(8999, 12, 31, tzinfo=dt.UTC),
    )

    assert inserted
    assert (await stored(connection, row_id))["priority"] == -32768
    assert (await insert_job(connection, tags=[], schedule_in=dt.timedelta(days=36525)))[1]


@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
async def test_nesting_is_counted(connection, brackets):
    """Level 64 is the last, whatever is nested in what."""
    opened, closed = brackets

    def nested(levels):
        inner = levels - 1
        core = "{}" if opened != "[" else "[]"
        return '{"x":' + opened * (inner - 1) + core + closed * (inner - 1) + "}"

    assert (await insert_job(connection, args=nested(DEPTH_MAX)))[1]
    with pytest.raises(asyncpg.InvalidParameterValueError, match="args is nested deeper than 64 levels"):
        await insert_job(connection, args=nested(DEPTH_MAX + 1))


@pytest.mark.parametrize("schema", ["gendurable", "other"])
async def test_it_wakes_workers_only_when_asked(empty_dsn, schema):
    """Every commit that notifies queues behind the one before it, so nobody pays unasked."""
    await migrate_up(empty_dsn, schema=schema)
    heard = asyncio.Queue()
    listener = await asyncpg.connect(empty_dsn)
    writer = await asyncpg.connect(empty_dsn)
    try:
        await listener.add_listener(channel_of(schema), lambda *event: heard.put_nowait(event[-1]))
        await insert_job(writer, schema=schema, queue="silent")
        await insert_job(writer, schema=schema, queue="now", correlation_key="k", notify=True)
        await insert_job(writer, schema=schema, queue="duplicate", correlation_key="k", notify=True)
        await insert_job(writer, schema=schema, queue="later", schedule_in=dt.timedelta(minutes=1), notify=True)
        first = decode_message(await asyncio.wait_for(heard.get(), 10))
        second = decode_message(await asyncio.wait_for(heard.get(), 10))
    finally:
        await listener.close(timeout=5)
        await writer.close(timeout=5)

    assert first.q == {"now": 0}
    assert second.q.keys() == {"later"}
    assert 55_000 < second.q["later"] <= 60_000


async def test_another_schema_has_a_function_of_its_own(empty_dsn):
    """Its rows go to its own table."""
    await migrate_up(empty_dsn, schema="other")
    connection = await asyncpg.connect(empty_dsn)
    try:
        first, _ = await insert_job(connection, schema="other", correlation_key="k")

        assert await insert_job(connection, schema="other", correlation_key="k") == (first, False)
        assert await connection.fetchval("select count(*) from other.gen_durable") == 1
    finally:
        await connection.close(timeout=5)
