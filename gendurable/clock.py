"""The clock that is handed to every loop, so that a test can hand in its own.

Local time only paces loops and bounds waits. Leases, eligibility and deadlines are Postgres's ``now()``.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a loop may ask of time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...

    def time(self) -> float:
        """Seconds since 1970 by this machine's clock, for logs and metrics only."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait this many seconds; zero or less only lets other tasks run. Cancelling ends the wait at once."""
        ...


class SystemClock:
    """The real clock of this machine and its event loop."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970 by this machine's clock."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait this many seconds on the event loop."""
        await asyncio.sleep(max(0.0, seconds))
