"""``insert``: rows per second of bulk inserts through the client, beside the statement with prepared states."""

from typing import Any, Literal

from gendurable.bench.draining import BenchResultError
from gendurable.bench.ground import fresh_ground
from gendurable.bench.lines import Line, compared, line_of, middle_of
from gendurable.bench.options import BenchOptions
from gendurable.bench.processes import child
from gendurable.bench.spec import ChildSpec

INSERT_JOBS = 300_000
BATCH_ROWS = 10_000


async def insert(options: BenchOptions) -> Line:
    """Rows of three typed fields a second; the raw rate of the server is always measured beside it."""
    jobs = options.jobs or INSERT_JOBS
    runs, baselines = [], []
    for _ in range(options.runs):
        runs.append(await _run_once(options, "insert", jobs))
        baselines.append(await _run_once(options, "insert_raw", jobs))
    return line_of(
        "insert",
        jobs=jobs,
        batch_rows=min(BATCH_ROWS, jobs),
        runs=options.runs,
        **middle_of(runs),
        **compared(runs, baselines),
    )


async def _run_once(options: BenchOptions, role: Literal["insert", "insert_raw"], jobs: int) -> dict[str, Any]:
    async with fresh_ground(options.dsn) as ground:
        server = await ground.server()
        before_s = server.cpu_seconds()
        spec = ChildSpec(role=role, dsn=options.dsn, schema=ground.schema, rows=jobs, batch_rows=BATCH_ROWS)
        async with child(spec) as process:
            report = await process.report()
        after_s = server.cpu_seconds()
        written = (await ground.one("bench_last_id"))["id"]
    if written < jobs:
        raise BenchResultError(f"{written} of {jobs} rows were inserted")
    report["server_cpu_s"] = None if before_s is None or after_s is None else after_s - before_s
    return report | {"rate": jobs / report["seconds"], "round_trips": report["statements"]}
