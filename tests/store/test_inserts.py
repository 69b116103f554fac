"""Inserting: what each option writes, who wins a key, and what a refused value leaves behind."""

import asyncio
import datetime as dt
import random

import asyncpg
import pytest

import gendurable as gd
from gendurable.errors import InvalidValueError, SerializationConflictError
from tests.runtime.running import count_rows, ids_of, row_of, soon

FSM = "note"
LIVE = ["runnable", "executing", "awaiting_signal", "awaiting_children"]


class NoteState(gd.State):
    text: str = ""
    n: int = 0
    items: list[object] = []  # noqa: RUF012 - msgspec copies it
    amount: float = 0.0


class Note(gd.Machine[NoteState], queue="notes", name=FSM):
    @gd.step
    async def first(self, _ctx: gd.Context[NoteState]) -> gd.Outcome:
        return gd.Next(self.second)

    @gd.step
    async def second(self, _ctx: gd.Context[NoteState]) -> gd.Outcome:
        return gd.Done()


@gd.job()
async def note_job(_ctx: gd.Context, n: int = 0) -> None:
    """Do nothing."""


@pytest.fixture
async def client(dsn):
    async with gd.Client(dsn, pool_max=4) as opened:
        yield opened


async def end(connection, instance_id: int, status: str = "done") -> None:
    """End a row as an outcome would."""
    await connection.execute(
        "update gendurable.gen_durable set status = $2::text::gendurable.durable_status, finished_at = now()"
        " where id = $1",
        instance_id,
        status,
    )


async def test_an_insert_without_options_writes_the_machines_defaults(client, connection):
    """The plainest call must mean what the machine declares."""
    answer = await client.insert(Note.with_state(text="hello"))

    row = await row_of(connection, answer.id)
    assert isinstance(answer, gd.Inserted)
    assert (row["fsm"], row["fsm_version"], row["step"], row["queue"]) == (FSM, 1, "first", "notes")
    assert (row["status"], row["attempt"], row["priority"], row["claim"]) == ("runnable", 0, 0, 0)
    assert row["eligible_at"] == row["inserted_at"]
    assert (row["correlation_key"], row["correlation_scope"], row["tags"], row["metadata"]) == (None, None, None, None)


async def test_every_option_is_written(client, connection):
    """An option that is accepted and then dropped would be the worst kind of refusal."""
    parent = await client.insert(Note.with_state())
    answer = await client.insert(
        Note.with_state(),
        queue="other",
        priority=-5,
        delay=dt.timedelta(minutes=1),
        correlation_key="order:1",
        scope="ever",
        concurrency_key="tenant:7",
        metadata={"a": [1, {"b": None}]},
        tags=["x", "y", "x"],
        deadline=3600,
        expires_at=1800,
        parent_id=parent.id,
        step="second",
    )

    row = await row_of(connection, answer.id)
    read = await client.get(answer.id)
    assert (row["queue"], row["priority"], row["step"], row["parent_id"]) == ("other", -5, "second", parent.id)
    assert (row["correlation_key"], row["concurrency_key"], row["concurrency_name"]) == (
        "order:1",
        "tenant:7",
        "tenant",
    )
    assert len(row["correlation_scope"]) == 7
    assert row["tags"] == ["x", "y"]
    assert read.metadata == {"a": [1, {"b": None}]}
    assert row["eligible_at"] - row["inserted_at"] == dt.timedelta(minutes=1)
    assert row["deadline_at"] - row["inserted_at"] == dt.timedelta(hours=1)
    assert row["expires_at"] - row["inserted_at"] == dt.timedelta(minutes=30)


@pytest.mark.parametrize("key", [None, "k"])
async def test_times_may_be_given_as_moments(client, connection, key):
    """A calendar's time must not be turned into a duration by the caller; both insert statements take it."""
    at = dt.datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    answer = await client.insert(Note.with_state(), at=at, deadline=at, expires_at=at, correlation_key=key)

    row = await row_of(connection, answer.id)
    assert row["eligible_at"] == row["deadline_at"] == row["expires_at"] == at


