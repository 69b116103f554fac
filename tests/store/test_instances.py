"""Reading, cancelling and retrying instances, and the transactions callers do it in."""

import asyncio
import datetime as dt

import pytest

import gendurable as gd
from gendurable.errors import InvalidValueError, NotFoundError, StoreContendedError
from tests.runtime.running import count_rows, ids_of, row_of, soon


@gd.job(queue="mail")
async def mail(_ctx: gd.Context, n: int = 0) -> None:
    """Do nothing."""


class Order(gd.Machine[dict]):
    @gd.step
    async def start(self, _ctx: gd.Context[dict]) -> gd.Outcome:
        return gd.Done()


@pytest.fixture
async def client(dsn):
    async with gd.Client(dsn) as opened:
        yield opened


async def change(connection, instance_id: int, assignments: str) -> None:
    """Bring a row into a state, as a worker would have."""
    await connection.execute(f"update gendurable.gen_durable set {assignments} where id = $1", instance_id)


EXECUTING = (
    "status = 'executing', locked_by = 'node/boot', lease_expires_at = now() + interval '1 hour', claim = claim + 1"
)


async def test_get_reads_by_id_and_by_key(client):
    """Both names of an instance lead to the same row, and a name nobody has to None."""
    answer = await client.insert(
        Order.with_state({"a": 1}), correlation_key="order:1", metadata={"by": "me"}, tags=["t"]
    )

    read = await client.get(answer.id)
    assert read == await client.get(key="order:1")
    assert (read.id, read.machine, read.status, read.state) == (answer.id, "Order", gd.Status.RUNNABLE, {"a": 1})
    assert (read.metadata, read.tags, read.errors, read.result) == ({"by": "me"}, ["t"], [], None)
    assert not read.is_terminal
    assert await client.get(404) is None
    assert await client.get(key="order:2") is None


async def test_a_key_finds_its_holder_before_a_younger_row_that_carried_it(client, connection):
    """The address must win over the history: a signal and a look must mean the same row."""
    holder = await client.insert(mail.with_args(), correlation_key="k")
    label = await client.insert(mail.with_args(), correlation_key="k", scope="none")

    assert (await client.get(key="k")).id == holder.id
    await change(connection, holder.id, "status = 'done', finished_at = now()")
    assert (await client.get(key="k")).id == label.id


@pytest.mark.parametrize("call", ["get", "wait", "result", "cancel"])
@pytest.mark.parametrize(
    "target", [(None, None), (1, "k"), ("k", None), (True, None), (1.0, None), (None, ""), (2**63, None)]
)
async def test_a_target_is_an_id_or_a_key(client, call, target):
    """A key given as an id would otherwise be a confusing refusal of the driver, and both could disagree."""
    with pytest.raises(InvalidValueError):
        await getattr(client, call)(target[0], key=target[1])


@pytest.mark.parametrize("target", ["k", True, 2**63, None])
async def test_retry_takes_an_id(client, target):
    """The same for the one call that takes no key."""
    with pytest.raises(InvalidValueError):
        await client.retry(target)


async def test_list_pages_through_everything_youngest_first(client):
    """A page by id stays stable while rows come and go; an offset would skip or repeat."""
    ids = ids_of(await client.insert_many([mail.with_args(n=n) for n in range(25)]))

    seen: list[int] = []
    page = await client.list(limit=10)
    while page:
        seen.extend(instance.id for instance in page)
        await client.insert(mail.with_args())
        page = await client.list(limit=10, before_id=page[-1].id)

    assert seen == ids[::-1]


