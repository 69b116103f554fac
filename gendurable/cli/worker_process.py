"""One worker process from its first signal handler to its exit code.

Order of the start: signal handlers, embedded server if wanted, the HTTP port, the database and its schema, the engine.
It ends the other way round, so that probes and metrics answer until everything else has stopped.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import uvloop

from gendurable.cli.dumping import dump_on_quit
from gendurable.cli.starting import database_settings, require_database
from gendurable.engine import Engine
from gendurable.errors import ConfigurationError, SchemaMismatchError, StoreError, StoreUnavailableError
from gendurable.logs import get_logger, mask_text
from gendurable.machine.registry import Registry
from gendurable.ops.health import Health
from gendurable.ops.http import HttpPort, build_app
from gendurable.ops.observing import QueueAges, Ticker
from gendurable.runtime.service import Service
from gendurable.runtime.supervisor import Supervisor
from gendurable.settings import Settings
from gendurable.store.fleet import FleetStore
from gendurable.wiring import build_engine

log = get_logger(__name__)

EXIT_CLEAN: Final = 0
EXIT_FAILURE: Final = 1
EXIT_CONFIGURATION: Final = 3
EXIT_UNREACHABLE: Final = 4
EXIT_SCHEMA_MISMATCH: Final = 5
EXIT_FORCED: Final = 6

DRY_LOOK_S: Final = 0.2
HTTP_STOP_S: Final = 3.0
THREADS_GRACE_S: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class WorkerLife:
    """How long a worker works.

    Attributes:
        until_empty: End when the served queues have nothing due and nothing executing.
        one_batch: End after one claim for each queue.
    """

    until_empty: bool = False
    one_batch: bool = False


def run_worker(settings: Settings, registry: Registry, life: WorkerLife) -> int:
    """Run a worker in this process until it is stopped.

    Returns:
        The exit code of section "exit codes" in the operations guide; everything is logged already.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        threads = ThreadPoolExecutor(thread_name_prefix="gendurable-loop")
        runner.get_loop().set_default_executor(threads)
        code = runner.run(_Worker(settings, registry, life).run())
        threads.shutdown(wait=False, cancel_futures=True)
        # Before the runner is closed, because that waits for every thread of user code that outlived its step.
        _end_with_threads(code)
    return code


def _end_with_threads(code: int) -> None:
    """End the process now if threads of user code would keep it alive; all that is ours is settled by now."""
    ends_at_s = time.monotonic() + THREADS_GRACE_S
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, ends_at_s - time.monotonic()))
            if thread.is_alive():
                logging.shutdown()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)


class _Worker:
    """The one worker of a process."""

    def __init__(self, settings: Settings, registry: Registry, life: WorkerLife) -> None:
        self._settings = settings
        self._registry = registry
        self._life = life
        self._stop = asyncio.Event()
        self._signals = 0
        self._engine: Engine | None = None
        self._was_ready = False
        self._health: Health | None = None

    async def run(self) -> int:
        """Start, work, drain; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)
        dump_on_quit(loop)
        try:
            async with database_settings(self._settings) as settings:
                engine = self._engine = build_engine(settings, self._registry)
                async with self._observed(engine) as observers:
                    return await self._run_engine(engine, observers)
        except SchemaMismatchError as error:
            return _refused(error, EXIT_SCHEMA_MISMATCH)
        except StoreUnavailableError as error:
            return _refused(error, EXIT_UNREACHABLE)
        except ConfigurationError as error:
            return _refused(error, EXIT_CONFIGURATION)
        except StoreError as error:
            return _refused(error, EXIT_FAILURE)

    def _on_signal(self, name: str) -> None:
        """The first signal drains; a second one hands everything back at once."""
        self._signals += 1
        log.info("stopping" if self._signals == 1 else "stopping at once", signal=name)
        self._stop.set()
        if self._health is not None:
            self._health.is_stopping = True
        if self._engine is not None:
            self._engine.stop()

    @contextlib.asynccontextmanager
    async def _observed(self, engine: Engine) -> AsyncIterator[Supervisor]:
        """Run what watches the engine around it: the HTTP port, the ticker and the age of the queues."""
        parts, process = engine.parts, engine.parts.settings.process
        health = self._health = Health(engine)
        health.is_stopping = self._stop.is_set()
        services: list[Service] = [Ticker(health, parts.observed)]
        if process.http_enabled:
            ages = QueueAges(
                store=FleetStore(parts.database),
                queues=list(parts.pickers),
                observed=parts.observed,
                metrics=parts.metrics,
                is_possible=lambda: engine.is_ready,
            )
            app = build_app(health, parts.metrics, on_scrape=ages.note_scrape)
            services += [ages, HttpPort(app, host=process.http_host, port=process.http_port)]
        supervisor = Supervisor()
        async with supervisor.tier(services, stop_timeout_s=HTTP_STOP_S):
            yield supervisor

    async def _run_engine(self, engine: Engine, observers: Supervisor) -> int:
        assert self._health is not None
        deadline_s = engine.parts.settings.process.start_deadline_s
        await require_database(engine.parts.database, self._health, deadline_s=deadline_s, stop=self._stop)
        if self._stop.is_set():
            return EXIT_CLEAN
        running = asyncio.create_task(engine.run(), name="engine")
        observing = asyncio.create_task(observers.failed.wait(), name="observers")
        attending = asyncio.create_task(self._attend(engine), name="attendant")
        try:
            await asyncio.wait([running, observing], return_when=asyncio.FIRST_COMPLETED)
            if observers.failure is not None:
                engine.stop()
            await asyncio.wait([running])
        finally:
            observing.cancel()
            attending.cancel()
        error = running.exception() or observers.failure
        if error is None:
            return EXIT_CLEAN if engine.report.is_clean else EXIT_FORCED
        if isinstance(error, (SchemaMismatchError, StoreUnavailableError, ConfigurationError)) and not self._was_ready:
            raise error
        log.error("the worker failed", exc_info=error)
        return EXIT_FAILURE

    async def _attend(self, engine: Engine) -> None:
        """Note that the engine came up, and end a worker that is not to work for ever."""
        if self._life.one_batch:
            for picker in engine.parts.pickers.values():
                picker.claims_max = 1
        await engine.wait_ready()
        self._was_ready = True
        if self._life.one_batch:
            await asyncio.gather(*(picker.wait_stopped() for picker in engine.parts.pickers.values()))
            await asyncio.gather(*(executor.wait_idle() for executor in engine.parts.executors.values()))
            engine.stop()
        elif self._life.until_empty:
            await _wait_empty(engine)
            engine.stop()


async def _wait_empty(engine: Engine) -> None:
    """Return when the served queues have nothing due and nothing executing, here or elsewhere.

    The pickers know when it is worth asking: while one of them still finds rows, no statement is spent.
    """
    pickers, store = engine.parts.pickers, FleetStore(engine.parts.database)
    while True:
        if all(picker.is_dry for picker in pickers.values()):
            try:
                if not await store.has_work(list(pickers)):
                    return
            except StoreError as error:
                log.warning("the queues could not be asked whether they are empty", error=str(error))
        await asyncio.sleep(DRY_LOOK_S)


def _refused(error: Exception, code: int) -> int:
    """Log why the worker did not start, each problem by itself."""
    problems = error.problems if isinstance(error, ConfigurationError) else (str(error),)
    for problem in problems:
        log.error("the worker cannot start", reason=mask_text(problem), exit_code=code)
    return code
