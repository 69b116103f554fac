"""What runs in a process of its own: the engine with its default settings, or its statements alone."""

import asyncio
import gc
import os
import sys
import time
from typing import Any

import msgspec

from gendurable.bench.machines import STEP_STATES, STEPS, bench_registry
from gendurable.bench.processes import resident_kib
from gendurable.bench.spec import ChildSpec, child_settings
from gendurable.engine import Engine
from gendurable.settings.sections import DEFAULT_QUEUE
from gendurable.store.bare import BARE_BATCH_ROWS, BareLoop
from gendurable.store.database import Database
from gendurable.wiring import build_engine, connect_options

LOOK_S = 0.02


async def run_worker(spec: ChildSpec) -> None:
    """Run the engine until the work is done or nobody listens any more, and report what it took."""
    engine = build_engine(child_settings(spec), bench_registry())
    closed = asyncio.ensure_future(_input_closed())
    async with engine.running():
        listener = engine.parts.listener
        while listener is not None and not listener.is_up:  # noqa: ASYNC110 - it is asked before anything is timed
            await asyncio.sleep(LOOK_S)
        say({"ready": True, "boot": engine.parts.leases.identity.boot, **_counts(engine)})
        reported = 0
        while not closed.done():
            committed = int(engine.metrics.steps_committed.total())
            if spec.steps_total is not None and committed >= spec.steps_total:
                break
            if spec.report_every is not None and committed >= reported + spec.report_every:
                reported = committed
                say(_counts(engine))
            await asyncio.wait([closed], timeout=LOOK_S)
        say({"ended": True, **_counts(engine)})
    closed.cancel()


async def run_bare(spec: ChildSpec) -> None:
    """Run the bare loop over one queue after another and report what it took."""
    database = Database(connect_options(child_settings(spec), application_name="gendurable bare loop"))
    await database.open()
    try:
        say({"ready": True})
        bare, done = BareLoop(database), 0
        for queue in spec.queues or (DEFAULT_QUEUE,):
            if spec.is_stepping:
                done += await bare.drain_steps(queue, STEPS, STEP_STATES, batch_rows=BARE_BATCH_ROWS)
            else:
                done += await bare.drain_done(queue)
        say({"committed": done, "statements": database.statements_total, "cpu_s": time.process_time()})
    finally:
        await database.close()


def say(report: dict[str, Any]) -> None:
    """Report to the process that started this one."""
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()


def _counts(engine: Engine) -> dict[str, Any]:
    return {
        "committed": int(engine.metrics.steps_committed.total()),
        "stale": int(engine.metrics.outcomes_stale.total()),
        "busy": int(engine.metrics.outcomes_busy.total()),
        "claims": engine.metrics.claim_duration.count(),
        "claims_s": _sum_s(engine),
        "flushes": engine.metrics.flush_duration.count(),
        "statements": engine.parts.database.statements_total,
        "cpu_s": time.process_time(),
        "rss_kib": resident_kib(os.getpid()),
        "collections": sum(generation["collections"] for generation in gc.get_stats()),
    }


def _sum_s(engine: Engine) -> float:
    """Seconds that all claims took together, as the worker sees them."""
    samples = engine.metrics.claim_duration.collect().samples
    return float(sum(sample.value for sample in samples if sample.name.endswith("_sum")))


async def _input_closed() -> None:
    """Return when standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
