"""The loop of a service that looks after the whole database at a slow pace: sleep, make a pass, repeat."""

from abc import ABC, abstractmethod
from random import Random

from gendurable.backoff import jittered_s
from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.runtime.wake import Wake

log = get_logger(__name__)


class Paced(ABC):
    """A service with one pass in each interval; a database that is away costs a pass."""

    def __init__(
        self, name: str, *, interval_s: float, metrics: Metrics, rng: Random, first_s: float | None = None
    ) -> None:
        """Nothing is done until :meth:`run`.

        Args:
            name: What logs and metrics call it.
            interval_s: Seconds between two passes, give or take 20 %.
            metrics: What is counted.
            rng: Where jitter is drawn from.
            first_s: Seconds before the first pass if that is less; None waits an interval.
        """
        self.name = name
        self._interval_s = interval_s
        self._first_s = interval_s if first_s is None else min(first_s, interval_s)
        self._metrics = metrics
        self._rng = rng
        self._wake = Wake()
        self._draining = False

    @abstractmethod
    async def pass_once(self) -> int:
        """Make one pass; return how many rows or keys it mended or removed."""

    def drain(self) -> None:
        """Begin no pass from now on."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Make passes until drained."""
        pause_s = self._first_s
        while True:
            await self._wake.sleep(jittered_s(pause_s, self._rng))
            if self._draining:
                return
            try:
                await self.pass_once()
            except StoreError as error:
                self._metrics.loop_errors.inc((self.name,))
                log.warning("a pass was lost", service=self.name, error=str(error))
            pause_s = self._interval_s
