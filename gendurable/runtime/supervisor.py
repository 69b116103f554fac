"""Starts services in tiers and stops them in the opposite order, so that each outlives what depends on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from gendurable.logs import get_logger
from gendurable.runtime.service import Service

log = get_logger(__name__)


class Supervisor:
    """Owns the tasks of all services; a service that fails ends them all, because its failure is a bug."""

    def __init__(self) -> None:
        """Nothing runs."""
        self._failure: BaseException | None = None
        self.failed = asyncio.Event()

    @property
    def failure(self) -> BaseException | None:
        """What ended a service that should have gone on."""
        return self._failure

    @contextlib.asynccontextmanager
    async def tier(self, services: Sequence[Service], *, stop_timeout_s: float) -> AsyncIterator[None]:
        """Run services around a block; at its end they are drained, and cut after ``stop_timeout_s``."""
        tasks = {
            asyncio.get_running_loop().create_task(service.run(), name=service.name): service for service in services
        }
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            for service in services:
                service.drain()
            if tasks:
                _done, late = await asyncio.wait(tasks, timeout=stop_timeout_s)
                for task in late:
                    log.warning("a service did not stop in time and is cut off", service=task.get_name())
                    task.cancel()
                if late:
                    await asyncio.wait(late, timeout=1.0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Note why a service ended; an orderly end is no news."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("a service failed, the process ends", service=task.get_name(), exc_info=error)
            self._failure = self._failure or error
            self.failed.set()
