"""``gendurable worker`` as an operator meets it: real processes, real signals, exit codes."""

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from tests.runtime.processes import ISOLATION, JOBS, PATIENCE_S, eventually, folder_for_a_server, running

PASSWORD = "hunter2-and-more"


@pytest.fixture
def folder(tmp_path):
    """A project with one module of jobs."""
    (tmp_path / "jobs_under_test.py").write_text(JOBS, encoding="utf-8")
    return tmp_path


@pytest.fixture
def worker(folder, dsn):
    """Start a worker on the test's database; no other mechanism than the one under test is fast enough to matter."""

    def start(*arguments, address=dsn, environment=None):
        return running(
            *("worker", "--dsn", address, "--import", "jobs_under_test", "--http-port", "0"),
            *("--poll-interval", "60s", "--drain-timeout", "60s"),
            *arguments,
            cwd=folder,
            environment=environment,
        )

    return start


@pytest.fixture
async def rows(dsn):
    """What the instance table says: (status, locked, attempt, crashes) of every row, counted."""
    connection = await asyncpg.connect(dsn)

    async def count():
        found = await connection.fetch(
            "select status::text, locked_by is not null, attempt, crashes from gendurable.gen_durable"
        )
        return Counter(tuple(row) for row in found)

    yield count
    await connection.close()


async def insert(dsn, name, count, **state):
    """Insert rows by the SQL function, so that no code of theirs is loaded here."""
    connection = await asyncpg.connect(dsn)
    try:
        for _ in range(count):
            await connection.execute("select gendurable.insert_job($1, $2)", name, json.dumps(state))
    finally:
        await connection.close()


def with_password(dsn):
    """The same address with a password, which the test server does not ask for."""
    return dsn.replace("//postgres@", f"//postgres:{PASSWORD}@", 1)


async def test_an_unreachable_database_ends_the_start_at_its_deadline(folder):
    """A fleet must see the difference between "not yet" and "never"; E75."""
    arguments = ("worker", "--dsn", f"postgresql://me:{PASSWORD}@127.0.0.1:1/db", "--start-deadline", "1s", "--no-http")
    async with running(*arguments, cwd=folder) as process:
        code = await process.ended()

    assert code == 4
    assert process.output.count("the database cannot be reached yet") >= 2
    assert "could not be reached within 1 s" in process.output
    assert PASSWORD not in process.output
    assert "Traceback" not in process.output


async def test_a_database_that_comes_up_late_is_waited_for(worker, dsn):
    """Containers start in any order; E75."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    late = f"postgresql://postgres@127.0.0.1:{port}/{urlsplit(dsn).path.strip('/')}"
    async with worker(address=late) as process:
        await process.event("the database cannot be reached yet")
        async with _forwarding(port, parse_qs(urlsplit(dsn).query)["host"][0]):
            await process.event("worker ready")
            process.send(signal.SIGTERM)
            code = await process.ended()

    assert code == 0


async def test_a_stop_while_waiting_for_the_database_is_clean(folder):
    """Nothing is held yet, so there is nothing to fail at."""
    arguments = ("worker", "--dsn", "postgresql://me@127.0.0.1:1/db", "--start-deadline", "60s", "--no-http")
    async with running(*arguments, cwd=folder) as process:
        await process.event("the database cannot be reached yet")
        process.send(signal.SIGTERM)
        code = await process.ended()

    assert code == 0


async def test_an_unmigrated_database_is_refused_with_the_command_to_run(worker, empty_dsn):
    """The operator should not have to look up what to do."""
    async with worker(address=empty_dsn) as process:
        code = await process.ended()

    assert code == 5
    assert "gendurable migrate up" in process.output
    assert "Traceback" not in process.output


async def test_every_broken_module_is_listed(worker, folder):
    """One restart for each problem would be cruel."""
    (folder / "broken_here.py").write_text("raise RuntimeError('no key to the vault')")
    async with worker("--import", "broken_here", "--import", "not_there_at_all") as process:
        code = await process.ended()

    assert code == 3
    assert "no key to the vault" in process.output
    assert "not_there_at_all" in process.output
    assert "Traceback" not in process.output


async def test_a_broken_entry_point_names_its_package(worker, folder):
    """With many packages installed, "import failed" alone is no help."""
    info = folder / "culprit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: culprit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gendurable.machines]\nmail = not_there_at_all:mail\n")
    async with worker(environment={"PYTHONPATH": f"{ISOLATION}:{folder}"}) as process:
        code = await process.ended()

    assert code == 3
    assert "package culprit, entry point mail" in process.output


async def test_wrong_options_are_all_listed_and_nothing_is_started(worker, rows, dsn):
    """E79."""
    await insert(dsn, "quick", 1)
    async with worker("--concurrency", "0", "--lease-ttl", "30") as process:
        code = await process.ended()

    assert code == 3
    assert "--concurrency" in process.output
    assert "--lease-ttl" in process.output
    assert await rows() == {("runnable", False, 0, 0): 1}


async def test_a_taken_port_is_a_wrong_configuration(worker):
    """Two workers on one host is the first thing people try."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with worker("--http-port", str(taken.getsockname()[1])) as process:
            code = await process.ended()

    assert code == 3
    assert "--http-port" in process.output


