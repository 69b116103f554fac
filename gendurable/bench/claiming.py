"""``claim-scale`` and ``held-snapshot``: what a claim costs on large tables and over dead entries nobody may remove."""

import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from statistics import median
from typing import Any

from gendurable.bench.ground import Ground, fresh_ground
from gendurable.bench.lines import Line, line_of, percentile
from gendurable.bench.options import BenchOptions
from gendurable.bench.processes import child
from gendurable.bench.spec import ChildSpec
from gendurable.settings.sections import DEFAULT_QUEUE
from gendurable.store.bare import BARE_BATCH_ROWS, BareLoop

SCALE_ROWS = 1_000_000
SCALE_EXECUTING = (500, 5_000)
PROBES_WARM = 6
"""A prepared statement may turn generic after five runs; measured is what a worker has for the rest of its life."""
PROBES = 25
SNAPSHOT_JOBS = 300_000
SNAPSHOT_REPORTS = 20


async def claim_scale(options: BenchOptions) -> list[Line]:
    """One claim and one flush of 500 rows at each size of the table, before and after statistics taken while idle."""
    rows = options.jobs or SCALE_ROWS
    sizes = sorted({max(1, rows // share) for share in (1000, 100, 10, 1)})
    lines = []
    for is_analysed in (False, True):
        async with fresh_ground(options.dsn) as ground:
            await ground.database.fetch("bench_no_autovacuum")
            await ground.database.fetch("bench_fill_ended", rows)
            runnable = 0
            for size in sizes:
                await ground.fill("bench_noop", "run", size - runnable)
                runnable = size
                if is_analysed:
                    await ground.analyse()
                lines.append(await _probed(ground, ended=rows, runnable=size, executing=0))
            executing = 0
            for number in SCALE_EXECUTING:
                await ground.database.fetch("bench_fill_executing", number - executing)
                executing = number
                lines.append(await _probed(ground, ended=rows, runnable=runnable, executing=number))
    return [line | {"times_first": _times_first(line, lines)} for line in lines]


def _times_first(line: Line, lines: list[Line]) -> float | None:
    """How much more a claim costs than on the smallest table of its kind that fills one; None where it is not full."""
    full = [one for one in lines if one["table"] == line["table"] and one["rows"] == BARE_BATCH_ROWS]
    return round(line["p50_ms"] / full[0]["p50_ms"], 2) if line["rows"] == BARE_BATCH_ROWS else None


async def _probed(ground: Ground, *, ended: int, runnable: int, executing: int) -> Line:
    bare, claims_s, flushes_s = BareLoop(ground.database), list[float](), list[float]()
    for number in range(PROBES_WARM + PROBES):
        claim_s, flush_s = await bare.probe(DEFAULT_QUEUE)
        if number >= PROBES_WARM:
            claims_s.append(claim_s)
            flushes_s.append(flush_s)
    rows = min(BARE_BATCH_ROWS, runnable)
    analyses = (await ground.one("bench_analyses"))["analyses"]
    return line_of(
        "claim-scale",
        jobs=runnable,
        seconds=sum(claims_s),
        rate=rows / median(claims_s),
        p50_ms=median(claims_s) * 1000,
        p99_ms=_ms(claims_s, 0.99),
        statements=PROBES,
        round_trips=PROBES,
        executing=executing,
        ended=ended,
        table="analysed while idle" if analyses else "never analysed",
        rows=rows,
        flush_p50_ms=median(flushes_s) * 1000,
        flush_p99_ms=_ms(flushes_s, 0.99),
    )


async def held_snapshot(options: BenchOptions) -> Line:
    """A worker's mean claim at the start and the end of a drain under a held snapshot, and after it was let go."""
    jobs = options.jobs or SNAPSHOT_JOBS
    async with fresh_ground(options.dsn) as ground:
        await ground.fill("bench_noop", "run", jobs + jobs // 5)
        async with _snapshot(ground):
            scan_start_ms = await _scan_ms(ground)
            under = await _claims(options, ground, steps_total=jobs, report_every=max(1, jobs // SNAPSHOT_REPORTS))
            progress = await ground.one("bench_progress")
            scan_end_ms = await _scan_ms(ground)
        scan_after_ms = await _scan_ms(ground)
        left = jobs + jobs // 5 - progress["done"]
        after = await _claims(options, ground, steps_total=left, report_every=max(1, left // 4))
    start_ms, end_ms, after_ms = under[min(1, len(under) - 1)], under[-1], after[-1]
    return line_of(
        "held-snapshot",
        jobs=jobs,
        seconds=progress["seconds"],
        rate=progress["done"] / progress["seconds"],
        p50_ms=median(under),
        p99_ms=max(under),
        claim_start_ms=start_ms,
        claim_end_ms=end_ms,
        claim_after_ms=after_ms,
        times_start=end_ms / start_ms,
        full_scan_start_ms=scan_start_ms,
        full_scan_end_ms=scan_end_ms,
        full_scan_after_ms=scan_after_ms,
    )


@contextlib.asynccontextmanager
async def _snapshot(ground: Ground) -> AsyncIterator[None]:
    """Hold a snapshot of everything, as a report or a dump does, for the length of the block."""
    connection = await ground.database.connect_apart()
    try:
        async with connection.transaction(isolation="repeatable_read"):
            await ground.database.fetch("bench_now", connection=connection)
            yield
    finally:
        await connection.close()


async def _scan_ms(ground: Ground) -> float:
    """What a claim from the very start of the queue costs now, which the worker's own claims mostly avoid."""
    bare = BareLoop(ground.database)
    return median([(await bare.probe(DEFAULT_QUEUE))[0] for _ in range(5)]) * 1000


async def _claims(options: BenchOptions, ground: Ground, *, steps_total: int, report_every: int) -> list[float]:
    """Drain so many rows with a worker; return the mean time of its claims between reports, milliseconds."""
    spec = ChildSpec(
        role="worker",
        dsn=options.dsn,
        schema=ground.schema,
        concurrency=options.concurrency,
        steps_total=steps_total,
        report_every=report_every,
    )
    async with child(spec) as worker:
        reports: list[dict[str, Any]] = [await worker.report()]
        while "ended" not in reports[-1]:
            reports.append(await worker.report())
    means = [
        (later["claims_s"] - earlier["claims_s"]) / (later["claims"] - earlier["claims"]) * 1000
        for earlier, later in pairwise(reports)
        if later["claims"] > earlier["claims"]
    ]
    return means or [reports[-1]["claims_s"] / max(1, reports[-1]["claims"]) * 1000]


def _ms(values_s: list[float], share: float) -> float | None:
    value_s = percentile(values_s, share)
    return None if value_s is None else value_s * 1000
