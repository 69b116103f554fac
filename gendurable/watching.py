"""Waits for instances to end: one statement for all waiting callers of a process, at a pace that starts fast."""

import asyncio
import time

from gendurable.errors import NotFoundError, StoreError
from gendurable.logs import get_logger
from gendurable.store.instances import InstanceStore

log = get_logger(__name__)

FIRST_LOOK_S = 0.002
LOOK_INTERVAL_MAX_S = 0.04
"""A result of another process is seen within this; it is one statement for all callers together."""
IDS_MAX = 1000


class InstanceWatcher:
    """Polls for the instances somebody waits for; nobody waiting, nothing polled and nothing remembered."""

    def __init__(self, store: InstanceStore) -> None:
        """Nothing runs until somebody waits."""
        self._store = store
        self._waiters: dict[int, list[asyncio.Future[bool]]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Instances somebody waits for."""
        return len(self._waiters)

    async def wait_ended(self, instance_id: int, *, timeout_s: float) -> bool:
        """Wait until an instance has ended.

        Returns:
            True when it has; False when the time passed or the client was closed.

        Raises:
            NotFoundError: There is no such instance.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(instance_id, []).append(future)
        self._changed.set()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._poll())
        try:
            exists = await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._forget(instance_id, future)
        if not exists:
            raise NotFoundError(instance_id)
        return True

    async def close(self) -> None:
        """Answer everybody "not yet" and stop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
        for futures in list(self._waiters.values()):
            for future in futures:
                if not future.done():
                    future.set_exception(TimeoutError())

    def _forget(self, instance_id: int, future: asyncio.Future[bool]) -> None:
        futures = self._waiters.get(instance_id)
        if futures is not None and future in futures:
            futures.remove(future)
            if not futures:
                del self._waiters[instance_id]

    def note_ended(self, instance_id: int) -> None:
        """An engine of this process has just made an end durable: answer without looking."""
        for future in self._waiters.get(instance_id, ()):
            if not future.done():
                future.set_result(True)

    async def _poll(self) -> None:
        pause_s = FIRST_LOOK_S
        while self._waiters:
            if await self._sleep(pause_s):
                pause_s = FIRST_LOOK_S
            pause_s = min(LOOK_INTERVAL_MAX_S, pause_s * 1.5)
            try:
                await self._look_once()
            except StoreError as error:
                log.debug("waiting callers were not answered", error=str(error))
                pause_s = LOOK_INTERVAL_MAX_S * 10

    async def _sleep(self, pause_s: float) -> bool:
        """Sleep, but not past the first look that a new caller is owed; True when there is a new caller."""
        started_s = time.monotonic()
        try:
            await asyncio.wait_for(self._changed.wait(), pause_s)
        except TimeoutError:
            return False
        self._changed.clear()
        left_s = pause_s - (time.monotonic() - started_s)
        await asyncio.sleep(max(0.0, min(left_s, FIRST_LOOK_S)))
        return True

    async def _look_once(self) -> None:
        ids = list(self._waiters)
        for start in range(0, len(ids), IDS_MAX):
            ended = await self._store.watch(ids[start : start + IDS_MAX])
            for instance_id, exists in ended.items():
                for future in self._waiters.get(instance_id, ()):
                    if not future.done():
                        future.set_result(exists)
