"""Keeps this process and its claims alive, on a connection of its own, until every outcome is durable."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random

from gendurable.backoff import ReconnectBackoff
from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.runtime.holdings import Holdings
from gendurable.runtime.wake import Wake
from gendurable.store.database import Connection, Database
from gendurable.store.leases import LeaseStore

log = get_logger(__name__)

RENEW_ROWS_MAX = 5000


class Heartbeat:
    """One beat: the process's own row first, which no caller can lock, then the leases of what it holds."""

    def __init__(
        self,
        *,
        database: Database,
        leases: LeaseStore,
        holdings: Holdings,
        queues: Sequence[str],
        interval_s: float,
        lease_ttl_ms: int,
        metrics: Metrics,
        rng: Random,
        on_cancelled: Callable[[Sequence[int]], None],
        on_beat: Callable[[Mapping[int, int]], None],
    ) -> None:
        """Nothing beats until :meth:`run`.

        Args:
            database: Where the own connection is made.
            leases: The statements.
            holdings: What is held.
            queues: What this process serves, for the table of processes.
            interval_s: Seconds between two beats.
            lease_ttl_ms: Length of a lease.
            metrics: What is counted.
            rng: Where jitter is drawn from.
            on_cancelled: Told the instances somebody cancelled while they execute here.
            on_beat: Told after each beat which claims (instance id to fence) are lost: the row went to another worker,
                or this worker has flushed it meanwhile.
        """
        self.name = "heartbeat"
        self._database = database
        self._leases = leases
        self._holdings = holdings
        self._queues = list(queues)
        self._interval_s = interval_s
        self._lease_ttl_ms = lease_ttl_ms
        self._metrics = metrics
        self._rng = rng
        self._on_cancelled = on_cancelled
        self._on_beat = on_beat
        self._wake = Wake()
        self._draining = False
        self._connection: Connection | None = None
        self._beat_at_s = time.monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since the last beat that reached the database."""
        return time.monotonic() - self._beat_at_s

    def drain(self) -> None:
        """End; call when nothing is held any more."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Beat until drained; a lost connection costs beats, not the process."""
        backoff = ReconnectBackoff(self._rng, first_s=min(0.1, self._interval_s), max_s=self._interval_s)
        try:
            while not self._draining:
                try:
                    # A connection that the network forgot answers nothing, and says so only after the longest time a
                    # statement may take. That can be a whole lease, so the heartbeat's own patience is a third of one.
                    async with asyncio.timeout(self._lease_ttl_ms / 3000):
                        await self.beat_once()
                    backoff.reset()
                    pause_s = self._interval_s
                except (StoreError, TimeoutError) as error:
                    self._metrics.loop_errors.inc(("heartbeat",))
                    log.warning(
                        "a heartbeat was lost", error=str(error) or "no answer", since_last_s=round(self.age_s, 1)
                    )
                    if isinstance(error, TimeoutError) and self._connection is not None:
                        self._connection.terminate()
                    await self._disconnect()
                    pause_s = backoff.next_s()
                await self._wake.sleep(pause_s)
        finally:
            await self._disconnect()

    async def beat_once(self) -> None:
        """Renew the process and everything it holds."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._database.connect_apart()
            await self._leases.register_node(
                queues=self._queues, lease_ttl_ms=self._lease_ttl_ms, connection=self._connection
            )
        elif not await self._leases.beat_node(lease_ttl_ms=self._lease_ttl_ms, connection=self._connection):
            await self._leases.register_node(
                queues=self._queues, lease_ttl_ms=self._lease_ttl_ms, connection=self._connection
            )
        await self._database.refresh_plans(self._connection)
        # A lease younger than a beat has most of its time left. Renewing it would only lock, for the length of a
        # statement, rows that a busy worker is about to flush, and a flush skips what is locked.
        fences = self._holdings.fences(claimed_before_s=time.monotonic() - self._interval_s)
        held = sorted(fences)
        lost: dict[int, int] = {}
        for start in range(0, len(held), RENEW_ROWS_MAX):
            part = {i: fences[i] for i in held[start : start + RENEW_ROWS_MAX]}
            renewed = await self._leases.renew_leases(
                part, lease_ttl_ms=self._lease_ttl_ms, connection=self._connection
            )
            # A row that was not renewed is busy in a caller's transaction, or lost; only reading tells.
            missing = {i: fence for i, fence in part.items() if i not in renewed}
            if missing:
                owned = await self._leases.still_owned(missing, connection=self._connection)
                lost.update({i: fence for i, fence in missing.items() if i not in owned})
            asked = [instance_id for instance_id, is_cancelled in renewed.items() if is_cancelled]
            if asked:
                self._on_cancelled(asked)
        self._beat_at_s = time.monotonic()
        self._on_beat(lost)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await asyncio.wait_for(connection.close(), 2.0)
            except (TimeoutError, OSError):
                connection.terminate()