async def test_a_signal_drains_and_hands_back_at_once_what_has_not_started(worker, folder, rows, dsn):
    """Other nodes go on with those rows while the running step ends; E76."""
    await insert(dsn, "gated", 4)
    async with worker("--concurrency", "1", environment={"GENDURABLE_QUEUE_PREFETCH": "5"}) as process:
        await process.until("started")
        process.send(signal.SIGTERM)
        await eventually(lambda: _is(rows, {("executing", True, 0, 0): 1, ("runnable", False, 0, 0): 3}))
        (folder / "gate").touch()
        code = await process.ended()

    assert code == 0
    assert await rows() == {("done", False, 0, 0): 1, ("runnable", False, 0, 0): 3}
    drained = await process.event("worker drained")
    assert (drained["finished"], drained["handed_back"], drained["cut"], drained["unflushed"]) == (1, 3, 0, 0)


async def test_a_second_signal_hands_everything_back_at_once(worker, rows, dsn):
    """Somebody presses Ctrl-C twice because once was too slow; no attempt is spent."""
    await insert(dsn, "gated", 2)
    async with worker() as process:
        await process.until("started")
        process.send(signal.SIGINT)
        await process.event("stopping")
        process.send(signal.SIGINT)
        code = await process.ended()

    assert code == 6
    assert await rows() == {("runnable", False, 0, 0): 2}


async def test_a_blocked_thread_does_not_keep_the_process(worker, rows, dsn):
    """A thread cannot be killed; the process that holds it can end."""
    await insert(dsn, "blocking", 1, seconds=300)
    async with worker("--drain-timeout", "100ms") as process:
        await process.until("blocking")
        process.send(signal.SIGTERM)
        code = await process.ended()

    assert code == 6
    assert await rows() == {("runnable", False, 0, 0): 1}


async def test_a_thread_that_outlived_its_step_does_not_keep_the_process(worker, rows, dsn):
    """Nothing waits for its answer any more, so the drain is clean, and a clean drain does not take five minutes."""
    await insert(dsn, "escaping", 1)
    async with worker() as process:
        await eventually(lambda: _is(rows, {("runnable", False, 1, 0): 1}))
        process.send(signal.SIGTERM)
        code = await process.ended()

    assert code == 0


async def test_the_drain_timeout_cuts_steps_off(worker, rows, dsn):
    """A container is killed soon after; a row handed back now need not wait for its lease."""
    await insert(dsn, "gated", 1)
    async with worker("--drain-timeout", "100ms") as process:
        await process.until("started")
        process.send(signal.SIGTERM)
        code = await process.ended()

    assert code == 6
    assert (await process.event("worker drained"))["cut"] == 1
    assert await rows() == {("runnable", False, 0, 0): 1}


async def test_drain_works_until_the_queues_are_empty(worker, rows, dsn):
    """A batch job of a cluster: it ends by itself, and what is due tomorrow does not keep it."""
    await insert(dsn, "quick", 50)
    plain = await asyncpg.connect(dsn)
    await plain.execute("select gendurable.insert_job('quick', schedule_in => interval '1 day')")
    await plain.close()
    async with worker("--drain") as process:
        code = await process.ended()

    assert code == 0
    assert await rows() == {("done", False, 0, 0): 50, ("runnable", False, 0, 0): 1}


async def test_once_takes_one_batch(worker, rows, dsn):
    """For cron and for a look at one row; the rest stays where it is."""
    await insert(dsn, "quick", 5)
    environment = {"GENDURABLE_QUEUE_PREFETCH": "0", "GENDURABLE_QUEUE_CLAIM_MAX": "2"}
    async with worker("--once", environment=environment) as process:
        code = await process.ended()

    assert code == 0
    assert await rows() == {("done", False, 0, 0): 2, ("runnable", False, 0, 0): 3}


async def test_quit_prints_threads_and_tasks_and_the_worker_goes_on(worker, folder, rows, dsn):
    """What hangs is asked in production, where no debugger is."""
    await insert(dsn, "gated", 1)
    async with worker() as process:
        await process.until("started")
        process.send(signal.SIGQUIT)
        await process.until(" tasks ====")
        await process.until("in gated")
        await process.until("-- heartbeat")
        (folder / "gate").touch()
        await eventually(lambda: _is(rows, {("done", False, 0, 0): 1}))
        process.send(signal.SIGTERM)
        code = await process.ended()

    assert code == 0
    assert "hread 0x" in process.output