async def test_many_rows_of_all_kinds_are_answered_in_the_order_of_the_input(client, connection):
    """E35: callers zip answers with their input; a shifted answer would sign the wrong order."""
    requests = []
    for n in range(300):
        request = (Note if n % 2 else note_job).with_state(n=n) if n % 2 else note_job.with_args(n=n)
        if n % 3 == 0:
            request = request.with_options(correlation_key=f"key:{n % 60}", priority=n % 7)
        elif n % 5 == 0:
            request = request.with_options(correlation_key=f"none:{n % 10}", scope="none", tags=[str(n)])
        requests.append(request)
    taken = await client.insert(Note.with_state(n=-1), correlation_key="key:9")

    answers = await client.insert_many(requests, queue="shared")

    rows = {
        row["id"]: row for row in await connection.fetch("select *, state ->> 'n' as n from gendurable.gen_durable")
    }
    first_of: dict[str, int] = {"key:9": taken.id}
    previous = 0
    assert len(answers) == 300
    for n, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        key = request.options.correlation_key if request.options else None
        if key is not None and key.startswith("key:") and key in first_of:
            assert answer == gd.Duplicate(first_of[key]), n
            continue
        assert isinstance(answer, gd.Inserted), n
        assert rows[answer.id]["n"] == str(n)
        assert rows[answer.id]["correlation_key"] == key
        assert rows[answer.id]["queue"] == ("shared" if request.options is None else request.definition.queue)
        # Rows of one insert run in the order of the input, so their ids rise with it.
        assert answer.id > previous
        previous = answer.id
        if key is not None:
            first_of.setdefault(key, answer.id)


async def test_six_thousand_keyed_rows_go_in_with_one_call(client, connection):
    """E35: a statement with one parameter per value would end at 65,535 parameters, and scopes must stay intact."""
    keys = [f"key:{n}" for n in range(6000)]
    random.Random(1).shuffle(keys)

    answers = await client.insert_many([Note.with_state().with_options(correlation_key=key) for key in keys])

    assert len({answer.id for answer in answers}) == 6000
    assert all(isinstance(answer, gd.Inserted) for answer in answers)
    by_id = dict(await connection.fetch("select id, correlation_key from gendurable.gen_durable"))
    assert [by_id[answer.id] for answer in answers] == keys
    scopes = await connection.fetch("select distinct correlation_scope::text[] as scope from gendurable.gen_durable")
    assert [row["scope"] for row in scopes] == [LIVE]


async def test_nothing_to_insert_is_no_statement(client):
    """E35: an empty list gives an empty list, without a round trip."""
    before = client.database.statements_total

    assert await client.insert_many([]) == []
    assert client.database.statements_total == before


async def test_any_number_of_rows_is_one_statement(client):
    """The statement budget: an insert of N rows is one."""
    before = client.database.statements_total
    await client.insert_many([Note.with_state(n=n) for n in range(1000)], notify=False)
    keyed = [Note.with_state(n=n).with_options(correlation_key=str(n)) for n in range(1000)]
    await client.insert_many(keyed, notify=False)

    assert client.database.statements_total == before + 2


async def test_batches_with_the_same_new_keys_in_opposite_orders_never_deadlock(dsn, connection):
    """E36: written in input order they would wait for each other crosswise, about once in a few rounds."""
    async with gd.Client(dsn) as left, gd.Client(dsn) as right:
        for round_ in range(100):
            keys = [f"{round_}:{n:03}" for n in range(40)]
            one = [Note.with_state().with_options(correlation_key=key) for key in keys]
            other = list(reversed(one))
            ours, theirs = await soon(asyncio.gather(left.insert_many(one), right.insert_many(other)))

            won = [
                isinstance(a, gd.Inserted) + isinstance(b, gd.Inserted) for a, b in zip(ours, theirs[::-1], strict=True)
            ]
            assert won == [1] * 40
            assert ids_of(ours) == ids_of(theirs[::-1])

    assert await count_rows(connection) == 4000


