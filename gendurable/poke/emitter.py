"""Tells other processes about new work, out of band and gathered: a NOTIFY in a hot commit serialises commits [L24]."""

import asyncio
import time

from gendurable.errors import StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.poke.message import PokeMessage, channel_of, encode_message
from gendurable.store.notifications import NotificationStore

log = get_logger(__name__)

GATHER_S = 0.01
"""After a notification, further ones are gathered this long; the first of a burst leaves at once."""
QUEUES_MAX = 50
CANCELS_MAX = 200


class PokeEmitter:
    """One loop per process; ``poke`` never waits and never fails."""

    def __init__(self, store: NotificationStore, *, schema: str, sender: str, metrics: Metrics) -> None:
        """``sender`` lets this process ignore its own notifications."""
        self.name = "emitter"
        self._store = store
        self._channel = channel_of(schema)
        self._sender = sender
        self._metrics = metrics
        self._due_at_s: dict[str, float] = {}
        self._cancels: list[int] = []
        self._pending = asyncio.Event()
        self._quiet_until_s = 0.0
        self._draining = False

    def poke(self, queue: str, due_in_s: float = 0.0) -> None:
        """Tell every process that a queue has a row that is due in so many seconds; the earliest wins."""
        due_at_s = time.monotonic() + due_in_s
        known = self._due_at_s.get(queue)
        if known is None or due_at_s < known:
            self._due_at_s[queue] = due_at_s
        self._pending.set()

    def cancel(self, instance_id: int) -> None:
        """Tell every process that an executing instance was cancelled."""
        if len(self._cancels) < 10_000:
            self._cancels.append(instance_id)
        self._pending.set()

    def hurry(self) -> None:
        """Send the next one without gathering: the caller has seen the last one answered."""
        self._quiet_until_s = 0.0

    def drain(self) -> None:
        """Send what is pending, then end."""
        self._draining = True
        self._pending.set()

    async def run(self) -> None:
        """Send until drained; a database that is away costs notifications, which the poll floor covers."""
        while True:
            await self._pending.wait()
            if not self._draining:
                await self._gather()
            message = self._take()
            if message.q or message.cancel:
                await self._send(message)
            if self._draining and not self._due_at_s and not self._cancels:
                return

    async def _gather(self) -> None:
        while not self._draining:
            pause_s = self._quiet_until_s - time.monotonic()
            if pause_s <= 0:
                return
            await asyncio.sleep(min(pause_s, 0.002))

    def _take(self) -> PokeMessage:
        """Build the next message and forget what is in it; what does not fit waits for the one after."""
        now_s = time.monotonic()
        queues = {}
        for queue in list(self._due_at_s)[:QUEUES_MAX]:
            queues[queue] = max(0, int((self._due_at_s.pop(queue) - now_s) * 1000))
        cancels, self._cancels = self._cancels[:CANCELS_MAX], self._cancels[CANCELS_MAX:]
        if not self._due_at_s and not self._cancels and not self._draining:
            self._pending.clear()
        return PokeMessage(q=queues, cancel=cancels, by=self._sender)

    async def _send(self, message: PokeMessage) -> None:
        try:
            await self._store.notify(self._channel, encode_message(message))
        except StoreError as error:
            self._metrics.loop_errors.inc(("emitter",))
            log.debug("a notification was not sent; the poll floor covers it", error=str(error))
            return
        finally:
            self._quiet_until_s = time.monotonic() + GATHER_S
        self._metrics.notifications.inc(("sent",))
