"""What runs in a process of its own: a worker with its default settings, the bare loop, or a client.

``python -m gendurable.bench.child`` does what the first line of its standard input says and reports in JSON lines on
standard output. It ends when the work is done, or when its input closes: a bench that dies leaves nothing running.
"""

import asyncio
import gc
import io
import sys
import time
from typing import Any, Literal

import msgspec
import uvloop

from gendurable.bench.machines import STEP_STATES, STEPS, bench_registry
from gendurable.engine import Engine
from gendurable.logs import configure_logging
from gendurable.settings import LeaseSettings, QueueSettings, Secret, Settings
from gendurable.settings.sections import DEFAULT_QUEUE
from gendurable.store.bare import BARE_BATCH_ROWS, BareLoop
from gendurable.store.database import Database
from gendurable.wiring import build_engine, connect_options

LOOK_S = 0.02


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do.

    Attributes:
        role: ``worker`` is the engine; ``bare`` the statements alone.
        dsn: Where Postgres is.
        schema: The bench's schema.
        queues: The queues to serve; empty leaves the default.
        concurrency: Steps at once for each queue; None leaves the default.
        lease_ttl_s: Seconds a claim lasts; None leaves the default.
        steps_total: End after so many durable outcomes; None goes on until standard input closes.
        is_stepping: The bare loop moves rows through five steps instead of ending them.
    """

    role: Literal["worker", "bare"]
    dsn: str
    schema: str
    queues: tuple[str, ...] = ()
    concurrency: int | None = None
    lease_ttl_s: float | None = None
    steps_total: int | None = None
    is_stepping: bool = False


def child_settings(spec: ChildSpec) -> Settings:
    """The worker's defaults; nothing differs but the address and what the command line asked for."""
    settings = Settings(dsn=Secret(spec.dsn), schema=spec.schema)
    if spec.concurrency is not None:
        settings = msgspec.structs.replace(settings, queue=QueueSettings(concurrency=spec.concurrency))
    if spec.queues and spec.queues != (DEFAULT_QUEUE,):
        settings = msgspec.structs.replace(settings, serve=spec.queues)
    if spec.lease_ttl_s is not None:
        default = LeaseSettings()
        heartbeat_s = min(default.heartbeat_s, spec.lease_ttl_s / 3)
        settings = msgspec.structs.replace(
            settings, lease=LeaseSettings(ttl_s=spec.lease_ttl_s, heartbeat_s=heartbeat_s)
        )
    return settings


async def run_worker(spec: ChildSpec) -> None:
    """Run the engine until the work is done or nobody listens any more, and report what it took."""
    engine = build_engine(child_settings(spec), bench_registry())
    closed = asyncio.ensure_future(_input_closed())
    async with engine.running():
        listener = engine.parts.listener
        while listener is not None and not listener.is_up:  # noqa: ASYNC110 - it is asked before anything is timed
            await asyncio.sleep(LOOK_S)
        say({"ready": True, "boot": engine.parts.leases.identity.boot, **_counts(engine)})
        while not closed.done() and not _is_done(engine, spec.steps_total):
            await asyncio.wait([closed], timeout=LOOK_S)
        say(_counts(engine))
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


def _is_done(engine: Engine, steps_total: int | None) -> bool:
    return steps_total is not None and engine.metrics.steps_committed.total() >= steps_total


def _counts(engine: Engine) -> dict[str, Any]:
    return {
        "committed": int(engine.metrics.steps_committed.total()),
        "stale": int(engine.metrics.outcomes_stale.total()),
        "claims": engine.metrics.claim_duration.count(),
        "flushes": engine.metrics.flush_duration.count(),
        "statements": engine.parts.database.statements_total,
        "cpu_s": time.process_time(),
        "collections": sum(generation["collections"] for generation in gc.get_stats()),
    }


async def _input_closed() -> None:
    """Return when standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


def main() -> None:
    """Do what the first line of the input says."""
    spec = msgspec.json.decode(io.FileIO(0, closefd=False).readline(), type=ChildSpec)
    configure_logging("warning", "console")
    run = run_worker if spec.role == "worker" else run_bare
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(spec))


if __name__ == "__main__":
    main()
