"""Deletes instances whose retention has passed, in small batches, at a slow pace."""

from random import Random

from gendurable.backoff import jittered_s
from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.runtime.wake import Wake
from gendurable.settings import CollectorSettings
from gendurable.store.retention import Reached, RetentionStore

log = get_logger(__name__)

BATCHES_MAX = 10_000


class Collector:
    """One pass walks everything that ended, oldest first."""

    def __init__(self, *, settings: CollectorSettings, store: RetentionStore, metrics: Metrics, rng: Random) -> None:
        """Nothing is deleted until :meth:`run`."""
        self.name = "collector"
        self._settings = settings
        self._store = store
        self._metrics = metrics
        self._rng = rng
        self._wake = Wake()
        self._draining = False

    def drain(self) -> None:
        """Delete nothing from now on."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Collect until drained."""
        while not self._draining:
            await self._wake.sleep(jittered_s(self._settings.interval_s, self._rng))
            try:
                await self.collect_once()
            except StoreError as error:
                self._metrics.loop_errors.inc(("collector",))
                log.warning("a collection was lost", error=str(error))

    async def collect_once(self) -> int:
        """One pass over everything that ended; return how many rows were deleted.

        Each row is looked at once, spared or not: one that somebody else has locked waits for the next pass.
        """
        settings = self._settings
        deleted = 0
        after: Reached | None = None
        for _ in range(BATCHES_MAX):
            if self._draining:
                break
            batch = await self._store.collect_finished(
                done_ms=int(settings.retention_done_s * 1000),
                cancelled_ms=int(settings.retention_cancelled_s * 1000),
                failed_ms=int(settings.retention_failed_s * 1000),
                rows_max=settings.batch_max,
                after=after,
            )
            deleted += batch.deleted
            self._metrics.collected.inc((), batch.deleted)
            if batch.seen < settings.batch_max:
                break
            after = batch.reached
        return deleted