async def test_a_taken_key_answers_with_its_holder_until_the_holder_ends(client, connection):
    """E37: the key of a running order refuses a second one, and is free as soon as the first has ended."""
    first = await client.insert(Note.with_state(), correlation_key="order:1")

    assert await client.insert(Note.with_state(), correlation_key="order:1") == gd.Duplicate(first.id)
    for status in ("done", "failed", "cancelled"):
        await end(connection, first.id, status)
        first = await client.insert(Note.with_state(), correlation_key="order:1")
        assert isinstance(first, gd.Inserted)


async def test_a_key_with_the_scope_ever_is_reserved_after_the_end(client, connection):
    """E37: a payment must not be made twice, also not a day later."""
    first = await client.insert(Note.with_state(), correlation_key="pay:1", scope=gd.Scope.EVER)
    await end(connection, first.id)

    assert await client.insert(Note.with_state(), correlation_key="pay:1") == gd.Duplicate(first.id)
    await connection.execute("delete from gendurable.gen_durable")
    assert isinstance(await client.insert(Note.with_state(), correlation_key="pay:1"), gd.Inserted)


async def test_rows_without_a_key_never_conflict(client):
    """E37: null is no key."""
    answers = await client.insert_many([Note.with_state(), Note.with_state().with_options(scope="live")])

    assert all(isinstance(answer, gd.Inserted) for answer in answers)


async def test_the_scope_none_lets_many_rows_carry_a_key_and_addresses_none(client):
    """E37: a label for people; an address would have to choose one of them."""
    answers = [await client.insert(Note.with_state(), correlation_key="batch", scope="none") for _ in range(3)]
    unique = await client.insert(Note.with_state(), correlation_key="batch")

    assert all(isinstance(answer, gd.Inserted) for answer in [*answers, unique])
    assert (await client.cancel(key="batch")).id == unique.id
    with pytest.raises(gd.errors.NotFoundError):
        await client.cancel(key="batch")


@pytest.mark.parametrize("scope", ["runnable", "['runnable']", "", None, 3])
async def test_a_scope_that_leaves_out_a_live_status_cannot_be_said(client, connection, scope):
    """E38: such a row's next transition could collide with a stranger; the presets are all there is."""
    with pytest.raises(InvalidValueError, match="scope") as refused:
        await client.insert(Note.with_state(), correlation_key="k", scope=scope)

    assert refused.value.path == "scope"
    assert await count_rows(connection) == 0


async def test_the_table_refuses_a_scope_that_leaves_out_a_live_status(connection):
    """E38: rows that other programs insert are held to the same rule."""
    with pytest.raises(asyncpg.CheckViolationError, match="gen_durable_scope_whole"):
        await connection.execute(
            "insert into gendurable.gen_durable (fsm, step, correlation_key, correlation_scope)"
            " values ('note', 'first', 'k', '{runnable,done}')"
        )


async def test_unique_for_reserves_a_key_after_the_end_and_until_its_time_is_over(client, connection):
    """A report asked for twice within the hour is made once, also when the first is long done."""
    first = await client.insert(Note.with_state(), correlation_key="report", unique_for=3600)
    await end(connection, first.id)

    assert await client.insert(Note.with_state(), correlation_key="report") == gd.Duplicate(first.id)
    reserved = (await row_of(connection, first.id))["unique_until"]
    assert reserved - (await row_of(connection, first.id))["inserted_at"] == dt.timedelta(hours=1)
    await connection.execute("update gendurable.gen_durable set unique_until = now() - interval '1 microsecond'")
    second = await client.insert(Note.with_state(), correlation_key="report")
    assert isinstance(second, gd.Inserted)


