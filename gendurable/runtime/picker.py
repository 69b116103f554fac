"""Claims work for one queue, when there is both work and room for it.

It never polls blindly: it wakes on a poke, on a freed slot while a backlog is known, when the next future row is due,
and at the poll interval as the floor.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from gendurable.backoff import ReconnectBackoff, jittered_s
from gendurable.errors import StoreContendedError, StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.model.claim import Claim
from gendurable.runtime.holdings import Holdings
from gendurable.runtime.left import Left
from gendurable.runtime.owed import Owed
from gendurable.runtime.picking import Appetite, Pace, prefetch_rows, room_for_claims, room_worth_a_claim
from gendurable.runtime.scanning import ScanHint
from gendurable.runtime.unresolved import UnresolvedMachines
from gendurable.runtime.wake import Wake
from gendurable.settings import QueueSettings
from gendurable.store.claims import ClaimAnswer, ClaimStore

log = get_logger(__name__)

EMPTY_CLAIM_INTERVAL_S = 0.01
"""After a claim that brought nothing, pokes are gathered this long: a thousand of them cost a hundred claims."""
SUSPECT_PAUSE_S = 0.02
"""Claim nothing for so long after a suspect has started."""
IMPATIENCE_S = 0.02
"""With few places free, wait this long for more of them before a claim takes just those."""


class Slots(Protocol):
    """Where claimed rows run: the executor, as the picker sees it."""

    unflushed: int

    @property
    def pace(self) -> Pace:
        """How fast the queue finishes steps."""
        ...

    @property
    def running(self) -> int:
        """Slots taken."""
        ...

    @property
    def waiting(self) -> int:
        """Claimed rows that wait for a slot."""
        ...

    def submit(self, claims: Sequence[Claim]) -> Left:
        """Run rows; return those that must be handed back."""
        ...

    def start_suspect(self) -> bool:
        """Run the suspect among them, if there was one."""
        ...

    def on_free(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever a slot becomes free."""
        ...


