"""Takes rows from workers that are gone, and ends waiting rows whose deadline or expiry has passed."""

import time
from collections.abc import Callable, Sequence
from random import Random

from gendurable.backoff import ReconnectBackoff
from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.runtime.wake import Wake
from gendurable.store.leases import LeaseStore, Reaped

log = get_logger(__name__)

LOOK_INTERVAL_S = 1.0
"""Deadlines set by others are noticed within this; one that is known is met to the millisecond."""
NODE_MEMORY_S = 3600.0


class Reaper:
    """Sleeps until the next lease, deadline or expiry lapses, and at most a second."""

    def __init__(
        self,
        *,
        leases: LeaseStore,
        rows_max: int,
        crashes_max: int,
        lease_ttl_s: float,
        heartbeat_s: float,
        metrics: Metrics,
        rng: Random,
        proves_dead: Callable[[int, str], bool],
        on_runnable: Callable[[str, float], None],
    ) -> None:
        """Nothing is taken until :meth:`run`.

        Args:
            leases: The statements.
            rows_max: Rows of one statement.
            crashes_max: Processes a row may outlive.
            lease_ttl_s: Length of a lease.
            heartbeat_s: Seconds between heartbeats: the wait after an outage, and half of a suspect silence.
            metrics: What is counted.
            rng: Where jitter is drawn from.
            proves_dead: Whether the process with this pid and start time, on this machine, is gone.
            on_runnable: Told a queue that got a row back, and the seconds until that may run.
        """
        self.name = "reaper"
        self._leases = leases
        self._rows_max = rows_max
        self._crashes_max = crashes_max
        self._patience_ms = int(lease_ttl_s * 2000)
        self._heartbeat_s = heartbeat_s
        self._metrics = metrics
        self._rng = rng
        self._proves_dead = proves_dead
        self._on_runnable = on_runnable
        self._wake = Wake()
        self._draining = False
        self._neighbours_at_s = 0.0
        self._nodes_at_s = time.monotonic()

    def drain(self) -> None:
        """Take nothing from now on."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Sweep until drained."""
        backoff = ReconnectBackoff(self._rng)
        while not self._draining:
            try:
                pause_s = await self.sweep_once()
                backoff.reset()
            except StoreError as error:
                self._metrics.loop_errors.inc(("reaper",))
                log.warning("a sweep was lost", error=str(error))
                # Every worker missed its heartbeats while the database was away; each gets one before its rows are
                # taken, or a fleet would rob itself after every outage.
                pause_s = self._heartbeat_s + backoff.next_s()
                await self._wake.sleep(pause_s)
                continue
            await self._wake.sleep(pause_s)

    async def sweep_once(self) -> float:
        """Look what has lapsed, take it, and say how long to sleep."""
        await self._check_neighbours()
        due_in_s = await self._leases.next_sweep_due_s()
        if due_in_s is None:
            return LOOK_INTERVAL_S
        if due_in_s > 0:
            return min(due_in_s, LOOK_INTERVAL_S)
        swept = await self.reap_once() + await self.end_overdue_once()
        # Nothing taken although something has lapsed: its worker lives, or somebody holds the row. Look again later.
        return 0.0 if swept >= self._rows_max else (0.02 if swept else LOOK_INTERVAL_S)

    async def reap_once(self) -> int:
        """Take one batch of rows whose worker is gone; return how many."""
        reaped = await self._leases.reap_expired(
            rows_max=self._rows_max,
            crashes_max=self._crashes_max,
            patience_ms=self._patience_ms,
            on_unheld=self._unheld,
        )
        by_worker: dict[str, list[Reaped]] = {}
        for row in reaped:
            self._metrics.reaped.inc((row.queue,))
            by_worker.setdefault(row.worker, []).append(row)
        for worker, rows in by_worker.items():
            log.warning(
                "rows taken from a worker that is gone",
                worker=worker,
                rows=len(rows),
                failed=[row.id for row in rows if row.status == "failed"][:10],
                instance_ids=[row.id for row in rows][:10],
            )
        for queue, due_in_s in first_due_s(reaped).items():
            self._on_runnable(queue, due_in_s)
        return len(reaped)

    async def end_overdue_once(self) -> int:
        """End one batch of rows whose deadline or expiry has passed; return how many."""
        ended = await self._leases.end_overdue(rows_max=self._rows_max, on_unheld=self._unheld)
        for instance_id, status, machine, step in ended:
            self._metrics.steps_committed.inc((machine, step, "overdue"))
            log.info("overdue row ended", instance_id=instance_id, status=status, machine=machine, step=step)
        return len(ended)

    def _unheld(self, queue: str) -> None:
        """A row of this queue got a concurrency key that was let go; it is due."""
        self._on_runnable(queue, 0.0)

    async def _check_neighbours(self) -> None:
        """Let the leases of processes lapse that are proven dead [L17], so that a restart need not wait for them."""
        now_s = time.monotonic()
        if now_s < self._neighbours_at_s:
            return
        self._neighbours_at_s = now_s + self._heartbeat_s
        for boot, pid, started in await self._leases.silent_neighbours(silence_ms=int(self._heartbeat_s * 2000)):
            if self._proves_dead(pid, started):
                rows = await self._leases.declare_dead(boot, rows_max=10_000)
                if rows:
                    log.warning("a process of this machine is gone", worker=boot, pid=pid, rows=rows)
        if now_s >= self._nodes_at_s:
            self._nodes_at_s = now_s + NODE_MEMORY_S / 10
            await self._leases.sweep_nodes(silence_ms=int(NODE_MEMORY_S * 1000))


def first_due_s(reaped: Sequence[Reaped]) -> dict[str, float]:
    """Seconds until the first row may run, for each queue that got rows back; claims find the later ones [L25]."""
    due_s: dict[str, float] = {}
    for row in reaped:
        if row.status == "runnable":
            due_s[row.queue] = min(row.due_in_s, due_s.get(row.queue, row.due_in_s))
    return due_s
