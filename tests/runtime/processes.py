"""Real processes of the command line, watched line by line."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

ISOLATION = Path(__file__).parent / "isolation"
PATIENCE_S = 30.0
"""Far past anything expected: a test that waits this long has failed."""

JOBS = '''
import asyncio, pathlib, time
import gendurable as gd

@gd.job()
async def gated(ctx: gd.Context, n: int = 0) -> None:
    """Says that it started, and ends when the file appears."""
    print(f"started {n}", flush=True)
    while not pathlib.Path("gate").exists():
        await asyncio.sleep(0.005)

@gd.job()
def blocking(ctx: gd.Context, seconds: float) -> None:
    print("blocking", flush=True)
    time.sleep(seconds)

@gd.job(timeout=0.2)
async def escaping(ctx: gd.Context) -> None:
    await asyncio.to_thread(time.sleep, 300)

@gd.job()
async def quick(ctx: gd.Context) -> None:
    pass
'''


def clean_environment(**more: str) -> dict[str, str]:
    """This environment without anything that configures us or Postgres."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GENDURABLE_", "PG")) and name != "DATABASE_URL"
    }
    return kept | {"PYTHONPATH": str(ISOLATION)} | more


class Process:
    """A process with everything it has printed so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._grown = asyncio.Event()
        self.lines: list[str] = []
        self.stdout = ""
        self.stderr = ""
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read(process.stdout, "stdout")),
            asyncio.create_task(self._read(process.stderr, "stderr")),
        ]

    async def _read(self, stream: asyncio.StreamReader, name: str) -> None:
        while line := (await stream.readline()).decode():
            self.lines.append(line.rstrip("\n"))
            setattr(self, name, getattr(self, name) + line)
            self._grown.set()

    @property
    def output(self) -> str:
        """Both streams."""
        return "\n".join(self.lines)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def until(self, text: str, *, after: int = 0) -> str:
        """Wait for a line with this text, not among the first ``after`` lines, and return it."""

        async def found() -> str:
            while True:
                self._grown.clear()
                for line in self.lines[after:]:
                    if text in line:
                        return line
                await self._grown.wait()

        try:
            return await asyncio.wait_for(found(), PATIENCE_S)
        except TimeoutError:
            raise AssertionError(f"{text!r} never came:\n{self.output}") from None

    async def event(self, name: str) -> dict[str, Any]:
        """Wait for a log event and return its fields."""
        fields: dict[str, Any] = json.loads(await self.until(f'"event": "{name}"'))
        return fields

    async def ended(self) -> int:
        """Wait for the end and return the exit code."""
        code = await asyncio.wait_for(self._process.wait(), PATIENCE_S)
        await asyncio.gather(*self._readers)
        return code

    async def stop(self) -> None:
        """Kill it if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await asyncio.gather(*self._readers)


@contextlib.asynccontextmanager
async def running(*arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """``gendurable`` with these arguments, killed at the end of the block."""
    process = Process(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gendurable.cli",
            *arguments,
            cwd=cwd,
            env=clean_environment(**(environment or {})),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    )
    try:
        yield process
    finally:
        await process.stop()


def folder_for_a_server() -> Path:
    """A place for an embedded server: as root, its account may not enter pytest's own folders."""
    return Path(tempfile.gettempdir()) / f"gendurable-test-{uuid.uuid4().hex}"


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it holds: for what another process does to the database."""
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():  # noqa: ASYNC110 (the other process has no event of ours)
            await asyncio.sleep(0.01)
