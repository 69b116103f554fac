"""Repairs what a process leaves behind that dies between two commits: rows held behind a key that nobody executes."""

from collections.abc import Callable
from random import Random

from gendurable.backoff import jittered_s
from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.runtime.wake import Wake
from gendurable.store.claims import ClaimStore

log = get_logger(__name__)

KEYS_MAX = 500


class Reconciler:
    """Compares held rows with the rows that execute."""

    def __init__(
        self, *, store: ClaimStore, interval_s: float, metrics: Metrics, rng: Random, on_unheld: Callable[[str], None]
    ) -> None:
        """Nothing is repaired until :meth:`run`; ``on_unheld`` is told a queue that got a row back."""
        self.name = "reconciler"
        self._store = store
        self._interval_s = interval_s
        self._metrics = metrics
        self._rng = rng
        self._on_unheld = on_unheld
        self._wake = Wake()
        self._draining = False

    def drain(self) -> None:
        """Repair nothing from now on."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Reconcile until drained."""
        while not self._draining:
            await self._wake.sleep(jittered_s(self._interval_s, self._rng))
            try:
                await self.reconcile_once()
            except StoreError as error:
                self._metrics.loop_errors.inc(("reconciler",))
                log.warning("a reconciliation was lost", error=str(error))

    async def reconcile_once(self) -> int:
        """Un-hold the next row of every key that nobody executes; return how many keys there were."""
        keys = await self._store.orphaned_held_keys(keys_max=KEYS_MAX)
        if not keys:
            return 0
        queues, _changing = await self._store.settle_held_keys(keys)
        for queue in queues:
            self._on_unheld(queue)
        return len(keys)
