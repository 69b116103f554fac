"""The client for threaded code."""

import asyncio
import inspect
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import gendurable as gd
from gendurable.errors import BatcherClosedError, InvalidValueError, NotFoundError, StoreUnavailableError
from tests.runtime.running import SOON_S, running, soon


@gd.job()
async def double(_ctx: gd.Context, n: int) -> dict[str, int]:
    return {"n": 2 * n}


@gd.job()
async def fail(_ctx: gd.Context) -> None:
    return gd.Stop("no luck")


async def in_thread(function, *arguments):
    return await soon(asyncio.to_thread(function, *arguments), within_s=30)


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gendurable-client"]


def test_it_has_the_calls_of_the_async_client():
    """Whoever reads the guide for one must find the same names, options and defaults in the other."""
    apart = {"database", "note_ended", "over", "transaction"}
    names = {name for name in dir(gd.Client) if not name.startswith("_")} - apart

    assert names == {name for name in dir(gd.SyncClient) if not name.startswith("_")}
    for name in names:
        ours = dict(inspect.signature(getattr(gd.SyncClient, name)).parameters)
        theirs = dict(inspect.signature(getattr(gd.Client, name)).parameters)
        theirs.pop("connection", None)
        assert ours == theirs, name
    built = dict(inspect.signature(gd.Client.__init__).parameters)
    built.pop("hub")
    assert dict(inspect.signature(gd.SyncClient.__init__).parameters) == built


async def test_a_thread_inserts_waits_and_reads(dsn):
    """The whole way of a job must be open to code without an event loop."""

    def use() -> tuple[object, ...]:
        with gd.SyncClient(dsn) as client:
            first = client.insert(double.with_args(n=1), correlation_key="one", tags=["t"])
            again = client.insert(double.with_args(n=1), correlation_key="one")
            many = client.insert_many([double.with_args(n=n) for n in range(3)])
            results = [client.result(answer.id) for answer in [first, *many]]
            waited = client.wait(first.id)
            listed = client.list(tags=["t"])
            failed = client.insert(fail.with_args())
            client.wait(failed.id)
            retried = client.retry(failed.id)
            return first, again, results, waited, listed, client.get(first.id), retried, client.cancel(first.id)

    async with running(dsn, double, fail):
        first, again, results, waited, listed, read, retried, cancelled = await in_thread(use)

    # The job may have ended before the second insert, and its key is free again then.
    assert again == gd.Duplicate(first.id) or isinstance(again, gd.Inserted)
    assert results == [{"n": 2}, {"n": 0}, {"n": 2}, {"n": 4}]
    assert waited == read
    assert listed[0].id == first.id
    assert isinstance(retried, gd.Retried)
    assert cancelled == gd.NotCancelled(first.id, gd.Status.DONE)


async def test_many_threads_share_one_client(dsn):
    """A web server's threads all use the one client of their process."""

    def use() -> list[int]:
        with gd.SyncClient(dsn, pool_max=3) as client, ThreadPoolExecutor(16) as threads:

            def one(n: int) -> int:
                return client.result(client.insert(double.with_args(n=n)).id)["n"]

            return list(threads.map(one, range(100)))

    async with running(dsn, double):
        results = await in_thread(use)

    assert results == [2 * n for n in range(100)]


async def test_insert_async_answers_through_a_future_and_is_written_by_the_close(dsn, connection):
    """Rows handed over just before the end of a script must not be lost with it."""

    def use() -> list[object]:
        with gd.SyncClient(dsn) as client:
            answers = [client.insert_async(double.with_args(n=n)) for n in range(500)]
        assert all(isinstance(answer, Future) and answer.done() for answer in answers)
        return [answer.result() for answer in answers]

    answers = await in_thread(use)

    assert all(isinstance(answer, gd.Inserted) for answer in answers)
    assert await connection.fetchval("select count(*) from gendurable.gen_durable") == 500


async def test_a_bad_row_of_insert_async_is_refused_in_the_calling_thread(dsn):
    """The caller who made the mistake is the one to hear of it."""

    def use() -> None:
        with gd.SyncClient(dsn) as client, pytest.raises(InvalidValueError):
            client.insert_async(double.with_args(n=1), queue="")

    await in_thread(use)


async def test_errors_arrive_as_they_are(dsn):
    """An except clause written for the async client works for this one."""

    def use() -> None:
        with gd.SyncClient(dsn) as client:
            with pytest.raises(NotFoundError):
                client.wait(404)
            with pytest.raises(InvalidValueError):
                client.insert(double.with_args(n=1), priority=2**20)

    await in_thread(use)


async def test_a_connection_is_refused_with_the_reason(dsn, connection):
    """A connection belongs to one event loop; using it from another would corrupt its protocol."""

    def use() -> None:
        with gd.SyncClient(dsn) as client, pytest.raises(TypeError, match="no connection="):
            client.insert(double.with_args(n=1), connection=connection)

    await in_thread(use)


async def test_closing_answers_who_still_waits(dsn):
    """A thread in wait() must not keep a process from ending."""
    waiting = threading.Event()

    def use() -> object:
        client = gd.SyncClient(dsn)
        with ThreadPoolExecutor(1) as threads:
            with client:
                held = client.insert(double.with_args(n=1), delay=600)

                def wait() -> object:
                    waiting.set()
                    return client.wait(held.id, timeout=600)

                answer = threads.submit(wait)
                waiting.wait(SOON_S)
                while not client._client._watcher.waiting:
                    pass
            return answer.result(SOON_S), held.id

    answer, instance_id = await in_thread(use)

    assert answer == gd.StillRunning(instance_id)


async def test_the_end_leaves_no_thread_and_later_calls_say_so(dsn):
    """A closed client must neither leak its thread nor hang its callers."""

    def use() -> None:
        with gd.SyncClient(dsn) as client:
            assert len(client_threads()) == 1
        assert client_threads() == []
        with pytest.raises(StoreUnavailableError, match="not open"):
            client.get(1)
        with pytest.raises(BatcherClosedError):
            client.insert_async(double.with_args(n=1))
        with client:
            assert client.get(1) is None
        assert client_threads() == []

    await in_thread(use)


async def test_an_unreachable_database_leaves_no_thread(free_port):
    """A failed start must be as if it had not been tried."""

    def use() -> None:
        dsn = f"postgresql://postgres@127.0.0.1:{free_port}/nothing"
        with pytest.raises(StoreUnavailableError):
            gd.SyncClient(dsn, connect_timeout=5).__enter__()
        assert client_threads() == []

    await in_thread(use)


@pytest.fixture
def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
