"""Worker processes of the demo: started, stopped for a while, killed, and gone when the demo is."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

LEASE_TTL_S: Final = 4.0
_HEARTBEAT_S: Final = 0.5
_STOP_S: Final = 10.0

_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_COMMAND: Final = (sys.executable, "-m", "gendurable", "worker")
_REFUSED: Final = "outcome refused, the row went to another worker"


class Worker:
    """One worker process, and the file with its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log_path = log_path

    @property
    def has_ended(self) -> bool:
        """True once the process is gone, for whatever reason."""
        return self._process.returncode is not None

    def pause(self) -> None:
        """Freeze it: it sends no heartbeats and knows nothing of the time that passes."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen one go on where it was."""
        self._process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """End it as a crash of the machine would, with SIGKILL."""
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Ask it to drain, and make sure that it ends."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
        finally:
            if not self.has_ended:
                await self.kill()

    def outcomes_refused(self) -> int:
        """How many late outcomes were refused, by its log: the worker says so for each."""
        events = [msgspec.json.decode(line).get("event") for line in self._log_lines() if line.startswith("{")]
        return events.count(_REFUSED)

    def log_tail(self) -> str:
        """The end of its log, for whoever has to find out why it ended."""
        return "\n".join(self._log_lines()[-15:])

    def _log_lines(self) -> list[str]:
        return self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()


def _die_with_parent() -> None:
    """Have the kernel kill this process when the demo is killed and cannot stop it; set in the child, before exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@asynccontextmanager
async def workers(names: Sequence[str], *, dsn: str, concurrency: int, folder: Path) -> AsyncIterator[list[Worker]]:
    """Run so many workers beside a block; none is left after it, however it ends."""
    async with AsyncExitStack() as stack:
        started = []
        for name in names:
            worker = await _start(name, dsn=dsn, concurrency=concurrency, folder=folder)
            stack.push_async_callback(worker.stop)
            started.append(worker)
        yield started


async def _start(name: str, *, dsn: str, concurrency: int, folder: Path) -> Worker:
    log_path = folder / f"{name}.log"
    # The leases are short, so that nobody has to wait half a minute for a dead worker's orders.
    arguments = [
        *("--node", name, "--concurrency", str(concurrency), "--no-http", "--log-format", "json"),
        *("--lease-ttl", f"{LEASE_TTL_S}s", "--heartbeat", f"{_HEARTBEAT_S}s"),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("GENDURABLE_", "PG"))}
    # Few rows wait in a worker's hands, so that the most it may repeat is about what it was really doing.
    environment |= {"DATABASE_URL": dsn, "GENDURABLE_QUEUE_PREFETCH": "4"}
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            *arguments,
            env=environment,
            # Not where a gendurable.toml of somebody else may lie.
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C goes to the demo alone, which then stops its workers in order.
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    return Worker(name, process, log_path)
