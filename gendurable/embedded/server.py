"""The server as one object: start or adopt, answer with an address, stop when nobody uses it."""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from pwd import struct_passwd
from types import TracebackType
from typing import Self
from urllib.parse import quote

import anyio
import anyio.to_thread

from gendurable.embedded import locks
from gendurable.embedded.account import chosen_account, hand_over, require_reachable
from gendurable.embedded.binaries import found_binaries, major_version, reachable_binaries, run
from gendurable.embedded.postmaster import (
    PORT,
    SUPERUSER,
    DatabaseMissingError,
    answered_version,
    disarm_stale_pids,
    postmaster_pid,
    shut_down,
)
from gendurable.errors import EmbeddedPostgresError

_DATABASE = "gendurable"
_SOCKET_PATH_BYTES_MAX = 107  # sun_path on Linux, less the closing NUL
_TEMPORARY_PREFIX = "gendurable-pg-"
_TEMPORARY_MIN_AGE_S = 60.0  # a younger one may be between its creation and its lock
_LOG_BYTES_MAX = 16 * 1024 * 1024
_POLL_S = 0.02
_ORPHANS_TIMEOUT_S = 10.0
_ORPHANS_POLL_S = 0.2
_ORPHANS_MESSAGE = "pre-existing shared memory block"
_SETTINGS = {
    "max_connections": "200",
    "max_parallel_workers_per_gather": "0",  # parallel queries alone need /dev/shm, which containers keep small
    "default_text_search_config": "pg_catalog.english",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}
_UNSAFE_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_OWN_SETTINGS = frozenset({"data_directory", "listen_addresses", "port", "unix_socket_directories"})


