"""Deletes instances whose retention has passed, in small batches, at a slow pace."""

from random import Random

from gendurable.metrics import Metrics
from gendurable.runtime.pacing import Paced
from gendurable.settings import CollectorSettings
from gendurable.store.retention import Reached, RetentionStore

BATCHES_MAX = 10_000


class Collector(Paced):
    """One pass walks everything that ended, oldest first."""

    def __init__(self, *, settings: CollectorSettings, store: RetentionStore, metrics: Metrics, rng: Random) -> None:
        """Nothing is deleted until :meth:`run`."""
        super().__init__("collector", interval_s=settings.interval_s, metrics=metrics, rng=rng)
        self._settings = settings
        self._store = store

    async def pass_once(self) -> int:
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