async def test_unique_for_frees_the_key_to_the_moment(client, connection):
    """Exactly when the time is over: neither a sweep nor a retention may be needed for it."""
    first = await client.insert(Note.with_state(), correlation_key="report", unique_for=0.3)
    await end(connection, first.id)
    until = (await row_of(connection, first.id))["unique_until"]

    answers = []
    while not answers or isinstance(answers[-1][0], gd.Duplicate):
        before = await connection.fetchval("select clock_timestamp()")
        answers.append((await client.insert(Note.with_state(), correlation_key="report"), before))
        assert before < until + dt.timedelta(seconds=5)

    freed, _ = answers[-1]
    assert (await row_of(connection, freed.id))["inserted_at"] >= until
    assert all(before < until for _, before in answers[:-1])


async def test_a_live_row_keeps_its_key_beyond_unique_for(client, connection):
    """The reservation adds to the life of the row, it never shortens it."""
    first = await client.insert(Note.with_state(), correlation_key="long", unique_for=0.001)
    await connection.execute("update gendurable.gen_durable set unique_until = now() - interval '1 hour'")

    assert await client.insert(Note.with_state(), correlation_key="long") == gd.Duplicate(first.id)


async def test_two_inserts_free_an_expired_key_for_exactly_one_of_them(dsn, connection):
    """The freeing must not let both in."""
    async with gd.Client(dsn) as left, gd.Client(dsn) as right:
        for n in range(20):
            first = await left.insert(Note.with_state(), correlation_key=f"k{n}", unique_for=0.001)
            await end(connection, first.id)
            await connection.execute("update gendurable.gen_durable set unique_until = now() - interval '1 s'")
            answers = await soon(
                asyncio.gather(*(one.insert(Note.with_state(), correlation_key=f"k{n}") for one in (left, right)))
            )

            assert sorted(type(answer).__name__ for answer in answers) == ["Duplicate", "Inserted"]