class Picker:
    """The loop that keeps one queue's executor supplied."""

    def __init__(
        self,
        *,
        queue: str,
        settings: QueueSettings,
        lease_ttl_ms: int,
        store: ClaimStore,
        executor: Slots,
        holdings: Holdings,
        owed: Owed,
        metrics: Metrics,
        rng: Random,
        unflushed_max: int,
        on_runnable: Callable[[str, float], None],
    ) -> None:
        """Nothing is claimed until :meth:`run`.

        Args:
            queue: The queue.
            settings: Its limits.
            lease_ttl_ms: Length of a claim.
            store: Claims and releases.
            executor: Where rows run.
            holdings: Every claim in hand, for the heartbeat.
            owed: What cannot be handed back at once, and keys of held rows.
            metrics: What is counted.
            rng: Where jitter is drawn from.
            unflushed_max: Claim nothing while more outcomes than this wait to become durable.
            on_runnable: Told a queue that got a row back, and the seconds until that may run.
        """
        self.name = f"picker:{queue}"
        self.queue = queue
        self._settings = settings
        self._lease_ttl_ms = lease_ttl_ms
        self._store = store
        self._executor = executor
        self._holdings = holdings
        self._owed = owed
        self._metrics = metrics
        self._rng = rng
        self._unflushed_max = unflushed_max
        self._on_runnable = on_runnable
        self._unresolved = UnresolvedMachines(rng)
        self._wake = Wake()
        self._draining = False
        self._stopped = asyncio.Event()
        self._is_claiming = False
        self._appetite = self._appetite_with(prefetch=0)
        # What is known about the queue: whether due rows were left behind, and when the next future row is due.
        self._wake_level = 0
        self._is_full = False
        self._has_backlog = True
        self._due_at_s: float | None = None
        self._quiet_until_s = 0.0
        # The claim hint [L15]: an optimisation only, dropped by anything that could put a row before it.
        self._hint = ScanHint()
        self.claims_total = 0
        self.claims_max: int | None = None
        """Stop by itself after so many claims that reached the database; None goes on until drained."""
        executor.on_free(self._slot_freed)

    def poke(self, due_in_s: float) -> None:
        """There is a row that is due in so many seconds; a future one only sets the timer [L25]."""
        if due_in_s <= 0:
            self._has_backlog = True
            self._hint.drop()
        else:
            due_at_s = time.monotonic() + due_in_s
            if self._due_at_s is not None and self._due_at_s <= due_at_s:
                return
            self._due_at_s = due_at_s
        self._wake.set()

    def drain(self) -> None:
        """Claim nothing from now on."""
        self._draining = True
        self._wake.set()

    async def wait_stopped(self) -> None:
        """Return when no claim is under way any more."""
        await self._stopped.wait()

    @property
    def is_dry(self) -> bool:
        """True when the last claim has answered and left nothing due behind, and nothing is in hand."""
        executor = self._executor
        in_hand = executor.running + executor.waiting + executor.unflushed
        return not self._has_backlog and not self._is_claiming and in_hand == 0

    async def run(self) -> None:
        """Claim until drained."""
        backoff = ReconnectBackoff(self._rng)
        try:
            while not self._draining:
                if not self._is_due():
                    # A sleep that runs its full time is the poll: look, whatever is known.
                    self._has_backlog = not await self._wake.sleep(self._pause_s()) or self._has_backlog
                    continue
                wanted = self._rows_wanted()
                if wanted == 0 and await self._wake.sleep(IMPATIENCE_S):
                    continue
                wanted = wanted or self._room()
                if wanted == 0:
                    # Every place is taken: the first one that becomes free ends this sleep, and the next round waits a
                    # moment for more of them. What is due may be a future row whose time has come.
                    self._has_backlog = True
                    self._is_full = True
                    await self._wake.sleep(self._settings.poll_interval_s)
                    self._is_full = False
                    continue
                try:
                    await self.claim_once(wanted)
                    backoff.reset()
                    if self.claims_max is not None and self.claims_total >= self.claims_max:
                        self.drain()
                except StoreError as error:
                    self._metrics.loop_errors.inc(("picker",))
                    log.warning("a claim failed", queue=self.queue, error=str(error))
                    self._has_backlog = True
                    # Pokes and freed slots may end a sleep, but not this pause.
                    self._quiet_until_s = time.monotonic() + backoff.next_s()
        finally:
            self._stopped.set()

    def _slot_freed(self) -> None:
        """Called after every step, so it only compares two numbers."""
        executor = self._executor
        if self._has_backlog and (self._is_full or executor.running + executor.waiting <= self._wake_level):
            self._wake.set()

    def _rows_wanted(self) -> int:
        """Rows to claim now, or 0 when there are too few places to be worth a statement."""
        settings = self._settings
        self._appetite = self._appetite_with(
            prefetch=prefetch_rows(
                finished_per_s=self._executor.pace.update(time.monotonic()),
                prefetch=settings.prefetch,
                prefetch_max=settings.prefetch_max,
            )
        )
        worth = room_worth_a_claim(self._appetite)
        self._wake_level = self._appetite.concurrency + self._appetite.prefetch - worth
        room = self._room()
        return room if room >= min(worth, self._appetite.claim_max) else 0

    def _appetite_with(self, *, prefetch: int) -> Appetite:
        settings = self._settings
        return Appetite(
            concurrency=settings.concurrency,
            prefetch=prefetch,
            min_demand=settings.min_demand_rows,
            claim_max=settings.claim_max,
        )

    def _room(self) -> int:
        executor = self._executor
        return room_for_claims(
            appetite=self._appetite,
            in_hand=executor.running + executor.waiting,
            unflushed=executor.unflushed,
            unflushed_max=self._unflushed_max,
        )

    def _is_due(self) -> bool:
        """Whether a claim could bring something: a known backlog, or a future row whose time has come."""
        now_s = time.monotonic()
        if now_s < self._quiet_until_s:
            return False
        return self._has_backlog or (self._due_at_s is not None and self._due_at_s <= now_s)

    def _pause_s(self) -> float:
        """How long to sleep unless something wakes the loop; at its end the queue is looked at in any case."""
        now_s = time.monotonic()
        poll_s = jittered_s(self._settings.poll_interval_s, self._rng)
        if now_s < self._quiet_until_s and self._has_backlog:
            return self._quiet_until_s - now_s
        if self._due_at_s is not None:
            return min(poll_s, max(0.0, self._due_at_s - now_s))
        return poll_s

    async def claim_once(self, rows_max: int) -> int:
        """Claim up to so many rows and hand them out; return how many came."""
        self._is_claiming = True
        try:
            return await self._claim_and_submit(rows_max)
        finally:
            self._is_claiming = False

    async def _claim_and_submit(self, rows_max: int) -> int:
        now_s = time.monotonic()
        is_full_scan = self._hint.begin(now_s)
        # Pokes that arrive while the claim runs must not be forgotten: the flags are cleared before, not after.
        self._has_backlog = False
        self._due_at_s = None
        answer = await self._claim(rows_max)
        if is_full_scan:
            ended_s = time.monotonic()
            self._hint.full_scan_took(ended_s - now_s, ended_s)
        self._learn(answer, rows_max, is_full_scan=is_full_scan)
        self._owed.forget(answer.claims)
        for claim in answer.claims:
            self._holdings.add(claim)
        if answer.held_keys:
            self._owed.add_keys(answer.held_keys)
        if self._draining:
            await self.hand_back(answer.claims)
            return 0
        left = self._executor.submit(answer.claims)
        if left:
            await self._hand_back_left(left)
        if self._executor.start_suspect():
            # A step that kills its process mostly does so at once; meanwhile no other suspect shall be in hand.
            self._quiet_until_s = max(self._quiet_until_s, time.monotonic() + SUSPECT_PAUSE_S)
        return len(answer.claims)

    async def _claim(self, rows_max: int) -> ClaimAnswer:
        """One claim; after a race over a key, one without keyed rows, so that other work never waits for it [L13]."""
        started_s = time.monotonic()
        self.claims_total += 1
        try:
            answer = await self._claim_with(rows_max, with_keys=True)
        except StoreContendedError as error:
            self._metrics.contended.inc((error.constraint,))
            self._hint.drop()
            answer = await self._claim_with(rows_max, with_keys=False)
            # The keyed rows are still there, and by the next claim the winner of the race can be seen. The position
            # is not kept, because keyed rows lie before it.
            self._has_backlog = True
            answer = ClaimAnswer(claims=answer.claims, next_due_in_s=answer.next_due_in_s)
            self._quiet_until_s = time.monotonic() + self._rng.uniform(0.001, 0.005)
        self._metrics.claim_duration.observe(time.monotonic() - started_s, (self.queue,))
        self._metrics.claim_rows.observe(len(answer.claims), (self.queue,))
        return answer

    async def _claim_with(self, rows_max: int, *, with_keys: bool) -> ClaimAnswer:
        return await self._store.claim_runnable(
            queue=self.queue,
            rows_max=rows_max,
            lease_ttl_ms=self._lease_ttl_ms,
            start=self._hint.position,
            with_keys=with_keys,
            unresolved=self._unresolved.pairs(time.monotonic()),
        )

    def _learn(self, answer: ClaimAnswer, rows_max: int, *, is_full_scan: bool) -> None:
        """Remember what the claim said about the queue."""
        now_s = time.monotonic()
        taken = len(answer.claims)
        if taken >= rows_max:
            self._has_backlog = True
            if answer.position is not None:
                self._hint.reached(answer.position)
        elif not is_full_scan or answer.held_keys:
            # Rows may lie before the position, and held rows took places that others could have had: look again.
            self._has_backlog = True
            self._hint.drop()
        elif taken == 0:
            self._quiet_until_s = max(self._quiet_until_s, now_s + EMPTY_CLAIM_INTERVAL_S)
        if answer.next_due_in_s is not None:
            due_at_s = now_s + max(0.0, answer.next_due_in_s)
            self._due_at_s = due_at_s if self._due_at_s is None else min(self._due_at_s, due_at_s)

    async def _hand_back_left(self, left: Left) -> None:
        """Leave rows that cannot run here to others [L16], and suspects to a later time; no attempt is spent."""
        unknown = [(claim, None) for claim in left.unknown_machines] + [(one, one.step) for one in left.unknown_steps]
        delays_ms: list[int | None] = []
        for claim, step in unknown:
            delay_ms, is_news = self._unresolved.note(claim.machine, claim.version, time.monotonic(), step=step)
            delays_ms.append(delay_ms)
            if is_news:
                log.warning(
                    "this process does not know what a row needs, leaving such rows to others",
                    unknown="machine" if step is None else "step",
                    machine=claim.machine,
                    version=claim.version,
                    step=claim.step,
                    queue=self.queue,
                )
        self._metrics.unresolved.inc((self.queue,), len(unknown))
        delays_ms += [int(wait_s * 1000) for _, wait_s in left.suspects]
        claims = [claim for claim, _ in unknown] + [claim for claim, _ in left.suspects]
        await self._release(claims, delays_ms)

    async def hand_back(self, claims: list[Claim]) -> None:
        """Release rows as if they had not been claimed."""
        if claims:
            await self._release(claims, [None] * len(claims))

    async def _release(self, claims: list[Claim], delays_ms: list[int | None]) -> None:
        """Hand rows back; those that a caller has locked, or that may not have arrived, are owed."""
        self._hint.drop()
        released: set[int] = set()
        try:
            released = await self._store.release_claims(
                claims, delays_ms=delays_ms, on_unheld=lambda queue: self._on_runnable(queue, 0.0)
            )
        except StoreError as error:
            log.warning("rows could not be handed back yet", queue=self.queue, rows=len(claims), error=str(error))
        finally:
            for claim in claims:
                self._holdings.remove(claim.id, claim.claim)
            pairs = list(zip(claims, delays_ms, strict=True))
            self._owed.add_rows([(claim, delay_ms) for claim, delay_ms in pairs if claim.id not in released])
        # Others looked while the rows were in hand here and found nothing; only this makes them look again.
        due_in_ms = [delay_ms or 0 for claim, delay_ms in pairs if claim.id in released]
        if due_in_ms:
            self._on_runnable(self.queue, min(due_in_ms) / 1000)
