"""``latency``: from insert to done across two processes, idle and back to back, by the database's clock."""

import asyncio
from typing import Any, Literal

from gendurable.bench.draining import BenchResultError
from gendurable.bench.ground import Ground, fresh_ground
from gendurable.bench.lines import Line, line_of
from gendurable.bench.options import BenchOptions
from gendurable.bench.processes import child
from gendurable.bench.spec import ChildSpec

SAMPLES = 2000
IDLE_PAUSE_S = 0.04
"""Longer than anything in the client or the worker gathers work for, so that every sample finds both idle."""

LAST_SAMPLE_S = 0.5
"""Until the last sample is certainly done."""

Mode = Literal["idle", "back to back"]


async def latency(options: BenchOptions) -> list[Line]:
    """One line for each mode; a worker and a client run in processes of their own."""
    return [await _measured(options, "idle"), await _measured(options, "back to back")]


async def _measured(options: BenchOptions, mode: Mode) -> Line:
    samples = options.jobs or SAMPLES
    pause_s = IDLE_PAUSE_S if mode == "idle" else 0.0
    async with fresh_ground(options.dsn) as ground:
        worker = ChildSpec(
            role="worker", dsn=options.dsn, schema=ground.schema, concurrency=options.concurrency, steps_total=None
        )
        async with child(worker) as working:
            start = await working.report()
            told = await _client(ground, "client", samples, pause_s)
            await asyncio.sleep(LAST_SAMPLE_S)
            end = await working.finish()
        found = await _percentiles(ground, samples)
        statements = told["statements"] + end["statements"] - start["statements"]
        fields: dict[str, Any] = {
            "seconds": told["seconds"],
            "rate": samples / told["seconds"],
            "p50_ms": found["p50_ms"],
            "p99_ms": found["p99_ms"],
            "statements": statements,
            "round_trips": statements,
            "mode": mode,
            "max_ms": found["max_ms"],
            "seen_p50_ms": told["seen_p50_ms"],
            "seen_p99_ms": told["seen_p99_ms"],
        }
    if options.has_baseline:
        async with fresh_ground(options.dsn) as ground:
            bare = await _client(ground, "bare_client", samples, pause_s)
            found = await _percentiles(ground, samples)
        fields |= {
            "baseline_rate": samples / bare["seconds"],
            "ratio": fields["rate"] / (samples / bare["seconds"]),
            "baseline_p50_ms": found["p50_ms"],
            "baseline_p99_ms": found["p99_ms"],
        }
    return line_of("latency", jobs=samples, **fields)


async def _client(
    ground: Ground, role: Literal["client", "bare_client"], samples: int, pause_s: float
) -> dict[str, Any]:
    spec = ChildSpec(role=role, dsn=ground.dsn, schema=ground.schema, rows=samples, pause_s=pause_s)
    async with child(spec) as process:
        await process.report()
        return await process.report()


async def _percentiles(ground: Ground, samples: int) -> dict[str, Any]:
    found = await ground.one("bench_latencies", 0)
    if found["samples"] != samples:
        raise BenchResultError(f"{found['samples']} of {samples} jobs were done")
    return found
