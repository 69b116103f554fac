"""Repairs what a process leaves behind that dies between two commits: rows held behind a key that nobody executes."""

from collections.abc import Callable
from random import Random

from gendurable.metrics import Metrics
from gendurable.runtime.pacing import Paced
from gendurable.store.claims import ClaimStore

KEYS_MAX = 500
FIRST_S = 1.0
"""A process that starts is often the next one after one that died, and most of what that left is found at once."""


class Reconciler(Paced):
    """Compares held rows with the rows that execute."""

    def __init__(
        self, *, store: ClaimStore, interval_s: float, metrics: Metrics, rng: Random, on_unheld: Callable[[str], None]
    ) -> None:
        """Nothing is repaired until :meth:`run`; ``on_unheld`` is told a queue that got a row back."""
        super().__init__("reconciler", interval_s=interval_s, first_s=FIRST_S, metrics=metrics, rng=rng)
        self._store = store
        self._on_unheld = on_unheld

    async def pass_once(self) -> int:
        """Un-hold the next row of every key that nobody executes; return how many keys there were."""
        keys = await self._store.orphaned_held_keys(keys_max=KEYS_MAX)
        if not keys:
            return 0
        queues, _changing = await self._store.settle_held_keys(keys)
        for queue in queues:
            self._on_unheld(queue)
        return len(keys)
