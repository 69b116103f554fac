"""The engine: everything one worker process runs, with one start and one stop."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gendurable.client import Client
from gendurable.logs import get_logger
from gendurable.machine.registry import Registry
from gendurable.metrics import Metrics, Observed
from gendurable.model.claim import Claim
from gendurable.poke.emitter import PokeEmitter
from gendurable.poke.hub import PokeHub
from gendurable.poke.listener import PokeListener
from gendurable.runtime.executor import Executor
from gendurable.runtime.flusher import Flusher
from gendurable.runtime.heartbeat import Heartbeat
from gendurable.runtime.holdings import Holdings
from gendurable.runtime.owed import Owed
from gendurable.runtime.picker import Picker
from gendurable.runtime.service import Service
from gendurable.runtime.supervisor import Supervisor
from gendurable.settings import Settings
from gendurable.store.database import Database
from gendurable.store.leases import LeaseStore

log = get_logger(__name__)

SERVICE_STOP_S = 5.0
OWED_STOP_S = 1.0
"""What is owed when the time limit of a drain has passed is tried for this long, at least."""
FLUSH_STOP_S = 30.0


@dataclass(kw_only=True)
class Parts:
    """What :mod:`gendurable.wiring` puts together.

    Attributes:
        upkeep: The loops that look after the whole database: reaper, collector, reconciler.
        cut: Rows whose step was interrupted by the end of a drain, to be handed back.
    """

    settings: Settings
    database: Database
    registry: Registry
    metrics: Metrics
    hub: PokeHub
    holdings: Holdings
    client: Client
    leases: LeaseStore
    emitter: PokeEmitter
    listener: PokeListener | None
    heartbeat: Heartbeat
    flushers: Sequence[Flusher]
    executors: Mapping[str, Executor]
    owed: Owed
    pickers: Mapping[str, Picker]
    upkeep: Sequence[Service]
    cut: list[Claim]
    observed: Observed


@dataclass(kw_only=True)
class DrainReport:
    """How a drain went: what the last log line says."""

    seconds: float = 0.0
    finished: int = 0
    handed_back: int = 0
    cut: int = 0
    unflushed: int = 0
    owed: int = 0
    by_queue: dict[str, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """True when every running step came to its own end, every outcome is durable and nothing is left behind."""
        return self.cut == 0 and self.unflushed == 0 and self.owed == 0


class Engine:
    """One worker: claims, runs and commits until it is stopped. Built by :func:`gendurable.wiring.build_engine`."""

    def __init__(self, parts: Parts) -> None:
        """Nothing is connected and nothing runs until :meth:`run`."""
        self._parts = parts
        self._supervisor = Supervisor()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ready = asyncio.Event()
        self._started_s = time.monotonic()
        self.is_draining = False
        self.report = DrainReport()

    @property
    def client(self) -> Client:
        """A client on this engine's own connections and wake-ups."""
        return self._parts.client

    @property
    def metrics(self) -> Metrics:
        """What this engine counts."""
        return self._parts.metrics

    @property
    def parts(self) -> Parts:
        """Everything it is made of, for the HTTP port and for tests."""
        return self._parts

    @property
    def is_ready(self) -> bool:
        """True while it claims work."""
        return self._ready.is_set() and not self.is_draining

    def stop(self) -> None:
        """Begin to drain; a second call hands everything back at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def wait_ready(self) -> None:
        """Return when it claims work."""
        await self._ready.wait()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Engine"]:
        """Run beside a block, for applications and tests; the block's end drains it.

        Raises:
            BaseException: Whatever kept it from starting, or ended one of its services.
        """
        task = asyncio.get_running_loop().create_task(self.run())
        ready = asyncio.get_running_loop().create_task(self.wait_ready())
        try:
            await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Given up during the start: nobody would be left to stop what is starting.
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            ready.cancel()
        if task.done():
            await task
        try:
            yield self
        finally:
            self.stop()
            await task

    async def run(self) -> DrainReport:
        """Work until :meth:`stop`, then drain.

        Raises:
            StoreUnreachableError: The database could not be reached at the start.
            BaseException: A service failed; everything was stopped, the leases of what was held decide.
        """
        parts = self._parts
        await parts.database.open()
        try:
            async with parts.client, parts.registry.resources() as resources:
                await self._run_tiers(resources)
        finally:
            for executor in parts.executors.values():
                executor.close()
            await parts.database.close()
        if self._supervisor.failure is not None:
            raise self._supervisor.failure
        return self.report

    async def _run_tiers(self, resources: Mapping[str, Any]) -> None:
        """Heartbeat and flushers outlive the pickers, because an outcome needs both until it is durable."""
        parts = self._parts
        for executor in parts.executors.values():
            executor.start(resources=resources, middleware=parts.registry.middleware)
        await parts.heartbeat.beat_once()
        listeners: list[Service] = [parts.emitter, *([parts.listener] if parts.listener is not None else [])]
        supervisor = self._supervisor
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(supervisor.tier([parts.heartbeat], stop_timeout_s=SERVICE_STOP_S))
            await stack.enter_async_context(supervisor.tier([*parts.flushers], stop_timeout_s=FLUSH_STOP_S))
            await stack.enter_async_context(supervisor.tier([*listeners, *parts.upkeep], stop_timeout_s=SERVICE_STOP_S))
            for queue, picker in parts.pickers.items():
                stack.callback(parts.hub.listen(queue, picker.poke))
            await stack.enter_async_context(supervisor.tier([parts.owed], stop_timeout_s=OWED_STOP_S))
            await stack.enter_async_context(supervisor.tier([*parts.pickers.values()], stop_timeout_s=SERVICE_STOP_S))
            self._ready.set()
            log.info("worker ready", queues=sorted(parts.pickers), boot=parts.leases.identity.boot)
            await _first_of(self._stop, supervisor.failed)
            await self._drain()
        with contextlib.suppress(Exception):
            await parts.leases.remove_node()

    async def _drain(self) -> None:
        """Stop claiming at once, hand back what has not started, and give running steps one time limit for them all."""
        parts = self._parts
        started_s = time.monotonic()
        self.is_draining = True
        for picker in parts.pickers.values():
            picker.drain()
        if self._supervisor.failure is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SERVICE_STOP_S):
                await asyncio.gather(*(self._stop_claiming(queue) for queue in parts.pickers))
        deadline_s = started_s + parts.settings.process.drain_timeout_s
        await self._wait_for_steps(max(0.0, deadline_s - time.monotonic()))
        await self._flush_all()
        await self._settle_owed(max(OWED_STOP_S, deadline_s - time.monotonic()))
        self.report.seconds = time.monotonic() - started_s
        self.report.by_queue = {queue: executor.finished_total for queue, executor in parts.executors.items()}
        self.report.finished = sum(self.report.by_queue.values())
        self.report.unflushed = sum(flusher.backlog for flusher in parts.flushers)
        self.report.owed = len(parts.owed)
        log.info(
            "worker drained",
            seconds=round(self.report.seconds, 3),
            finished=self.report.finished,
            handed_back=self.report.handed_back,
            cut=self.report.cut,
            unflushed=self.report.unflushed,
            owed=self.report.owed,
            uptime_s=round(time.monotonic() - self._started_s, 1),
        )

    async def _stop_claiming(self, queue: str) -> None:
        """Hand back what one queue has not started; a claim that is under way is handed back by its picker."""
        waiting = self._parts.executors[queue].take_back_waiting()
        self.report.handed_back += len(waiting)
        picker = self._parts.pickers[queue]
        await asyncio.gather(picker.hand_back(waiting), picker.wait_stopped())

    async def _wait_for_steps(self, timeout_s: float) -> None:
        idle = asyncio.gather(*(executor.wait_idle() for executor in self._parts.executors.values()))
        hurry = asyncio.ensure_future(self._hurry.wait())
        waits: list[asyncio.Future[Any]] = [idle, hurry]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not idle.done():
            self.report.cut = sum(executor.cut() for executor in self._parts.executors.values())
            await asyncio.wait([idle], timeout=SERVICE_STOP_S)
        idle.cancel()
        await self._release_cut()

    async def _release_cut(self) -> None:
        """Hand back the rows of steps that were cut off; no attempt is spent."""
        by_queue: dict[str, list[Claim]] = {}
        for claim in self._parts.cut:
            by_queue.setdefault(claim.queue, []).append(claim)
        self._parts.cut.clear()
        for queue, claims in by_queue.items():
            await self._parts.pickers[queue].hand_back(claims)

    async def _flush_all(self) -> None:
        """Wait until every outcome is durable, within a time limit; the flushers go on while the database is away."""
        settled = asyncio.gather(*(flusher.wait_settled() for flusher in self._parts.flushers))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(settled, FLUSH_STOP_S)

    async def _settle_owed(self, timeout_s: float) -> None:
        """Wait until nothing is owed; one who asks twice does not want to wait for a caller's transaction."""
        settled = asyncio.ensure_future(self._parts.owed.wait_settled())
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait([settled, hurry], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if hurry.done():
            await asyncio.wait([settled], timeout=OWED_STOP_S)
        for waiting in (settled, hurry):
            waiting.cancel()


async def _first_of(*events: asyncio.Event) -> None:
    """Return when any of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
