"""Processes of a bench: children that run the measured code, and what the kernel says about them and the server."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gendurable.errors import GenDurableError

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CHILD_STOP_S = 60.0


class BenchChildError(GenDurableError):
    """A process of the bench ended without its report; what it wrote to standard error says why."""


class Child:
    """One process of its own that reports in JSON lines and ends when its standard input does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Built by :func:`child`."""
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def report(self) -> dict[str, Any]:
        """The next line it says.

        Raises:
            BenchChildError: It ended instead.
        """
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(b"{"):
                decoded: dict[str, Any] = msgspec.json.decode(line)
                return decoded
        raise BenchChildError(f"a process of the bench ended with code {await self._process.wait()}")

    async def finish(self) -> dict[str, Any]:
        """Let it end in order and return its last report."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self.report()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._process.send_signal(signal.SIGKILL)


@contextlib.asynccontextmanager
async def child(spec: msgspec.Struct) -> AsyncIterator[Child]:
    """Start a process that does what ``spec`` says; it is gone at the end of the block, whatever happened."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gendurable.bench.child",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        # Not as an argument: the address may hold a password, and arguments can be read by everybody.
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        yield Child(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), CHILD_STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def cpu_seconds(pid: int) -> float | None:
    """Processor time a process has used, user and system; None when it cannot be read."""
    fields = _stat(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def resident_kib(pid: int) -> int | None:
    """Memory a process has in RAM now, KiB; None when it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return None


@dataclass(frozen=True, slots=True)
class ServerProcesses:
    """The postmaster and its children, if they run on this machine."""

    postmaster: int | None

    @classmethod
    def of_backend(cls, pid: int) -> "ServerProcesses":
        """Find the postmaster from the pid a backend says it has; a remote server's pid means nothing here."""
        fields = _stat(pid)
        is_postgres = fields is not None and _name(pid).startswith("postgres")
        return cls(int(fields[1]) if fields is not None and is_postgres else None)

    def cpu_seconds(self) -> float | None:
        """Processor time of all its processes, ended ones included; None when the server runs elsewhere."""
        fields = _stat(self.postmaster) if self.postmaster is not None else None
        if fields is None or self.postmaster is None:
            return None
        total = sum(int(field) for field in fields[11:15]) / _TICKS_PER_S
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                found = _stat(int(entry.name))
                if found is not None and int(found[1]) == self.postmaster:
                    total += (int(found[11]) + int(found[12])) / _TICKS_PER_S
        return total


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` behind the command: state is 0, the parent 1, user and system time 11 and 12."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return ""