async def test_state_is_stored_as_a_json_object(client, connection):
    """E39: a state stored as a string within jsonb cannot be queried, and nobody notices for a year."""
    one = await client.insert(Note.with_state(text="x"))
    many = await client.insert_many(
        [Note.with_state(text="y"), Note.with_state(text="z").with_options(correlation_key="k")]
    )

    for instance_id, text in zip([one.id, *ids_of(many)], "xyz", strict=True):
        kind, value = await connection.fetchrow(
            "select jsonb_typeof(state), state ->> 'text' from gendurable.gen_durable where id = $1", instance_id
        )
        assert (kind, value) == ("object", text)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"priority": 2**15}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"queue": ""}, "queue"),
        ({"queue": " "}, "queue"),
        ({"queue": "a" * 129}, "queue"),
        ({"queue": "a\0b"}, "queue"),
        ({"queue": 7}, "queue"),
        ({"delay": -1}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": float("inf")}, "delay"),
        ({"delay": 101 * 366 * 86400}, "delay"),
        ({"delay": "5s"}, "delay"),
        ({"at": dt.datetime(2030, 1, 1)}, "at"),  # noqa: DTZ001 - the missing zone is what is refused
        ({"at": dt.datetime(1969, 12, 31, tzinfo=dt.UTC)}, "at"),
        ({"at": dt.datetime(9000, 1, 1, tzinfo=dt.UTC)}, "at"),
        ({"at": "2030-01-01"}, "at"),
        ({"delay": 1, "at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC)}, "at"),
        ({"correlation_key": ""}, "correlation_key"),
        ({"correlation_key": "é" * 257}, "correlation_key"),
        ({"correlation_key": "\ud800"}, "correlation_key"),
        ({"correlation_key": "a\0"}, "correlation_key"),
        ({"concurrency_key": ""}, "concurrency_key"),
        ({"concurrency_key": "x" * 513}, "concurrency_key"),
        ({"concurrency_key": b"x"}, "concurrency_key"),
        ({"scope": "ever"}, "scope"),
        ({"unique_for": 5}, "scope"),
        ({"correlation_key": "k", "unique_for": 0}, "unique_for"),
        ({"metadata": [1]}, "metadata"),
        ({"metadata": {"a": float("nan")}}, "metadata.a"),
        ({"metadata": {"a": {"b": "\0"}}}, "metadata.a.b"),
        ({"metadata": {"a": object()}}, "metadata.a"),
        ({"tags": "one"}, "tags"),
        ({"tags": [""]}, "tag"),
        ({"tags": [str(n) for n in range(33)]}, "tags"),
        ({"tags": 5}, "tags"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": dt.datetime(2030, 1, 1)}, "deadline"),  # noqa: DTZ001
        ({"expires_at": -5}, "expires_at"),
        ({"step": "third"}, "step"),
        ({"step": ""}, "step"),
        ({"parent_id": "7"}, "parent_id"),
        ({"parent_id": True}, "parent_id"),
        ({"parent_id": 2**63}, "parent_id"),
        ({"concurency_key": "k"}, "options"),
        ({"rate_limit": "x"}, "options"),
    ],
)
async def test_a_value_that_cannot_be_used_is_refused_with_its_place(client, connection, options, path):
    """E33: every refusal is the caller's own exception, names the place, and writes nothing."""
    for call in (
        lambda: client.insert(Note.with_state(), **options),
        lambda: client.insert_many([Note.with_state(), Note.with_state()], **options),
        lambda: client.insert_async(Note.with_state(), **options),
        lambda: client.insert(Note.with_state().with_options(**options)),
    ):
        with pytest.raises(InvalidValueError) as refused:
            await call()
        assert refused.value.path == path

    assert await count_rows(connection) == 0


DEEP: list[object] = []
for _ in range(70):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"text": "a\0b"}, "state.text"),
        ({"text": "\udc80"}, "state.text"),
        ({"amount": float("nan")}, "state.amount"),
        ({"amount": float("-inf")}, "state.amount"),
        ({"items": [1, {"x": [float("inf")]}]}, "state.items[1].x[0]"),
        ({"items": [object()]}, "state.items[0]"),
        ({"text": "x" * (1024 * 1024)}, "state"),
    ],
)
async def test_a_state_that_cannot_be_stored_is_refused_with_its_place(client, connection, fields, path):
    """A value Postgres or JSON cannot hold must not reach a batch, where it would cost the others."""
    with pytest.raises(InvalidValueError) as refused:
        await client.insert(Note.with_state(**fields))

    assert refused.value.path == path
    assert await count_rows(connection) == 0


async def test_a_state_that_is_too_deep_is_refused():
    """Postgres and other readers have a stack; 64 levels are enough for anybody."""
    with pytest.raises(InvalidValueError, match="deeper than 64") as refused:
        Note.with_state(items=DEEP)

    assert refused.value.path.startswith("state.items[0]")


async def test_one_bad_row_of_insert_many_leaves_none(client, connection):
    """All of them or none: half an order book is worse than an error."""
    stranger = Note.with_state().with_options(parent_id=404)
    with pytest.raises(gd.errors.StoreDataError):
        await client.insert_many([Note.with_state(), stranger, Note.with_state()])

    assert await count_rows(connection) == 0


async def test_an_insert_joins_the_callers_transaction(client, connection):
    """The row must commit or vanish with the caller's own rows."""
    await connection.execute("create table mine (n int)")
    undone = connection.transaction()
    await undone.start()
    await connection.execute("insert into mine values (1)")
    await client.insert(Note.with_state(), correlation_key="k", connection=connection)
    await undone.rollback()
    assert await count_rows(connection) == 0

    async with connection.transaction():
        await connection.execute("insert into mine values (2)")
        kept = await client.insert(Note.with_state(), correlation_key="k", connection=connection)
    assert await count_rows(connection) == 1
    assert await connection.fetchval("select count(*) from mine") == 1
    assert (await client.get(key="k")).id == kept.id


