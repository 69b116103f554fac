"""Wake-ups with every poll a minute away: what wakes a worker, when, and what does not."""

import asyncio
import contextlib
import time

import asyncpg
import pytest

import gendurable as gd
from gendurable.poke.message import PokeMessage, channel_of, decode_message
from tests.runtime.running import at_rest, count_rows, ids_of, row_of, running, soon, until, until_row


@gd.job()
async def quick(_ctx: gd.Context, n: int = 0) -> dict[str, int]:
    return {"n": n}


class Heard:
    """What arrives on a channel."""

    def __init__(self) -> None:
        self.messages: list[PokeMessage] = []

    def take(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self.messages.append(decode_message(str(payload)))


@contextlib.asynccontextmanager
async def listening(dsn: str):
    """Hear every notification of the test's schema."""
    heard = Heard()
    connection = await asyncpg.connect(dsn)
    await connection.add_listener(channel_of("gendurable"), heard.take)
    try:
        yield heard
    finally:
        await connection.close()


async def test_an_insert_wakes_the_engine_of_another_process(dsn):
    """Without it, the poll interval would be the latency of everything."""
    async with running(dsn, quick), gd.Client(dsn) as other:
        answer = await other.insert(quick.with_args(n=1))
        assert await soon(other.result(answer.id, timeout=50)) == {"n": 1}


async def test_a_delayed_row_runs_on_time_and_its_insert_claims_nothing(dsn, connection):
    """E04: the insert only sets a timer; with polls at a minute the row runs when it is due."""
    async with running(dsn, quick) as engine:
        picker = await at_rest(engine)
        before = picker.claims_total
        answer = await engine.client.insert(quick.with_args(), delay=0.4)
        await asyncio.sleep(0.12)
        assert (await row_of(connection, answer.id))["status"] == "runnable"
        assert picker.claims_total == before
        await soon(engine.client.result(answer.id, timeout=50))
        row = await row_of(connection, answer.id)

    assert 0 <= (row["started_at"] - row["eligible_at"]).total_seconds() < 1


@pytest.mark.parametrize("listens", [True, False])
async def test_a_delayed_row_of_another_process_runs_on_time(dsn, connection, listens):
    """L25: the notification carries the time. Without notifications the engine knows what its last claim saw."""
    async with gd.Client(dsn) as other:
        early = None if listens else await other.insert(quick.with_args(), delay=0.3)
        async with running(dsn, quick, listens=listens):
            answer = early or await other.insert(quick.with_args(), delay=0.3)
            await soon(other.result(answer.id, timeout=50))
            row = await row_of(connection, answer.id)

    assert 0 <= (row["started_at"] - row["eligible_at"]).total_seconds() < 1


async def test_an_earlier_row_resets_the_timer_and_a_later_one_does_not(dsn):
    """The timer is at the earliest due time known; the last one told must not overwrite it."""
    order: list[int] = []

    @gd.job()
    async def note(_ctx: gd.Context, n: int) -> None:
        order.append(n)

    async with running(dsn, note) as engine:
        later = await engine.client.insert(note.with_args(n=3), delay=0.4)
        sooner = await engine.client.insert(note.with_args(n=1), delay=0.1)
        await engine.client.insert(note.with_args(n=9), delay=3600)
        between = await engine.client.insert(note.with_args(n=2), delay=0.2)
        for answer in (later, sooner, between):
            await soon(engine.client.result(answer.id, timeout=50))

    assert order == [1, 2, 3]


@pytest.mark.parametrize("way", ["asyncpg", "client", "savepoint"])
async def test_an_insert_in_the_callers_transaction_runs_after_its_commit(dsn, connection, way):
    """E41: never before the commit, promptly after it, with polls at a minute."""
    async with running(dsn, quick) as engine, gd.Client(dsn) as other, listening(dsn) as heard:
        picker = await at_rest(engine)
        before = picker.claims_total
        transaction = other.transaction() if way == "client" else _transaction(connection)
        async with transaction as own:
            if way == "savepoint":
                async with own.transaction():
                    answer = await other.insert(quick.with_args(), connection=own)
            else:
                answer = await other.insert(quick.with_args(), connection=own)
            await asyncio.sleep(0.2)
            assert picker.claims_total == before
            assert heard.messages == []
        await soon(other.result(answer.id, timeout=50))


@contextlib.asynccontextmanager
async def _transaction(connection):
    async with connection.transaction():
        yield connection


@pytest.mark.parametrize("way", ["asyncpg", "client"])
async def test_a_rollback_wakes_nobody(dsn, connection, way):
    """E41: a wake-up for rows that do not exist is a claim for nothing, for every process."""
    async with gd.Client(dsn) as other, listening(dsn) as heard:
        with pytest.raises(ZeroDivisionError):
            await _insert_and_fail(other, connection, way)
        await other.insert(quick.with_args(), queue="marker")
        await until(lambda: heard.messages)

        assert [list(message.q) for message in heard.messages] == [["marker"]]
    assert await count_rows(connection) == 1


async def _insert_and_fail(client, connection, way: str) -> None:
    async with client.transaction() if way == "client" else _transaction(connection) as own:
        await client.insert(quick.with_args(), connection=own)
        raise ZeroDivisionError


async def test_a_transaction_with_many_inserts_notifies_once_for_a_queue(dsn, connection):
    """L24: a NOTIFY serialises commits, so a caller's transaction has one for each queue at most."""
    async with gd.Client(dsn) as other, listening(dsn) as heard:
        async with connection.transaction():
            for n in range(20):
                await other.insert(quick.with_args(n=n), connection=connection)
        await until(lambda: heard.messages)
        async with other.transaction() as own:
            for n in range(20):
                await other.insert(quick.with_args(n=n), connection=own, queue="second")
        await until(lambda: any("second" in message.q for message in heard.messages))

    assert len(heard.messages) == 2


@pytest.mark.parametrize("way", ["call", "client"])
async def test_notify_false_sends_nothing(dsn, connection, way):
    """A bulk load may leave the wake-up to the polls, for one call or for a whole client."""
    async with gd.Client(dsn, notify=way != "client") as other, gd.Client(dsn) as marker, listening(dsn) as heard:
        options = {"notify": False} if way == "call" else {}
        await other.insert(quick.with_args(), **options)
        async with connection.transaction():
            await other.insert(quick.with_args(), connection=connection, **options)
        await marker.insert(quick.with_args(), queue="marker")
        await until(lambda: heard.messages)

        assert [list(message.q) for message in heard.messages] == [["marker"]]


async def test_a_duplicate_wakes_nobody(dsn):
    """Nothing was written, so there is nothing to claim."""
    async with gd.Client(dsn) as other, listening(dsn) as heard:
        await other.insert(quick.with_args(), correlation_key="k", notify=False)
        await other.insert(quick.with_args(), correlation_key="k")
        await other.insert(quick.with_args(), queue="marker")
        await until(lambda: heard.messages)

        assert [list(message.q) for message in heard.messages] == [["marker"]]


async def test_a_burst_of_inserts_is_a_few_notifications_and_none_within_an_insert(dsn):
    """E70: ten inserts cost one to three notifications, each sent after the insert was answered."""
    async with gd.Client(dsn) as other, listening(dsn) as heard:
        statements = [other.database.statements_total]
        for n in range(10):
            await other.insert(quick.with_args(n=n))
        statements.append(other.database.statements_total)
        await until(lambda: heard.messages)
        await other.insert(quick.with_args(), queue="marker")
        await until(lambda: any("marker" in message.q for message in heard.messages))

    of_the_burst = [message for message in heard.messages if "default" in message.q]
    assert 1 <= len(of_the_burst) <= 3


async def test_an_engine_ignores_its_own_notifications(dsn):
    """Its own loops were woken directly; hearing itself would claim everything twice."""
    async with running(dsn, quick) as engine:
        answer = await engine.client.insert(quick.with_args())
        await soon(engine.client.result(answer.id, timeout=50))
        picker = engine.parts.pickers["default"]
        metrics = engine.metrics.notifications
        await until(lambda: metrics.values.get(("received",), 0) >= 1)
        await until(lambda: not picker._has_backlog)

        assert picker.claims_total <= 4


async def test_listening_resumes_after_its_connection_is_cut(dsn, connection):
    """E72: a row inserted meanwhile runs within the poll floor, here by the look that follows the return."""
    async with running(dsn, quick) as engine, gd.Client(dsn) as other:
        listener = engine.parts.listener
        cut = await connection.fetchval(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where datname = current_database() and query ilike 'listen%'"
        )
        assert cut == 1
        answer = await other.insert(quick.with_args())
        await soon(other.result(answer.id, timeout=50))
        await until(lambda: listener.is_up)
        again = await other.insert(quick.with_args())
        await soon(other.result(again.id, timeout=50))


async def test_a_cut_listener_still_polls(dsn):
    """E72: without notifications the promise is the poll floor."""
    async with running(dsn, quick, listens=False, poll_interval_s=0.2), gd.Client(dsn) as other:
        answer = await other.insert(quick.with_args())
        await soon(other.result(answer.id, timeout=50))


async def test_a_thousand_pokes_with_nothing_to_claim_are_few_claims(dsn):
    """E73: a storm of wake-ups must not become a storm of statements."""
    async with running(dsn, quick) as engine:
        picker = await at_rest(engine)
        before, started_s = picker.claims_total, time.monotonic()
        for _ in range(1000):
            engine.parts.hub.poke("default")
            await asyncio.sleep(0.001)
        seconds = time.monotonic() - started_s

    assert picker.claims_total - before <= 110 * seconds


async def test_a_long_engine_name_does_not_silence_notifications(dsn):
    """E74: channel names are cut at 63 bytes by the server, so no name of a user's may be part of one."""
    async with running(dsn, quick, node="n" * 128), gd.Client(dsn) as other:
        answer = await other.insert(quick.with_args())
        await soon(other.result(answer.id, timeout=50))


async def test_a_queue_with_any_name_is_woken(dsn):
    """Names of queues travel in the payload, whatever they hold."""
    odd = "q\"; select 'x' -- é☃" + "y" * 60

    @gd.job(queue=odd)
    async def there(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with running(dsn, there), gd.Client(dsn) as other:
        answer = await other.insert(there.with_args())
        await soon(other.result(answer.id, timeout=50))


async def test_garbage_on_the_channel_is_ignored(dsn, connection):
    """Anybody may notify; a payload of somebody else's must not end the listener."""
    async with running(dsn, quick), gd.Client(dsn) as other:
        for payload in ("", "x", "[]", '{"q": 1}', '{"q": {"default": "soon"}}', "\\u0000"):
            await connection.execute("select pg_notify('gendurable_poke', $1)", payload)
        answer = await other.insert(quick.with_args())
        await soon(other.result(answer.id, timeout=50))


async def test_steady_work_keeps_all_slots_filled(dsn):
    """E10: with concurrency 2 a min_demand of 10 would never be met; it is clamped, so both slots stay busy."""
    both = asyncio.Barrier(2)

    @gd.job()
    async def pair(_ctx: gd.Context) -> None:
        await soon(both.wait())

    async with running(dsn, pair, concurrency=2, min_demand=10) as engine:
        answers = await engine.client.insert_many([pair.with_args() for _ in range(10)])
        for answer in answers:
            assert (await engine.client.wait(answer.id, timeout=20)).status == "done"


async def test_rows_handed_back_wake_the_other_engines(dsn, connection):
    """A drain must not leave its rows to the others' polls."""
    may_end, started = asyncio.Event(), asyncio.Event()

    @gd.job(name="gated")
    async def gated(_ctx: gd.Context) -> None:
        started.set()
        await may_end.wait()

    @gd.job(name="gated")
    async def open_gate(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with gd.Client(dsn) as other, running(dsn, gated, concurrency=1, prefetch=3) as first:
        ids = ids_of(await other.insert_many([gated.with_args() for _ in range(4)]))
        await soon(started.wait())
        for instance_id in ids:
            await until_row(connection, instance_id, status="executing")
        async with running(dsn, open_gate) as second:
            await at_rest(second)
            first.stop()
            for instance_id in ids[1:]:
                await soon(other.result(instance_id, timeout=50))
            may_end.set()


async def test_a_machine_unknown_here_is_run_by_the_engine_that_has_it(dsn, connection):
    """E23c: handed back with no attempt spent, and the one who knows it is told when it is due."""

    @gd.job()
    async def foreign(_ctx: gd.Context) -> dict[str, str]:
        return {"ran": "there"}

    async with running(dsn, quick) as ignorant, gd.Client(dsn) as other:
        ids = ids_of(await other.insert_many([foreign.with_args() for _ in range(20)]))
        await until(lambda: ignorant.metrics.unresolved.total() >= 10)
        mine = await other.insert(quick.with_args(n=7))
        assert await soon(other.result(mine.id, timeout=50)) == {"n": 7}
        rows = [await row_of(connection, instance_id) for instance_id in ids]
        assert {(row["status"], row["attempt"], row["crashes"]) for row in rows} == {("runnable", 0, 0)}
        async with running(dsn, foreign):
            for instance_id in ids:
                assert await soon(other.result(instance_id, timeout=50)) == {"ran": "there"}


async def test_the_engine_that_knows_a_machine_is_told_when_another_hands_it_back(dsn, connection):
    """L16: the one who knows it found nothing at the insert; without a poke with the due time it would poll for it."""

    @gd.job()
    async def foreign(_ctx: gd.Context) -> dict[str, str]:
        return {"ran": "there"}

    client = gd.Client(dsn, notify=False)
    async with running(dsn, quick) as ignorant, running(dsn, foreign) as knowing, client as other:
        await at_rest(knowing)
        answer = await other.insert(foreign.with_args())
        ignorant.parts.hub.poke("default")
        await until(lambda: ignorant.metrics.unresolved.total() == 1)
        assert await soon(other.result(answer.id, timeout=50)) == {"ran": "there"}
        assert (await row_of(connection, answer.id))["attempt"] == 0