async def test_list_filters_by_everything_it_offers(client, connection):
    """A filter that silently lets everything through would show the wrong tenant's orders."""
    parent = await client.insert(Order.with_state())
    a = await client.insert(mail.with_args(), tags=["red", "big"], metadata={"tenant": 1, "more": {"x": [1, 2]}})
    b = await client.insert(mail.with_args(), tags=["red"], metadata={"tenant": 2}, parent_id=parent.id)
    c = await client.insert(Order.with_state(), queue="slow", correlation_key="order:1")
    d = await client.insert(Order.with_state(), queue="slow", correlation_key="order_2")
    await change(connection, c.id, "status = 'done', finished_at = now()")
    await change(connection, d.id, "status = 'failed', finished_at = now()")

    async def listed(**filters) -> list[int]:
        return [instance.id for instance in await client.list(**filters)]

    assert await listed(machine="mail") == [b.id, a.id]
    assert await listed(queue="slow") == [d.id, c.id]
    assert await listed(status="done") == await listed(status=gd.Status.DONE) == [c.id]
    assert await listed(status=["done", gd.Status.FAILED]) == [d.id, c.id]
    assert await listed(tags=["red"]) == [b.id, a.id]
    assert await listed(tags=["red", "big"]) == [a.id]
    assert await listed(metadata={"tenant": 1}) == [a.id]
    assert await listed(metadata={"more": {"x": [2]}}) == [a.id]
    assert await listed(parent_id=parent.id) == [b.id]
    assert await listed(key_prefix="order:") == [c.id]
    assert await listed(key_prefix="order_") == [d.id]
    assert await listed(machine="Order", status="failed", queue="slow") == [d.id]
    assert await listed(machine="nobody") == []


@pytest.mark.parametrize(
    ("filters", "path"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": "10"}, "limit"),
        ({"status": "finished"}, "status"),
        ({"status": ["done", 3]}, "status"),
        ({"machine": ""}, "machine"),
        ({"queue": "a\0"}, "queue"),
        ({"tags": ["\ud800"]}, "tag"),
        ({"tags": "red"}, "tags"),
        ({"metadata": "x"}, "metadata"),
        ({"key_prefix": ""}, "key_prefix"),
        ({"before_id": "7"}, "before_id"),
        ({"parent_id": 2**64}, "parent_id"),
    ],
)
async def test_a_filter_that_cannot_be_used_is_refused(client, filters, path):
    """E33: a wrong filter is the caller's mistake and names itself."""
    with pytest.raises(InvalidValueError) as refused:
        await client.list(**filters)

    assert refused.value.path == path


@pytest.mark.parametrize("status", ["runnable", "awaiting_signal", "awaiting_children"])
async def test_cancel_ends_a_waiting_instance_at_once(client, connection, status):
    """Nothing runs it, so nobody has to be waited for; its key is free in the same commit."""
    answer = await client.insert(mail.with_args(), correlation_key="k", delay=3600)
    await change(connection, answer.id, f"status = '{status}'")

    assert await client.cancel(key="k", reason="the customer left") == gd.Cancelled(answer.id)

    read = await client.get(answer.id)
    assert (read.status, read.cancel_reason, read.last_error) == ("cancelled", "the customer left", "the customer left")
    assert read.finished_at is not None
    assert isinstance(await client.insert(mail.with_args(), correlation_key="k"), gd.Inserted)


async def test_cancel_marks_an_executing_instance_and_keeps_the_first_reason(client, connection):
    """Its worker owns the row until its next commit; taking it away would let two run."""
    answer = await client.insert(mail.with_args())
    await change(connection, answer.id, EXECUTING)

    assert await client.cancel(answer.id, reason="first") == gd.CancelRequested(answer.id)
    assert await client.cancel(answer.id, reason="second") == gd.CancelRequested(answer.id)

    row = await row_of(connection, answer.id)
    assert (row["status"], row["cancel_reason"], row["claim"], row["locked_by"]) == (
        "executing",
        "first",
        1,
        "node/boot",
    )
    assert row["finished_at"] is None


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
async def test_cancel_leaves_an_ended_instance_alone(client, connection, status):
    """A late click must not rewrite history."""
    answer = await client.insert(mail.with_args())
    await change(connection, answer.id, f"status = '{status}', finished_at = now()")
    before = await row_of(connection, answer.id)

    assert await client.cancel(answer.id) == gd.NotCancelled(answer.id, gd.Status(status))
    assert await row_of(connection, answer.id) == before


async def test_cancel_of_nobody_says_so(client):
    """An unknown id is misuse, not an answer."""
    with pytest.raises(NotFoundError):
        await client.cancel(404)
    with pytest.raises(NotFoundError):
        await client.cancel(key="nobody")