async def test_a_duplicate_does_not_spoil_the_callers_transaction(client, connection):
    """An answer is a value: the caller's own rows must still commit after it."""
    holder = await client.insert(Note.with_state(), correlation_key="k")
    await connection.execute("create table mine (n int)")

    async with connection.transaction():
        await connection.execute("insert into mine values (1)")
        answer = await client.insert(Note.with_state(), correlation_key="k", connection=connection)

    assert answer == gd.Duplicate(holder.id)
    assert await connection.fetchval("select count(*) from mine") == 1


async def test_a_refused_option_does_not_spoil_the_callers_transaction(client, connection):
    """It is found before anything is sent, so the transaction is as it was."""
    async with connection.transaction():
        with pytest.raises(InvalidValueError):
            await client.insert(Note.with_state(), priority=10**6, connection=connection)
        await client.insert(Note.with_state(), connection=connection)

    assert await count_rows(connection) == 1


async def test_an_insert_waits_for_the_transaction_that_holds_its_key(dsn, connection):
    """The other transaction decides: its rollback frees the key, its commit makes this one the duplicate."""
    async with gd.Client(dsn) as client:
        for is_kept in (False, True):
            held = connection.transaction()
            await held.start()
            holder = await client.insert(Note.with_state(), correlation_key="k", connection=connection)
            second = asyncio.create_task(client.insert(Note.with_state(), correlation_key="k"))
            await _blocked(dsn)
            await (held.commit() if is_kept else held.rollback())
            answer = await soon(second)

            if is_kept:
                assert answer == gd.Duplicate(holder.id)
            else:
                assert isinstance(answer, gd.Inserted)
                await end(connection, answer.id)


async def _blocked(dsn: str) -> None:
    """Return when a session of this database waits for another."""
    looking = await asyncpg.connect(dsn)
    try:
        for _ in range(2000):
            if await looking.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and cardinality(pg_blocking_pids(pid)) > 0"
            ):
                return
            await asyncio.sleep(0.005)
        raise AssertionError("no session waits for another")
    finally:
        await looking.close()


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_key_taken_behind_the_back_of_a_snapshot_is_a_clear_error(client, connection, isolation):
    """Under these levels the holder cannot be seen, so no true answer exists; a savepoint saves the rest [L7]."""
    await connection.execute("create table mine (n int)")
    async with connection.transaction(isolation=isolation):
        await connection.execute("insert into mine values (1)")
        holder = await client.insert(Note.with_state(), correlation_key="k")
        with pytest.raises(SerializationConflictError):
            async with connection.transaction():
                await client.insert(Note.with_state(), correlation_key="k", connection=connection)
        await client.insert(Note.with_state(), correlation_key="other", connection=connection)

    assert await connection.fetchval("select count(*) from mine") == 1
    assert {instance.correlation_key for instance in await client.list()} == {"k", "other"}
    assert (await client.get(key="k")).id == holder.id


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_key_that_the_snapshot_can_see_is_an_ordinary_duplicate(client, connection, isolation):
    """A higher isolation level alone is no reason to refuse."""
    holder = await client.insert(Note.with_state(), correlation_key="k")
    async with connection.transaction(isolation=isolation):
        answer = await client.insert(Note.with_state(), correlation_key="k", connection=connection)

    assert answer == gd.Duplicate(holder.id)


async def test_an_empty_state_of_a_plain_dict_machine_is_an_object(client, connection):
    """E24: a machine without a state type takes any mapping."""

    class Loose(gd.Machine[dict]):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done()

    empty = await client.insert(Loose.with_state())
    filled = await client.insert(Loose.with_state({"a": {"b": [1]}}))

    assert (
        await connection.fetchval("select jsonb_typeof(state) from gendurable.gen_durable where id = $1", empty.id)
        == "object"
    )
    assert (await client.get(filled.id)).state == {"a": {"b": [1]}}
