"""What the pickers of this process owe the table: rows to be handed back, and keys of held rows to be looked at.

Nearly all of it is done at once. But a row that a caller's transaction holds cannot be handed back, a lost connection
leaves open whether a row was, and a key that changes hands at this moment says nothing about its held rows. Those are
tried again at a growing distance, at most a heartbeat. Nobody renews the lease of a row that is owed: should this
process not get rid of it, the lease decides.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from gendurable.backoff import ReconnectBackoff
from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.model.claim import Claim
from gendurable.runtime.wake import Wake
from gendurable.store.claims import ClaimStore
from gendurable.store.leases import LeaseStore

log = get_logger(__name__)

ROWS_MAX = 10_000
"""Rows owed at a time; more than a process can hold means that the database is away, and the leases decide."""
KEYS_MAX = 10_000
BATCH_MAX = 500
FIRST_RETRY_S = 0.05
KEY_RETRY_S = 0.005
KEY_PATIENCE_S = 5.0
"""A flush frees a key within milliseconds; one that has not decided after this is left to the reconciler."""
IDLE_S = 3600.0


@dataclass(slots=True)
class _Row:
    """A claim to hand back: local times in seconds, ``due_at_s`` None when it is due as it was."""

    claim: Claim
    due_at_s: float | None
    again: ReconnectBackoff
    try_at_s: float


@dataclass(slots=True)
class _Key:
    """A concurrency key to look at."""

    again: ReconnectBackoff
    try_at_s: float
    until_s: float


class Owed:
    """Tries until nothing is owed."""

    def __init__(
        self,
        *,
        claims: ClaimStore,
        leases: LeaseStore,
        retry_max_s: float,
        metrics: Metrics,
        rng: Random,
        on_runnable: Callable[[str, float], None],
    ) -> None:
        """Nothing is tried until :meth:`run`.

        Args:
            claims: Releases rows and looks at keys.
            leases: Says whether a row is still this process's.
            retry_max_s: Seconds between two tries, at most.
            metrics: What is counted.
            rng: Where jitter is drawn from.
            on_runnable: Told a queue that got a row back, and the seconds until that may run.
        """
        self.name = "owed"
        self._claims = claims
        self._leases = leases
        self._retry_max_s = retry_max_s
        self._metrics = metrics
        self._rng = rng
        self._on_runnable = on_runnable
        self._rows: dict[tuple[int, int], _Row] = {}
        self._keys: dict[str, _Key] = {}
        self._wake = Wake()
        self._progress = asyncio.Event()
        self._draining = False

    def __len__(self) -> int:
        """How many rows are owed."""
        return len(self._rows)

    def add_rows(self, claims_and_delays_ms: Sequence[tuple[Claim, int | None]]) -> None:
        """Claims that could not be handed back, each with the milliseconds it should wait, None for none."""
        now_s = time.monotonic()
        room = max(0, ROWS_MAX - len(self._rows))
        for claim, delay_ms in claims_and_delays_ms[:room]:
            again = ReconnectBackoff(self._rng, first_s=min(FIRST_RETRY_S, self._retry_max_s), max_s=self._retry_max_s)
            due_at_s = None if delay_ms is None else now_s + delay_ms / 1000
            self._rows[claim.id, claim.claim] = _Row(claim, due_at_s, again, now_s + again.next_s())
        if len(claims_and_delays_ms) > room:
            log.warning("too many rows to hand back; their leases decide", rows=len(claims_and_delays_ms) - room)
        self._wake.set()

    def add_keys(self, keys: Sequence[str]) -> None:
        """Keys of rows that a claim has just held: see the race drawn at the statement ``key_holders``."""
        now_s = time.monotonic()
        for key in keys[: max(0, KEYS_MAX - len(self._keys))]:
            again = ReconnectBackoff(self._rng, first_s=KEY_RETRY_S, max_s=self._retry_max_s)
            self._keys[key] = _Key(again, now_s, now_s + KEY_PATIENCE_S)
        self._wake.set()

    def forget(self, claims: Sequence[Claim]) -> None:
        """These were claimed just now and are not owed, whatever was before.

        The numbers of claims rise, but a claim that was lost with the server is taken again with the same one.
        """
        if self._rows:
            for claim in claims:
                self._rows.pop((claim.id, claim.claim), None)

    def drain(self) -> None:
        """End when nothing is owed."""
        self._draining = True
        self._wake.set()

    async def wait_settled(self) -> None:
        """Return when nothing is owed."""
        while self._rows or self._keys:
            self._progress.clear()
            await self._progress.wait()

    async def run(self) -> None:
        """Try what is due; end when drained and nothing is owed."""
        while not (self._draining and not self._rows and not self._keys):
            await self.try_once()
            self._progress.set()
            if not self._draining or self._rows or self._keys:
                await self._wake.sleep(self._pause_s())

    async def try_once(self) -> None:
        """Try one batch of what is due now."""
        now_s = time.monotonic()
        keys = [key for key, one in self._keys.items() if one.try_at_s <= now_s][:BATCH_MAX]
        rows = [one for one in self._rows.values() if one.try_at_s <= now_s][:BATCH_MAX]
        try:
            if keys:
                await self._look_at(keys)
            if rows:
                await self._hand_back(rows)
        except StoreError as error:
            self._metrics.loop_errors.inc(("owed",))
            log.warning("what is owed could not be settled yet", rows=len(rows), keys=len(keys), error=str(error))
        self._put_off(keys, rows)

    async def _look_at(self, keys: Sequence[str]) -> None:
        queues, changing = await self._claims.settle_held_keys(keys)
        for key in keys:
            if key not in changing:
                self._keys.pop(key, None)
        for queue in queues:
            self._on_runnable(queue, 0.0)

    async def _hand_back(self, rows: Sequence[_Row]) -> None:
        now_s = time.monotonic()
        waits_s = [None if row.due_at_s is None else max(0.0, row.due_at_s - now_s) for row in rows]
        released = await self._claims.release_claims(
            [row.claim for row in rows],
            delays_ms=[None if wait_s is None else int(wait_s * 1000) for wait_s in waits_s],
            on_unheld=lambda queue: self._on_runnable(queue, 0.0),
        )
        for row, wait_s in zip(rows, waits_s, strict=True):
            if row.claim.id in released:
                self.forget([row.claim])
                self._on_runnable(row.claim.queue, wait_s or 0.0)
        missing = {row.claim.id: row.claim.claim for row in rows if row.claim.id not in released}
        if missing:
            # Handed back by an answer that was lost, or taken by another worker: either way it is no longer ours.
            owned = await self._leases.still_owned(missing)
            self.forget([row.claim for row in rows if row.claim.id in missing and row.claim.id not in owned])

    def _put_off(self, keys: Sequence[str], rows: Sequence[_Row]) -> None:
        """What was tried and is still owed is tried again later; a key only for so long."""
        now_s = time.monotonic()
        for row in rows:
            row.try_at_s = now_s + row.again.next_s()
        left: list[str] = []
        for key in keys:
            one = self._keys.get(key)
            if one is not None and now_s >= one.until_s:
                del self._keys[key]
                left.append(key)
            elif one is not None:
                one.try_at_s = min(now_s + one.again.next_s(), one.until_s)
        if left:
            log.warning("held keys could not be settled; the reconciler will", keys=left[:10], count=len(left))

    def _pause_s(self) -> float:
        times_s = [one.try_at_s for one in self._rows.values()] + [one.try_at_s for one in self._keys.values()]
        return max(0.0, min(times_s) - time.monotonic()) if times_s else IDLE_S
