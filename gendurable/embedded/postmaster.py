"""Whether a server truly runs on a data folder, asking it a first question, and shutting it down."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

from gendurable.errors import EmbeddedPostgresError

SUPERUSER = "postgres"
PORT = 5432

_NO_SUCH_DATABASE = "3D000"  # SQLSTATE invalid_catalog_name
_PROTOCOL = 3 << 16
_PROBE_TIMEOUT_S = 5.0
_POLL_S = 0.02
_IMMEDIATE_TIMEOUT_S = 20.0
_UNUSED_PID = 2**30  # above every kernel's pid_max


class DatabaseMissingError(Exception):
    """The server answers, and has no such database."""


def answered_version(socket_dir: Path, database: str) -> str | None:
    """Ask the server for its version by opening one session; None means nobody answers, or not yet.

    Raises:
        DatabaseMissingError: The server accepts connections but not to this database.
    """
    words = b"".join(word.encode() + b"\0" for word in ("user", SUPERUSER, "database", database))
    startup = struct.pack("!ii", len(words) + 9, _PROTOCOL) + words + b"\0"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PROBE_TIMEOUT_S)
        connection.connect(str(socket_dir / f".s.PGSQL.{PORT}"))
        connection.sendall(startup)
        with connection.makefile("rb") as answer:
            version = ""
            while len(header := answer.read(5)) == 5:
                kind, size = struct.unpack("!ci", header)
                body = answer.read(size - 4)
                if kind == b"E":
                    if b"C" + _NO_SUCH_DATABASE.encode() in body.split(b"\0"):
                        raise DatabaseMissingError(database)
                    return None
                if kind == b"S" and body.startswith(b"server_version\0"):
                    version = body.split(b"\0")[1].decode()
                if kind == b"Z":
                    connection.sendall(b"X\0\0\0\4")
                    return version
    return None


def postmaster_pid(data: Path) -> int | None:
    """Return the pid of the server that truly runs on this folder; a stale file with a reused pid does not count."""
    pid = _written_pid(data)
    return pid if pid is not None and _is_postmaster(pid, data) else None


def disarm_stale_pids(data: Path, socket_dir: Path) -> None:
    """Make the lock files of a dead server harmless, should their pid be that of another process by now.

    PostgreSQL clears stale ones itself, unless some process of its user has that pid (or a zombie, where nobody reaps
    orphans): then it refuses to start for ever. The data folder's file is kept, with a pid that no process can have,
    because its shared memory id is how PostgreSQL finds out that a killed postmaster's backends are still writing.
    """
    assert postmaster_pid(data) is None
    (socket_dir / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
    if _written_pid(data) is not None:
        path = data / "postmaster.pid"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join([f"{_UNUSED_PID}\n", *lines[1:]]), encoding="utf-8")


def shut_down(data: Path, *, timeout_s: float) -> None:
    """Stop the server if one runs: fast, and after the timeout immediately; never by SIGKILL, which leaks memory.

    Raises:
        EmbeddedPostgresError: It did not end even so.
    """
    pid = postmaster_pid(data)
    if pid is None:
        return
    for signal_number, wait_s in ((signal.SIGINT, timeout_s), (signal.SIGQUIT, _IMMEDIATE_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s:
            if not _is_postmaster(pid, data):
                return
            time.sleep(_POLL_S)
    raise EmbeddedPostgresError(f"the server on {data} (pid {pid}) did not stop; see server.log beside it")


def _written_pid(data: Path) -> int | None:
    try:
        return int((data / "postmaster.pid").read_text(encoding="utf-8").split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def _is_postmaster(pid: int, data: Path) -> bool:
    """Judge a process by its command line, the one thing that every user may see of it (and a zombie has none)."""
    words = _command_line(pid)
    if not words or Path(words[0]).name not in {"postgres", "postmaster"} or "-D" not in words[:-1]:
        return False
    named = Path(words[words.index("-D") + 1])
    with contextlib.suppress(OSError):
        return named.samefile(data)
    return False


def _command_line(pid: int) -> list[str]:
    if Path("/proc/self/cmdline").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            return []
    shown = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    return shown.stdout.split()