async def test_the_password_is_never_printed(worker, folder, rows, dsn):
    """Logs are read by more people than the database; not in a start, a dump, a drain or a failure."""
    await insert(dsn, "gated", 1)
    secret = folder / "secret"
    secret.write_text(with_password(dsn))
    async with worker("--log-level", "debug", address=with_password(dsn)) as process:
        await process.until("started")
        process.send(signal.SIGQUIT)
        await process.until(" tasks ====")
        (folder / "gate").touch()
        process.send(signal.SIGTERM)
        assert await process.ended() == 0
    for arguments in (("config", "show"), ("worker", "--schema", "elsewhere", "--no-http"), ("show", "1"), ("nodes",)):
        async with running(*arguments, cwd=folder, environment={"GENDURABLE_DSN_FILE": str(secret)}) as other:
            await other.ended()
        process.lines += other.lines

    assert await rows() == {("done", False, 0, 0): 1}
    assert PASSWORD not in process.output


async def test_a_failed_part_ends_the_worker_with_one(worker, folder):
    """A bug must be seen by whoever restarts processes, not be worked around in silence."""
    (folder / "faulty.py").write_text(
        "from gendurable.runtime.reaper import Reaper\n"
        "async def run(self): raise RuntimeError('a bug of ours')\n"
        "Reaper.run = run\n"
    )
    async with worker("--import", "faulty") as process:
        code = await process.ended()

    assert code == 1
    assert "a bug of ours" in process.output


async def test_a_lifespan_that_fails_ends_the_start(worker, folder):
    """Steps without their resources would fail one by one."""
    (folder / "closed.py").write_text(
        "import gendurable as gd\n"
        "@gd.lifespan\n"
        "async def vault():\n"
        "    raise RuntimeError('the vault is closed')\n"
        "    yield {}\n"
    )
    async with worker("--import", "closed") as process:
        code = await process.ended()

    assert code == 1, process.output
    assert "the vault is closed" in process.output


async def test_a_worker_without_queues_executes_nothing(worker, rows, dsn):
    """Roles are chosen by options; E81."""
    await insert(dsn, "quick", 1)
    async with worker("--queues", "none", "--no-reaper", "--no-collector", "--no-reconciler") as process:
        ready = await process.event("worker ready")
        process.send(signal.SIGTERM)
        code = await process.ended()

    assert code == 0
    assert ready["queues"] == []
    assert await rows() == {("runnable", False, 0, 0): 1}


async def test_an_embedded_server_is_migrated_and_stopped(folder, postgres):
    """One command on a fresh machine; nothing is left running after it."""
    directory = folder_for_a_server()
    environment = {"GENDURABLE_POSTGRES_BIN": str(_programs_of(postgres))}
    arguments = ("worker", "--embedded", str(directory), "--drain", "--http-port", "0")
    async with running(*arguments, cwd=folder, environment=environment) as process:
        code = await process.ended()

    assert code == 0, process.output
    assert "worker drained" in process.output
    assert (directory / "data").exists()
    assert not (directory / "data" / "postmaster.pid").exists()
    shutil.rmtree(directory)


async def test_help_is_there_without_a_database_and_names_every_command():
    """The first thing anybody types."""
    shown = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "gendurable.cli", "--help"], capture_output=True, text=True, check=True
    )

    for name in ("worker", "dev", "insert", "show", "list", "cancel", "retry", "queues", "machines", "nodes", "probe"):
        assert f"  {name} " in shown.stdout


async def _is(rows, expected):
    return await rows() == expected


def _programs_of(postgres):
    """The folder of the programs that the run's own server came from."""
    return next(
        argument.rpartition("/")[0] for argument in _command_line(postgres.pid) if argument.endswith("/postgres")
    )


def _command_line(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        return file.read().decode().split("\0")


@contextlib.asynccontextmanager
async def _forwarding(port, socket_folder):
    """A port that leads to the server's socket."""
    pumps = set()

    async def serve(reader, writer):
        inner_reader, inner_writer = await asyncio.open_unix_connection(f"{socket_folder}/.s.PGSQL.5432")
        for source, target in ((reader, inner_writer), (inner_reader, writer)):
            pump = asyncio.create_task(_pump(source, target))
            pumps.add(pump)

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        await asyncio.wait(pumps, timeout=PATIENCE_S)
        for pump in pumps:
            pump.cancel()


async def _pump(source, target):
    with contextlib.suppress(OSError):
        while chunk := await source.read(65_536):
            target.write(chunk)
            await target.drain()
    target.close()
