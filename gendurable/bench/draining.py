"""``drain`` and ``steps``: how fast one worker process empties a loaded table, beside the bare loop."""

import time
from typing import Any, Literal

from gendurable.bench.ground import Ground, fresh_ground
from gendurable.bench.lines import Line, compared, line_of, middle_of
from gendurable.bench.machines import STEPS
from gendurable.bench.options import BenchOptions
from gendurable.bench.processes import child
from gendurable.bench.spec import ChildSpec
from gendurable.errors import GenDurableError

DRAIN_JOBS = 200_000
STEPS_JOBS = 40_000

Drainer = Literal["worker", "bare"]


class BenchResultError(GenDurableError):
    """The measured code did not do the work, so that its time says nothing."""


async def drain(options: BenchOptions) -> Line:
    """No-op jobs per second of one worker process."""
    return await _measured(options, "drain", jobs=options.jobs or DRAIN_JOBS, steps=1)


async def steps(options: BenchOptions) -> Line:
    """Steps per second of a machine with five, each requeued and claimed again."""
    return await _measured(options, "steps", jobs=options.jobs or STEPS_JOBS, steps=len(STEPS))


async def _measured(options: BenchOptions, scenario: str, *, jobs: int, steps: int) -> Line:
    runs: list[dict[str, Any]] = []
    baselines: list[dict[str, Any]] = []
    for _ in range(options.runs):
        runs.append(await _run_once(options, "worker", jobs=jobs, steps=steps))
        if options.has_baseline:
            baselines.append(await _run_once(options, "bare", jobs=jobs, steps=steps))
    fields = middle_of(runs) | compared(runs, baselines)
    if baselines:
        bare = middle_of(baselines)
        fields |= {f"baseline_{name}": bare[name] for name in ("worker_cpu_s", "server_cpu_s", "statements")}
    table = "analysed" if options.is_analysed else "never analysed"
    return line_of(scenario, jobs=jobs, steps=jobs * steps, table=table, runs=options.runs, **fields)


async def _run_once(options: BenchOptions, role: Drainer, *, jobs: int, steps: int) -> dict[str, Any]:
    """Load a fresh table, empty it with one process, and say how long that took by the database's clock."""
    queues = options.queue_names()
    async with fresh_ground(options.dsn) as ground:
        machine, first = ("bench_noop", "run") if steps == 1 else ("bench_steps", STEPS[0])
        await ground.fill(machine, first, jobs, queues=queues)
        if options.is_analysed:
            await ground.analyse()
        server = await ground.server()
        before_s = server.cpu_seconds()
        started_s = time.perf_counter()
        spec = ChildSpec(
            role=role,
            dsn=options.dsn,
            schema=ground.schema,
            queues=queues,
            concurrency=options.concurrency,
            steps_total=jobs * steps,
            is_stepping=steps > 1,
        )
        async with child(spec) as process:
            await process.report()
            end = await process.report()
        after_s = server.cpu_seconds()
        seconds = await _seconds(ground, jobs)
        # From the start of the process: a worker claims before it can say that it is ready.
        statements = end["statements"]
        return {
            "seconds": seconds,
            "rate": jobs * steps / seconds,
            "statements": statements,
            # Neither side opens a transaction here: every statement is one, and one round trip.
            "round_trips": statements,
            "worker_cpu_s": end["cpu_s"],
            "server_cpu_s": None if before_s is None or after_s is None else after_s - before_s,
            "wall_s": time.perf_counter() - started_s,
            "claims": end.get("claims"),
            "flushes": end.get("flushes"),
            "busy_outcomes": end.get("busy"),
            "stale_outcomes": end.get("stale"),
            "other_statements": statements - end["claims"] - end["flushes"] if role == "worker" else None,
            "analyses": (await ground.one("bench_analyses"))["analyses"],
        }


async def _seconds(ground: Ground, jobs: int) -> float:
    """From the first start to the last end, once it is certain that everything was done."""
    progress = await ground.one("bench_progress")
    if progress["done"] != jobs:
        raise BenchResultError(f"{progress['done']} of {jobs} rows were done, {progress['failed']} failed")
    return float(progress["seconds"]) or 1e-9