@pytest.mark.parametrize("reason", ["a\0b", "\ud800", 7])
async def test_a_reason_that_cannot_be_stored_is_refused(client, connection, reason):
    """The row must be as it was."""
    answer = await client.insert(mail.with_args())

    with pytest.raises(InvalidValueError):
        await client.cancel(answer.id, reason=reason)
    assert (await row_of(connection, answer.id))["status"] == "runnable"


async def test_cancelling_the_next_row_of_a_key_passes_the_key_on(client, connection):
    """The row that was un-held owns the turn; cancelling it must give the turn to the next, not wait for a repair."""
    turn, *held = ids_of(await client.insert_many([mail.with_args() for _ in range(3)], concurrency_key="k"))
    await connection.execute("update gendurable.gen_durable set held = true where id = any($1::bigint[])", held)

    await client.cancel(turn)

    assert not (await row_of(connection, held[0]))["held"]
    assert (await row_of(connection, held[1]))["held"]


async def test_retry_runs_a_failed_instance_again_from_the_step_it_ended_in(client, connection):
    """An operator has mended the cause; the attempts used up before must not count."""
    answer = await client.insert(Order.with_state({"a": 1}), correlation_key="k", deadline=3600, expires_at=1800)
    await change(
        connection,
        answer.id,
        "status = 'failed', finished_at = now(), step = 'later', attempt = 19, crashes = 4, snoozes = 7,"
        " last_error = 'x', deadline_at = now() - interval '1 s', expires_at = now() - interval '1 s',"
        " started_at = now()",
    )

    assert await client.retry(answer.id) == gd.Retried(answer.id)

    row = await row_of(connection, answer.id)
    assert (row["status"], row["step"], row["attempt"], row["crashes"], row["snoozes"]) == (
        "runnable",
        "later",
        0,
        0,
        0,
    )
    assert (row["finished_at"], row["deadline_at"], row["expires_at"]) == (None, None, None)
    assert row["claim"] == 1
    assert await client.insert(Order.with_state(), correlation_key="k") == gd.Duplicate(answer.id)


async def test_retry_runs_a_cancelled_instance_again(client, connection):
    """A cancellation by mistake can be undone, and does not cancel it a second time."""
    answer = await client.insert(mail.with_args())
    await client.cancel(answer.id)

    assert await client.retry(answer.id) == gd.Retried(answer.id)
    row = await row_of(connection, answer.id)
    assert (row["status"], row["cancel_reason"]) == ("runnable", None)


@pytest.mark.parametrize(
    ("state", "status"),
    [("status = 'done', finished_at = now()", "done"), ("priority = 0", "runnable"), (EXECUTING, "executing")],
)
async def test_retry_refuses_what_has_not_ended_or_is_done(client, connection, state, status):
    """Running a done instance again would do its work twice."""
    answer = await client.insert(mail.with_args())
    await change(connection, answer.id, state)
    before = await row_of(connection, answer.id)

    assert await client.retry(answer.id) == gd.NotRetried(answer.id, gd.Status(status))
    assert await row_of(connection, answer.id) == before


async def test_retry_is_refused_with_the_holder_when_its_key_was_taken(client, connection):
    """The caller needs to know who has it now; the caller's transaction goes on."""
    first = await client.insert(mail.with_args(), correlation_key="k")
    await change(connection, first.id, "status = 'failed', finished_at = now()")
    second = await client.insert(mail.with_args(), correlation_key="k")

    assert await client.retry(first.id) == gd.Conflict(first.id, second.id)
    await connection.execute("create table mine (n int)")
    async with connection.transaction():
        await connection.execute("insert into mine values (1)")
        assert await client.retry(first.id, connection=connection) == gd.Conflict(first.id, second.id)
        await connection.execute("insert into mine values (2)")
    assert await connection.fetchval("select count(*) from mine") == 2
    assert (await row_of(connection, first.id))["status"] == "failed"


async def test_retry_of_nobody_says_so(client):
    """An unknown id is misuse, not an answer."""
    with pytest.raises(NotFoundError):
        await client.retry(404)