class EmbeddedPostgres:
    """One PostgreSQL server on a Unix socket, reachable only by the user that runs it (and root).

    Use it as an async or a plain context manager, or call ``start`` and ``stop``. As root, the server runs as an
    unprivileged account: the owner of existing data, else ``postgres``, else ``gendurable``, which is then created.
    Only the directory itself is given to that account; its ancestors are left alone.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        bin_dir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        fast_and_unsafe: bool = False,
        start_timeout: float = 60.0,
        stop_timeout: float = 60.0,
    ) -> None:
        """Only remember the wishes; nothing is looked up before ``start``.

        Args:
            directory: Where data, socket and log live, created when missing. None means a temporary one that the last
                ``stop`` removes.
            bin_dir: The folder of the programs. None means: ``GENDURABLE_POSTGRES_BIN``, else the embedded wheel, else
                the newest in ``/usr/lib/postgresql``, else the PATH.
            settings: Server settings added to ours. They take effect when this object starts the server, not when it
                adopts a running one.
            fast_and_unsafe: Trade durability for speed. Only for tests: a crash of the server loses the last commits,
                one of the machine all data.
            start_timeout: Seconds the server may take until it accepts connections.
            stop_timeout: Seconds a fast shutdown may take before an immediate one is asked for.
        """
        self._wanted_directory = directory
        self._wanted_bin_dir = bin_dir
        self._settings = _SETTINGS | (_UNSAFE_SETTINGS if fast_and_unsafe else {}) | dict(settings or {})
        self._fast_and_unsafe = fast_and_unsafe
        self._start_timeout_s = start_timeout
        self._stop_timeout_s = stop_timeout
        self._busy = threading.Lock()
        self._users_lock: int | None = None
        self._directory = Path()
        self._socket_dir = Path()
        self._server_version = ""

    @property
    def directory(self) -> Path:
        """Where the server's files are; only while started."""
        self._assert_started()
        return self._directory

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None if it has ended without us."""
        self._assert_started()
        return postmaster_pid(self._directory / "data")

    @property
    def server_version(self) -> str:
        """What the server called itself when it was started or adopted, such as ``18.6``."""
        self._assert_started()
        return self._server_version

    def dsn(self, database: str = _DATABASE) -> str:
        """Return the address of a database on this server, for asyncpg, psycopg and psql."""
        self._assert_started()
        return f"postgresql://{SUPERUSER}@/{quote(database, safe='')}?host={quote(str(self._socket_dir))}"

    def start(self) -> Self:
        """Start the server or adopt the running one, and create the database ``gendurable`` if it is missing.

        Returns:
            This object. Starting a started one changes nothing.

        Raises:
            EmbeddedPostgresError: No usable programs, an unsuitable directory, or a server that did not come up; a
                server that nobody else uses is stopped again.
        """
        with self._busy:
            if self._users_lock is None:
                try:
                    self._start()
                except OSError as error:
                    raise EmbeddedPostgresError(f"the embedded PostgreSQL could not be started: {error}") from error
        return self

    def stop(self) -> None:
        """Leave the server; stop it if nobody else uses it. Stopping a stopped one changes nothing.

        Raises:
            EmbeddedPostgresError: The server did not end in time; it may still be shutting down.
        """
        with self._busy:
            if self._users_lock is not None:
                with self._start_lock():
                    users_lock, self._users_lock = self._users_lock, None
                    self._leave(users_lock)

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, whatever happened."""
        self.stop()

    async def __aenter__(self) -> Self:
        """Start in a thread; a cancellation waits until the server is up."""
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(self.start)
            except BaseException:
                # asyncio's own cancel() goes through the shield while the thread starts on; stop() waits for it.
                self.stop()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in a thread, whatever happened and even when cancelled."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop)

    def _assert_started(self) -> None:
        assert self._users_lock is not None, "the embedded server is not started"

    def _start(self) -> None:
        for name in self._settings:
            if name in _OWN_SETTINGS or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
                raise EmbeddedPostgresError(f"the setting {name!r} cannot be chosen for an embedded server")
        programs = found_binaries(self._wanted_bin_dir)
        self._directory = self._opened_directory()
        with self._start_lock():
            users_lock = locks.shared(self._directory / "users.lock")
            try:
                self._start_or_adopt(programs)
            except BaseException:
                self._leave(users_lock)
                raise
            self._users_lock = users_lock

    def _opened_directory(self) -> Path:
        """Make the directory if needed, and refuse one that holds anything but a server's files."""
        if self._wanted_directory is None:
            _remove_abandoned()
            return Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX)).resolve()
        directory = self._wanted_directory.resolve()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {path.name for path in directory.iterdir()}
        if names and "start.lock" not in names:
            raise EmbeddedPostgresError(f"{directory} holds other files; name a new or an empty directory")
        return directory

    def _start_lock(self) -> contextlib.AbstractContextManager[None]:
        """Exclude every other start and stop on this directory."""
        return locks.held(self._directory / "start.lock", timeout_s=self._start_timeout_s + self._stop_timeout_s)

    def _start_or_adopt(self, programs: Path) -> None:
        data = self._directory / "data"
        account = chosen_account(data=data, is_temporary=self._wanted_directory is None)
        programs = reachable_binaries(programs, account)
        self._socket_dir = _socket_dir(self._directory)
        if postmaster_pid(data) is None:
            require_reachable(self._directory, account)
            hand_over(self._directory, account)
            hand_over(self._socket_dir, account)
            if not data.exists():
                self._initialise(programs, account)
            self._configure(data, account)
            self._launch(programs, account)
        self._server_version = self._awaited_version()
        try:
            answered_version(self._socket_dir, _DATABASE)
        except DatabaseMissingError:
            run([programs / "createdb", "-h", self._socket_dir, "-p", str(PORT), "-U", SUPERUSER, _DATABASE], account)

    def _initialise(self, programs: Path, account: struct_passwd | None) -> None:
        """Make the cluster beside its place and move it there, so that a half-made one is never taken for data."""
        for leftover in self._directory.glob("initdb-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix="initdb-", dir=self._directory))
        hand_over(fresh, account)
        arguments = ["-D", str(fresh), "-U", SUPERUSER, "--auth-local=trust", "--auth-host=reject", "-E", "UTF8"]
        arguments += ["--locale=C", *(["--no-sync"] if self._fast_and_unsafe else [])]
        if major_version(programs) >= 17:
            # Sorts the same whichever C library comes with the next image, and needs no ICU.
            arguments += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        run([programs / "initdb", *arguments], account)
        fresh.rename(self._directory / "data")

    def _configure(self, data: Path, account: struct_passwd | None) -> None:
        """Write the settings of this start in place of those of the last, and of initdb's samples."""
        own = {"listen_addresses": "", "port": str(PORT), "unix_socket_directories": str(self._socket_dir)}
        lines = [f"{name} = {_quoted(value)}\n" for name, value in (self._settings | own).items()]
        fresh = data / "postgresql.conf.new"
        fresh.unlink(missing_ok=True)
        fresh.write_text("".join(lines), encoding="utf-8")
        hand_over(fresh, account)
        fresh.replace(data / "postgresql.conf")
        log = self._directory / "server.log"
        if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
            log.replace(self._directory / "server.log.old")

    def _launch(self, programs: Path, account: struct_passwd | None) -> None:
        data, log = self._directory / "data", self._directory / "server.log"
        disarm_stale_pids(data, self._socket_dir)
        wait_s = str(max(1, int(self._start_timeout_s)))
        command = (programs / "pg_ctl", "-D", data, "-w", "-t", wait_s, "-l", log, "start")
        deadline_s = time.monotonic() + min(_ORPHANS_TIMEOUT_S, self._start_timeout_s)
        while True:
            try:
                run(command, account)
            except EmbeddedPostgresError as error:
                # Backends of a postmaster that was killed alone take a moment to notice that it is gone.
                if _ORPHANS_MESSAGE not in (tail := self._log_tail()) or time.monotonic() > deadline_s:
                    raise EmbeddedPostgresError(f"the server did not start; {tail}") from error
                time.sleep(_ORPHANS_POLL_S)
            else:
                return

    def _awaited_version(self) -> str:
        """Wait until the server lets a session in; after a crash it answers while it still recovers."""
        deadline_s = time.monotonic() + self._start_timeout_s
        while (version := answered_version(self._socket_dir, SUPERUSER)) is None:
            if time.monotonic() > deadline_s:
                raise EmbeddedPostgresError(f"no answer within {self._start_timeout_s} s; {self._log_tail()}")
            time.sleep(_POLL_S)
        return version

    def _log_tail(self) -> str:
        log = self._directory / "server.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:] if log.exists() else []
        return f"{log} ends: {' | '.join(lines)}" if lines else f"{log} is empty"

    def _leave(self, users_lock: int) -> None:
        """Give up a share of the server, under the start lock; the last one out stops it."""
        try:
            if locks.taken(users_lock):
                shut_down(self._directory / "data", timeout_s=self._stop_timeout_s)
                if self._wanted_directory is None:
                    _remove(self._directory)
        finally:
            os.close(users_lock)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"


def _socket_dir(directory: Path) -> Path:
    """Return the folder of the socket: in the directory, or if that makes its path too long, a short one of its own."""
    inside = directory / "socket"
    if len(os.fsencode(inside / f".s.PGSQL.{PORT}")) <= _SOCKET_PATH_BYTES_MAX:
        inside.mkdir(mode=0o700, exist_ok=True)
        return inside
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    outside = Path(tempfile.gettempdir()).resolve() / f"gendurable-{name}"
    outside.mkdir(mode=0o700, exist_ok=True)
    # Its name can be guessed, so somebody else may have made it first: then our dialogue would be with them.
    found = outside.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), directory.stat().st_uid}:
        raise EmbeddedPostgresError(f"{outside} belongs to somebody else; choose a directory with a shorter path")
    return outside


def _remove_abandoned() -> None:
    """Stop and remove temporary servers whose users were all killed."""
    account = chosen_account(data=None, is_temporary=True)
    owners = {os.geteuid()} | ({account.pw_uid} if account else set())
    for directory in Path(tempfile.gettempdir()).resolve().glob(f"{_TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError, EmbeddedPostgresError):
            found = directory.lstat()
            is_old = time.time() - found.st_mtime > _TEMPORARY_MIN_AGE_S
            if stat.S_ISDIR(found.st_mode) and found.st_uid in owners and is_old:
                users_lock = locks.opened(directory / "users.lock")
                try:
                    if locks.taken(users_lock):
                        shut_down(directory / "data", timeout_s=_TEMPORARY_MIN_AGE_S)
                        _remove(directory)
                finally:
                    os.close(users_lock)


def _remove(directory: Path) -> None:
    outside = _socket_dir(directory)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(outside, ignore_errors=True)
