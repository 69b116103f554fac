"""Numbers that a scrape must not wait for: the lag of the event loop, and how long due rows have waited."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics, Observed
from gendurable.ops.health import TICK_S, Health
from gendurable.store.fleet import FleetStore

log = get_logger(__name__)

REFRESH_S: Final = 5.0
SCRAPED_WITHIN_S: Final = 60.0
"""Without a scrape for this long nobody reads the numbers, and the database is left alone."""


class Ticker:
    """Comes round a few times a second and notes how late it was."""

    def __init__(self, health: Health, observed: Observed) -> None:
        """Write to these two."""
        self.name = "ticker"
        self._health = health
        self._observed = observed
        self._stop = asyncio.Event()

    def drain(self) -> None:
        """End."""
        self._stop.set()

    async def run(self) -> None:
        """Tick until drained."""
        loop = asyncio.get_running_loop()
        while not self._stop.is_set():
            due_at_s = loop.time() + TICK_S
            if await _is_set_within(self._stop, TICK_S):
                return
            self._observed.loop_lag_s = max(0.0, loop.time() - due_at_s)
            self._health.tick()


class QueueAges:
    """Asks how long the oldest due row of each served queue has waited: one statement per pass, while scrapes come."""

    def __init__(
        self,
        *,
        store: FleetStore,
        queues: Sequence[str],
        observed: Observed,
        metrics: Metrics,
        is_possible: Callable[[], bool],
        refresh_s: float = REFRESH_S,
    ) -> None:
        """Nothing is asked until :meth:`run`.

        Args:
            store: The statement.
            queues: The served queues.
            observed: Where the answers are kept.
            metrics: What is counted.
            is_possible: Whether the database is connected by now.
            refresh_s: Seconds between two passes.
        """
        self.name = "queue ages"
        self._store = store
        self._queues = list(queues)
        self._observed = observed
        self._metrics = metrics
        self._is_possible = is_possible
        self._refresh_s = refresh_s
        self._scraped_at_s: float | None = None
        self._scraped = asyncio.Event()
        self._stop = asyncio.Event()

    def note_scrape(self) -> None:
        """Somebody reads the metrics."""
        self._scraped_at_s = time.monotonic()
        self._scraped.set()

    def drain(self) -> None:
        """End."""
        self._stop.set()
        self._scraped.set()

    async def run(self) -> None:
        """Refresh until drained; a database that is away costs a pass."""
        while not self._stop.is_set():
            await self._scraped.wait()
            if self._stop.is_set():
                return
            await self.refresh_once()
            if await _is_set_within(self._stop, self._refresh_s):
                return
            assert self._scraped_at_s is not None
            if time.monotonic() - self._scraped_at_s > SCRAPED_WITHIN_S:
                self._scraped.clear()

    async def refresh_once(self) -> None:
        """Ask now, unless there is nothing to ask about or nobody to ask."""
        if not self._queues or not self._is_possible():
            return
        try:
            self._observed.oldest_due_s = await self._store.oldest_due_s(self._queues)
        except StoreError as error:
            self._metrics.loop_errors.inc(("queue_ages",))
            log.debug("the age of the queues could not be read", error=str(error))


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; False when the time passed first."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