async def test_cancel_and_retry_commit_or_vanish_with_the_callers_transaction(client, connection):
    """They are parts of the caller's business step like any write of theirs."""
    waiting = await client.insert(mail.with_args())
    ended = await client.insert(mail.with_args())
    await change(connection, ended.id, "status = 'failed', finished_at = now()")

    for is_kept in (False, True):
        transaction = connection.transaction()
        await transaction.start()
        assert isinstance(await client.cancel(waiting.id, connection=connection), gd.Cancelled)
        assert isinstance(await client.retry(ended.id, connection=connection), gd.Retried)
        assert (await client.get(waiting.id, connection=connection)).status == "cancelled"
        assert (await client.get(waiting.id)).status == "runnable"
        await (transaction.commit() if is_kept else transaction.rollback())
        statuses = [(await client.get(one.id)).status for one in (waiting, ended)]
        assert statuses == (["cancelled", "runnable"] if is_kept else ["runnable", "failed"])


async def test_the_clients_own_transaction_commits_and_rolls_back(client, connection):
    """client.transaction() is the plain way to write one's own rows and an instance together."""
    await connection.execute("create table mine (n int)")
    with pytest.raises(ZeroDivisionError):
        await _write_both(client, 0)
    assert (await count_rows(connection), await connection.fetchval("select count(*) from mine")) == (0, 0)

    await _write_both(client, 1)
    assert (await count_rows(connection), await connection.fetchval("select count(*) from mine")) == (1, 1)
    assert client._after_commit == {}


async def _write_both(client, n: int) -> None:
    async with client.transaction() as own:
        await own.execute("insert into mine values (1)")
        await client.insert(mail.with_args(n=n), connection=own)
        assert await own.fetchval("show transaction_isolation") == "read committed"
        _ = 1 / n


async def test_a_commit_that_fails_leaves_no_wake_ups_behind(client, connection):
    """A later transaction of the same identity would collect its wake-ups for a commit that never comes."""
    await connection.execute("create table mine (n int primary key deferrable initially deferred)")

    with pytest.raises(gd.errors.StoreDataError):
        await _fail_at_the_commit(client)

    assert client._after_commit == {}
    assert await count_rows(connection) == 0


async def _fail_at_the_commit(client) -> None:
    async with client.transaction() as own:
        await client.insert(mail.with_args(), connection=own)
        await own.execute("insert into mine values (1), (1)")


async def test_a_cancel_waits_for_the_transaction_that_holds_the_row(client, connection):
    """It must act on what that transaction made of the row, not on what it was before."""
    answer = await client.insert(mail.with_args())
    holding = connection.transaction()
    await holding.start()
    await change(connection, answer.id, EXECUTING)
    cancelling = asyncio.create_task(client.cancel(answer.id))
    done, _ = await asyncio.wait([cancelling], timeout=0.1)
    assert not done
    await holding.commit()

    assert await soon(cancelling) == gd.CancelRequested(answer.id)
    assert (await row_of(connection, answer.id))["cancel_reason"] is not None


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_cancel_behind_the_back_of_a_snapshot_is_a_clear_error(client, connection, isolation):
    """An old snapshot must not decide about a row that has moved on [L7]."""
    answer = await client.insert(mail.with_args())
    async with connection.transaction(isolation=isolation):
        await connection.fetchval("select 1 from gendurable.gen_durable")
        await client.cancel(answer.id)
        with pytest.raises(StoreContendedError) as refused:
            async with connection.transaction():
                await client.cancel(answer.id, connection=connection)
        assert refused.value.constraint == "serialization"
        assert await connection.fetchval("select 1") == 1


async def test_reading_on_a_connection_sees_its_transaction(client, connection):
    """A page that a caller builds within a transaction must show that transaction's rows."""
    async with connection.transaction():
        answer = await client.insert(mail.with_args(), connection=connection)

        assert [instance.id for instance in await client.list(connection=connection)] == [answer.id]
        assert (await client.get(answer.id, connection=connection)).inserted_at <= dt.datetime.now(dt.UTC)
        assert list(await client.list()) == []
