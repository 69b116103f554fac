"""Hears from other processes that there is work."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from gendurable.backoff import ReconnectBackoff
from gendurable.errors import InvalidValueError, StoreError
from gendurable.logs import get_logger
from gendurable.metrics import Metrics
from gendurable.poke.hub import PokeHub
from gendurable.poke.message import channel_of, decode_message
from gendurable.store.notifications import NotificationStore

log = get_logger(__name__)


class PokeListener:
    """Listens on a connection of its own and passes pokes to the hub; comes back by itself after a loss."""

    def __init__(
        self,
        store: NotificationStore,
        hub: PokeHub,
        *,
        schema: str,
        sender: str,
        metrics: Metrics,
        rng: Random,
        on_cancelled: Callable[[Sequence[int]], None],
    ) -> None:
        """``sender`` is this process, whose own notifications are ignored."""
        self.name = "listener"
        self._store = store
        self._hub = hub
        self._channel = channel_of(schema)
        self._sender = sender
        self._metrics = metrics
        self._rng = rng
        self._on_cancelled = on_cancelled
        self._until = asyncio.Event()
        self.is_up = False

    def drain(self) -> None:
        """Stop listening."""
        self._until.set()

    async def run(self) -> None:
        """Listen until drained."""
        backoff = ReconnectBackoff(self._rng)
        while not self._until.is_set():
            try:
                await self._store.listen(
                    self._channel, on_payload=self._received, on_listening=self._listening, until=self._until
                )
                backoff.reset()
            except StoreError as error:
                self._metrics.loop_errors.inc(("listener",))
                log.warning("notifications are lost; polling until they are back", error=str(error))
            finally:
                if self.is_up:
                    backoff.reset()
                self.is_up = False
            if not self._until.is_set():
                await asyncio.sleep(backoff.next_s())

    def _listening(self) -> None:
        """Whatever was sent before now is lost, so every queue is looked at once."""
        self.is_up = True
        self._hub.poke_all()

    def _received(self, payload: str) -> None:
        self._metrics.notifications.inc(("received",))
        try:
            message = decode_message(payload)
        except InvalidValueError as error:
            log.warning("a notification was ignored", error=str(error))
            return
        if message.cancel:
            self._on_cancelled(message.cancel)
        if message.by == self._sender:
            return
        for queue, due_in_ms in message.q.items():
            self._hub.poke(queue, due_in_ms / 1000)
