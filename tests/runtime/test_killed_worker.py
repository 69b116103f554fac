"""Real workers killed with -9: how soon their rows run again, and what they have lost."""

import asyncio
import contextlib
import signal
import sys
import time

import gendurable as gd
from tests.runtime.running import count_rows, ids_of, row_of, soon
from tests.runtime.worker_script import hold, poison, quick


@contextlib.asynccontextmanager
async def worker(dsn: str, *, ttl_s: float, may_die: bool = False, slots: int = 10):
    """A worker process, ready unless it may die before that, and killed at the end."""
    arguments = ["-m", "tests.runtime.worker_script", dsn, str(ttl_s), str(slots)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    try:
        assert may_die or await read_line(process) == "ready"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def read_line(process) -> str:
    return (await soon(process.stdout.readline(), within_s=30)).decode().strip()


async def test_a_killed_workers_rows_run_again_after_their_lease_with_no_attempt_spent(dsn):
    """E15: within the lease and a second, on another process; crashes counts what happened."""
    async with gd.Client(dsn) as client, worker(dsn, ttl_s=1.5) as first:
        ids = ids_of(await client.insert_many([hold.with_args(seconds=600) for _ in range(5)]))
        for _ in ids:
            assert (await read_line(first)).startswith("started")
        async with worker(dsn, ttl_s=1.5):
            first.kill()
            await first.wait()
            killed_s = time.monotonic()
            results = [await soon(client.result(instance_id)) for instance_id in ids]

    assert results == [{"attempt": 0, "crashes": 1}] * 5
    assert time.monotonic() - killed_s < 10


async def test_a_worker_restarted_at_once_takes_back_what_its_killed_predecessor_held(dsn, connection):
    """E18: with a lease of a minute the restart must not wait for it.

    The predecessor is proven dead: same boot of the machine, same pid namespace, its pid gone, and silent for two
    heartbeats. A live one of the same name, or one that cannot be seen from here, would keep its rows.
    """
    async with gd.Client(dsn) as client:
        async with worker(dsn, ttl_s=6) as first:
            ids = ids_of(await client.insert_many([hold.with_args(seconds=600) for _ in range(5)]))
            for _ in ids:
                await read_line(first)
            # From here on no lease may be what frees the rows.
            await connection.execute("update gendurable.gen_durable set lease_expires_at = now() + interval '1 hour'")
            await connection.execute("update gendurable.nodes set lease_expires_at = now() + interval '1 hour'")
            first.kill()
            await first.wait()
        async with worker(dsn, ttl_s=6):
            restarted_s = time.monotonic()
            results = [await soon(client.result(instance_id)) for instance_id in ids]
            seconds = time.monotonic() - restarted_s
        rows = [await row_of(connection, instance_id) for instance_id in ids]

    assert results == [{"attempt": 0, "crashes": 1}] * 5
    assert {row["claim"] for row in rows} == {3}
    assert seconds < 7


async def test_a_restart_takes_nothing_from_a_live_process_that_is_merely_silent(dsn, connection):
    """E17, L17: silence alone proves nothing; the process may be stopped, or its machine may swap."""
    async with gd.Client(dsn) as client, worker(dsn, ttl_s=6) as first:
        answer = await client.insert(hold.with_args(seconds=600))
        await read_line(first)
        first.send_signal(signal.SIGSTOP)
        try:
            await connection.execute("update gendurable.gen_durable set lease_expires_at = now() + interval '1 hour'")
            await connection.execute(
                "update gendurable.nodes set beat_at = now() - interval '1 hour',"
                " lease_expires_at = now() + interval '1 hour'"
            )
            async with worker(dsn, ttl_s=6):
                other = await client.insert(quick.with_args())
                await soon(client.result(other.id))
                await asyncio.sleep(1.5)
                row = await row_of(connection, answer.id)
        finally:
            first.send_signal(signal.SIGCONT)

    assert (row["status"], row["claim"], row["crashes"]) == ("executing", 1, 0)


async def test_a_step_that_kills_its_process_fails_after_max_crashes(dsn):
    """E21: without an end it would take down one worker after the other for ever; attempts are not spent by it."""
    async with gd.Client(dsn) as client:
        answer = await client.insert(poison.with_args())
        for _ in range(3):
            async with worker(dsn, ttl_s=1, may_die=True) as victim:
                assert await soon(victim.wait(), within_s=30) == -signal.SIGKILL
        async with worker(dsn, ttl_s=1) as survivor:
            read = await soon(client.wait(answer.id))
            assert survivor.returncode is None

    assert (read.status, read.crashes, read.attempt) == ("failed", 3, 0)
    assert "max_crashes is 3" in read.last_error
    assert [error.kind for error in read.errors] == ["crash"] * 3


async def test_a_poisonous_row_fails_alone_and_everything_beside_it_is_done(dsn, connection):
    """E21: a crash counts for everything the process held, 100 innocent rows here, and one crash more would fail them.

    From the second crash on they run one at a time, so that only the culprit is there when it strikes again.
    """
    async with gd.Client(dsn) as client:
        requests = [quick.with_args() for _ in range(100)]
        ids = ids_of(await client.insert_many([*requests[:50], poison.with_args(), *requests[50:]]))
        deaths = 0
        while await count_rows(connection, "finished_at is null"):
            async with worker(dsn, ttl_s=1, may_die=True, slots=200) as process:
                ended = asyncio.ensure_future(process.wait())
                while not ended.done() and await count_rows(connection, "finished_at is null"):
                    await asyncio.wait([ended], timeout=0.05)
                deaths += ended.done()
                ended.cancel()
            assert deaths <= 3
        culprit = await client.get(ids[50])
        rows = [await row_of(connection, instance_id) for instance_id in ids]

    assert [row["status"] for row in rows] == ["done"] * 50 + ["failed"] + ["done"] * 50
    assert culprit.last_error == "step run was running in 3 processes that died; max_crashes is 3"
    # Had the neighbours never been in danger, this would prove nothing.
    assert [row["crashes"] for row in rows] == [2] * 50 + [3] + [2] * 50
