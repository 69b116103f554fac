"""``idle``, ``memory`` and ``recovery``: what a worker costs when nothing runs, when much ran, and when it dies."""

import asyncio
import time
from statistics import fmean
from typing import Any

from gendurable.bench.draining import BenchResultError
from gendurable.bench.ground import Ground, fresh_ground
from gendurable.bench.lines import Line, line_of
from gendurable.bench.options import BenchOptions
from gendurable.bench.processes import child
from gendurable.bench.spec import ChildSpec
from gendurable.settings import LeaseSettings

IDLE_QUEUES = 4
MEMORY_JOBS = 1_000_000
MEMORY_WARM_JOBS = 200_000
MEMORY_REPORTS = 200
RECOVERY_JOBS = 100
RECOVERY_MARGIN_S = 1.0
HOLD_S = 3600.0
_LOOK_S = 0.05
_SETTLE_S = 60.0


async def idle(options: BenchOptions) -> Line:
    """Statements per second and queue of one worker with all roles and nothing to do."""
    queues = options.queue_names(IDLE_QUEUES)
    async with fresh_ground(options.dsn) as ground:
        spec = ChildSpec(role="worker", dsn=options.dsn, schema=ground.schema, queues=queues)
        async with child(spec) as worker:
            start = await worker.report()
            before = await ground.one("bench_transactions")
            started_s = time.perf_counter()
            await asyncio.sleep(options.idle_s)
            seconds = time.perf_counter() - started_s
            after = await ground.one("bench_transactions")
            end = await worker.finish()
    statements = end["statements"] - start["statements"]
    return line_of(
        "idle",
        jobs=0,
        seconds=seconds,
        rate=statements / seconds / len(queues),
        statements=statements,
        round_trips=statements,
        queues=len(queues),
        server_transactions=after["transactions"] - before["transactions"],
        worker_cpu_s=end["cpu_s"] - start["cpu_s"],
    )


async def memory(options: BenchOptions) -> Line:
    """How the resident size of one worker grows over a long drain."""
    jobs = options.jobs or MEMORY_JOBS
    warm = min(MEMORY_WARM_JOBS, jobs // 5)
    async with fresh_ground(options.dsn) as ground:
        await ground.fill("bench_noop", "run", jobs)
        spec = ChildSpec(
            role="worker",
            dsn=options.dsn,
            schema=ground.schema,
            concurrency=options.concurrency,
            steps_total=jobs,
            report_every=max(1, (jobs - warm) // MEMORY_REPORTS),
        )
        reports: list[dict[str, Any]] = []
        async with child(spec) as worker:
            start = await worker.report()
            while not reports or "ended" not in reports[-1]:
                reports.append(await worker.report())
        progress = await ground.one("bench_progress")
    first, last = _thirds([r for r in reports if r["committed"] > warm and r["rss_kib"] is not None], warm, jobs)
    return line_of(
        "memory",
        jobs=jobs,
        seconds=progress["seconds"],
        rate=jobs / progress["seconds"],
        statements=reports[-1]["statements"] - start["statements"],
        round_trips=reports[-1]["statements"] - start["statements"],
        after_jobs=warm,
        first_third_kib=first,
        last_third_kib=last,
        growth=None if first is None or last is None else last / first,
        max_kib=max((r["rss_kib"] for r in reports if r["rss_kib"] is not None), default=None),
    )


def _thirds(reports: list[dict[str, Any]], warm: int, jobs: int) -> tuple[float | None, float | None]:
    """The mean resident size in the first and the last third of the jobs after the warm-up, KiB."""
    third = (jobs - warm) / 3
    first = [float(report["rss_kib"]) for report in reports if report["committed"] <= warm + third]
    last = [float(report["rss_kib"]) for report in reports if report["committed"] > jobs - third]
    return (fmean(first) if first else None), (fmean(last) if last else None)


async def recovery(options: BenchOptions) -> Line:
    """Seconds from the kill of a worker until its last row has run again on another one."""
    jobs = options.jobs or RECOVERY_JOBS
    ttl_s = options.lease_ttl_s or LeaseSettings().ttl_s
    async with fresh_ground(options.dsn) as ground:
        spec = ChildSpec(
            role="worker",
            dsn=options.dsn,
            schema=ground.schema,
            concurrency=options.concurrency,
            lease_ttl_s=options.lease_ttl_s,
            log_level="error",
        )
        await ground.fill("bench_hold", "run", jobs, state=f'{{"seconds":{HOLD_S}}}')
        async with child(spec) as victim:
            held = await _held_rows(ground, (await victim.report())["boot"], min(jobs, options.concurrency or jobs))
            async with child(spec) as heir:
                await heir.report()
                killed_at = (await ground.one("bench_now"))["at"]
                victim.kill()
                found = await _ended_orphans(ground, killed_at, held, within_s=3 * ttl_s + _SETTLE_S)
                heir.kill()
    return line_of(
        "recovery",
        jobs=held,
        seconds=found["last_s"],
        first_s=found["first_s"],
        lease_s=ttl_s,
        bar_s=ttl_s + RECOVERY_MARGIN_S,
        is_within=found["last_s"] <= ttl_s + RECOVERY_MARGIN_S,
    )


async def _held_rows(ground: Ground, boot: str, wanted: int) -> int:
    """Wait until a worker executes so many rows; return how many it has."""
    ends_at_s = time.monotonic() + _SETTLE_S
    while True:
        held = {row["boot"]: int(row["rows"]) for row in await ground.database.fetch("bench_held_by")}.get(boot, 0)
        if held >= wanted:
            return held
        if time.monotonic() > ends_at_s:
            raise BenchResultError(f"the worker took {held} of {wanted} rows in {_SETTLE_S:g} s")
        await asyncio.sleep(_LOOK_S)


async def _ended_orphans(ground: Ground, killed_at: Any, wanted: int, *, within_s: float) -> dict[str, Any]:
    ends_at_s = time.monotonic() + within_s
    while True:
        found = await ground.one("bench_orphans_started_again", killed_at)
        if found["ended"] >= wanted:
            return found
        if time.monotonic() > ends_at_s:
            raise BenchResultError(f"{found['ended']} of {wanted} rows had run again after {within_s:g} s")
        await asyncio.sleep(_LOOK_S)
