"""Makes outcomes durable: whatever waits is committed in one transaction, and whoever waits is told once.

Adaptive group commit: an idle flusher writes at once, and while a transaction runs the next batch grows by itself.

An outcome that the batch left out is either lost (another worker has the row) or busy (a caller's open transaction
holds the row). The two are told apart by reading; busy ones go to a slow lane, so that no caller can make a batch
wait [L1].
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from gendurable.backoff import ReconnectBackoff
from gendurable.errors import StoreContendedError, StoreDataError, StoreRejectedError, StoreUnavailableError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.model.transition import Transition, Verdict
from gendurable.runtime.wake import Wake
from gendurable.store.outcomes import FlushAnswer, OutcomeStore

log = get_logger(__name__)

SLOW_LANE_WAIT_MS = 5000
SLOW_LANE_ROWS_MAX = 2
"""Rows waited for at once: each takes a connection of the pool while it waits."""
CONTENDED_TRIES_MAX = 5


class Settle(Protocol):
    """Told what became of an outcome, once."""

    def __call__(self, transition: Transition, verdict: Verdict, due_in_s: float | None) -> None:
        """``due_in_s`` is set when the row goes on: seconds until it may run."""
        ...


Entry = tuple[Transition, Settle]


class Flusher:
    """One loop that commits the outcomes of some queues."""

    def __init__(
        self,
        store: OutcomeStore,
        *,
        name: str,
        batch_max: int,
        delay_max_s: float,
        metrics: Metrics,
        rng: Random,
        on_unheld: Callable[[str], None],
    ) -> None:
        """Nothing is written until :meth:`run`.

        Args:
            store: Writes the outcomes.
            name: From the routes.
            batch_max: Outcomes of one transaction.
            delay_max_s: Seconds to linger for company before a batch; 0 writes at once.
            metrics: What is counted.
            rng: Where jitter is drawn from.
            on_unheld: Told a queue in which a row got a concurrency key that was let go.
        """
        self.name = f"flusher:{name}"
        self._store = store
        self._batch_max = batch_max
        self._delay_max_s = delay_max_s
        self._metrics = metrics
        self._on_unheld = on_unheld
        self._rng = rng
        self._waiting: deque[Entry] = deque()
        self._wake = Wake()
        self._draining = False
        self._busy: set[asyncio.Task[None]] = set()
        self._slow_lane = asyncio.Semaphore(SLOW_LANE_ROWS_MAX)
        self._in_transaction = 0
        self._progress = asyncio.Event()

    @property
    def backlog(self) -> int:
        """Outcomes that are not durable yet."""
        return len(self._waiting) + self._in_transaction + len(self._busy)

    async def wait_settled(self) -> None:
        """Return when every outcome handed over so far has been answered."""
        while self.backlog:
            self._progress.clear()
            await self._progress.wait()

    def put(self, transition: Transition, settle: Settle) -> None:
        """Queue an outcome; the pickers claim nothing new while the backlog is too long, so this need not wait."""
        self._waiting.append((transition, settle))
        self._wake.set()

    def drain(self) -> None:
        """End when everything handed over is durable."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Commit batches until drained."""
        try:
            while not (self._draining and not self._waiting):
                if not self._waiting:
                    await self._wake.sleep(60.0)
                    continue
                if self._delay_max_s > 0 and len(self._waiting) < self._batch_max and not self._draining:
                    await asyncio.sleep(self._delay_max_s)
                await self._flush_once()
            if self._busy:
                await asyncio.wait(self._busy)
        finally:
            for task in self._busy:
                task.cancel()

    async def _flush_once(self) -> None:
        """Commit what waits now; returns when every entry of it has been answered or sent to the slow lane."""
        waiting = self._waiting
        batch = [waiting.popleft() for _ in range(min(len(waiting), self._batch_max))]
        # Rows are locked in id order everywhere, and one row cannot be written twice by one statement.
        by_id: dict[int, Entry] = {}
        for entry in batch:
            if entry[0].id in by_id:
                waiting.appendleft(entry)
            else:
                by_id[entry[0].id] = entry
        ordered = [by_id[i] for i in sorted(by_id)]
        self._in_transaction = len(ordered)
        try:
            await self._commit(ordered)
        finally:
            self._in_transaction = 0
            self._progress.set()

    async def _commit(self, batch: Sequence[Entry]) -> None:
        """Commit a batch whatever happens to the connection, splitting it when a value in it is refused."""
        backoff = ReconnectBackoff(self._rng)
        contended = 0
        while batch:
            try:
                started_s = time.monotonic()
                answer = await self._store.commit([transition for transition, _ in batch])
            except StoreDataError as error:
                await self._bisect(batch, error)
                return
            except StoreContendedError as error:
                self._metrics.contended.inc((error.constraint,))
                contended += 1
                if contended >= CONTENDED_TRIES_MAX and len(batch) > 1:
                    await self._commit_apart(batch)
                    return
                await asyncio.sleep(self._rng.uniform(0.001, 0.01))
            except StoreRejectedError as error:
                self._metrics.flush_errors.inc()
                log.warning("a flush was rejected, trying again", error=str(error), outcomes=len(batch))
                await asyncio.sleep(backoff.next_s())
            except StoreUnavailableError as error:
                self._metrics.flush_errors.inc()
                log.warning("a flush lost the database, trying again", error=str(error), outcomes=len(batch))
                await asyncio.sleep(backoff.next_s())
                batch = await self._resend(batch)
            else:
                self._metrics.flush_duration.observe(time.monotonic() - started_s)
                self._metrics.flush_rows.observe(len(batch))
                await self._settle(batch, answer)
                return

    async def _resend(self, batch: Sequence[Entry]) -> Sequence[Entry]:
        """After a lost connection: answer what was committed all the same, and return the rest to be sent again."""
        try:
            landed = await self._store.landed([transition for transition, _ in batch])
        except (StoreUnavailableError, StoreRejectedError, StoreContendedError):
            return batch
        rest = []
        for transition, settle in batch:
            if transition.id in landed:
                due_in_s = (transition.delay_ms or 0) / 1000 if transition.status == "runnable" else None
                _tell(settle, transition, Verdict.COMMITTED, due_in_s)
            else:
                rest.append((transition, settle))
        return rest

    async def _bisect(self, batch: Sequence[Entry], error: StoreDataError) -> None:
        """Halve the batch until only the culprit fails, and fail the culprit's instance loudly."""
        self._metrics.flush_bisections.inc()
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            await self._commit(batch[middle:])
            return
        transition, settle = batch[0]
        log.error("an outcome was refused by the database", instance_id=transition.id, error=str(error))
        if transition.error_kind == "refused":
            # Even the bare failure was refused: the row goes back by its lease, and ends after max_crashes.
            _tell(settle, transition, Verdict.REFUSED, None)
            return
        failure = Transition(
            id=transition.id,
            claim=transition.claim,
            outcome="stop",
            status="failed",
            attempt=transition.attempt,
            error=f"the database refused the outcome {transition.outcome}: {error}".replace("\0", ""),
            error_kind="refused",
            held_key=transition.held_key,
        )
        await self._commit([(failure, settle)])

    async def _commit_apart(self, batch: Sequence[Entry]) -> None:
        """A batch that keeps losing races is written row by row, so that one contended row costs only itself."""
        for entry in batch:
            await self._commit([entry])

    async def _settle(self, batch: Sequence[Entry], answer: FlushAnswer) -> None:
        """Answer everybody; nothing that goes wrong after the commit changes an answer."""
        left_out = []
        for entry in batch:
            transition, settle = entry
            if transition.id in answer.statuses:
                _tell(settle, transition, Verdict.COMMITTED, answer.due_in_s.get(transition.id))
            else:
                left_out.append(entry)
        for queue in answer.unheld_queues:
            self._on_unheld(queue)
        if left_out:
            await self._sort_out(left_out)

    async def _sort_out(self, left_out: Sequence[Entry]) -> None:
        """Tell rows that were busy from rows that were lost."""
        backoff = ReconnectBackoff(self._rng)
        owned: set[int] | None = None
        while owned is None:
            try:
                owned = await self._store.still_owned([transition for transition, _ in left_out])
            except (StoreUnavailableError, StoreContendedError, StoreRejectedError):
                await asyncio.sleep(backoff.next_s())
        for transition, settle in left_out:
            if transition.id in owned:
                self._metrics.outcomes_busy.inc()
                task = asyncio.get_running_loop().create_task(self._commit_slowly(transition, settle))
                self._busy.add(task)
                task.add_done_callback(self._slow_lane_left)
            else:
                _tell(settle, transition, Verdict.STALE, None)

    def _slow_lane_left(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        self._progress.set()

    async def _commit_slowly(self, transition: Transition, settle: Settle) -> None:
        """Wait for a row that a caller holds, in a transaction of its own, as long as the row is ours.

        The heartbeat cannot renew this row's lease meanwhile, but the process's own lease protects it [L2].
        """
        backoff = ReconnectBackoff(self._rng)
        while True:
            try:
                async with self._slow_lane:
                    answer = await self._store.commit_waiting(transition, lock_wait_ms=SLOW_LANE_WAIT_MS)
            except StoreContendedError as error:
                self._metrics.contended.inc((error.constraint,))
                continue
            except StoreUnavailableError:
                await asyncio.sleep(backoff.next_s())
                if not await self._resend([(transition, settle)]):
                    return
                continue
            except (StoreDataError, StoreRejectedError) as error:
                log.warning("an outcome was refused by the database", instance_id=transition.id, error=str(error))
                _tell(settle, transition, Verdict.REFUSED, None)
                return
            for queue in answer.unheld_queues:
                self._on_unheld(queue)
            is_written = transition.id in answer.statuses
            _tell(
                settle,
                transition,
                Verdict.COMMITTED if is_written else Verdict.STALE,
                answer.due_in_s.get(transition.id),
            )
            return


def _tell(settle: Settle, transition: Transition, verdict: Verdict, due_in_s: float | None) -> None:
    """Answer one entry. The verdict stands in the database, so what fails in telling it concerns nobody else."""
    try:
        settle(transition, verdict, due_in_s)
    except Exception:
        log.exception("telling a verdict failed", instance_id=transition.id, verdict=verdict.value)
