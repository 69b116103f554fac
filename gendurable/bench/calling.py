"""What runs in a process of its own: clients that insert, in bulk or one row at a time."""

import asyncio
import time
from random import Random

from gendurable.bench.lines import percentile
from gendurable.bench.machines import BenchOrder, bench_noop, prepared_order_states
from gendurable.bench.spec import ChildSpec, child_settings
from gendurable.bench.working import say
from gendurable.client import Client
from gendurable.model.insert import InsertOptions
from gendurable.settings.sections import DEFAULT_QUEUE
from gendurable.store.bare import BareLoop
from gendurable.store.database import Database
from gendurable.store.inserts import InsertStore
from gendurable.wiring import connect_options

ANSWER_S = 30.0


async def run_insert(spec: ChildSpec) -> None:
    """Insert rows in calls of ``insert_many``; building and checking each row's state is part of the time."""
    async with Client(spec.dsn, schema=spec.schema) as client:
        statements, calls_s, started_s = client.database.statements_total, list[float](), time.perf_counter()
        for first in range(0, spec.rows, spec.batch_rows):
            call_s = time.perf_counter()
            await client.insert_many(
                [
                    BenchOrder.with_state(order=number, customer=f"customer {number}", amount=number / 100)
                    for number in range(first, min(first + spec.batch_rows, spec.rows))
                ]
            )
            calls_s.append(time.perf_counter() - call_s)
        _say_inserted(calls_s, time.perf_counter() - started_s, client.database.statements_total - statements)


async def run_insert_raw(spec: ChildSpec) -> None:
    """Send the same statement with states prepared before the clock starts."""
    database = Database(connect_options(child_settings(spec), application_name="gendurable bare loop"))
    await database.open()
    try:
        store, definition = InsertStore(database), BenchOrder.definition
        common = InsertOptions().common(
            fsm=definition.name, version=definition.version, step=definition.initial, queue=definition.queue
        )
        states = prepared_order_states(spec.rows)
        calls_s, started_s = list[float](), time.perf_counter()
        for first in range(0, spec.rows, spec.batch_rows):
            call_s = time.perf_counter()
            await store.insert_alike(common, states[first : first + spec.batch_rows])
            calls_s.append(time.perf_counter() - call_s)
        _say_inserted(calls_s, time.perf_counter() - started_s, database.statements_total)
    finally:
        await database.close()


async def run_client(spec: ChildSpec) -> None:
    """Insert one job at a time for a worker elsewhere; report what the caller saw."""
    rng, seen_s = Random(1), list[float]()
    async with Client(spec.dsn, schema=spec.schema) as client:
        say({"ready": True})
        started_s = time.perf_counter()
        for _ in range(spec.rows):
            sample_s = time.perf_counter()
            answer = await client.insert(bench_noop.with_args())
            if spec.pause_s > 0:
                # Nobody asks for the answer meanwhile: the worker must be found idle, and the server too.
                await asyncio.sleep(spec.pause_s * rng.uniform(0.8, 1.2))
            else:
                await client.wait(answer.id, timeout=ANSWER_S)
                seen_s.append(time.perf_counter() - sample_s)
        seconds = time.perf_counter() - started_s
        say(
            {
                "seconds": seconds,
                "statements": client.database.statements_total,
                "seen_p50_ms": _ms(seen_s, 0.5),
                "seen_p99_ms": _ms(seen_s, 0.99),
            }
        )


async def run_bare_client(spec: ChildSpec) -> None:
    """Insert, claim and end one job at a time on one connection: what the statements alone take on this disk."""
    rng = Random(1)
    database = Database(connect_options(child_settings(spec), application_name="gendurable bare loop"))
    await database.open()
    try:
        say({"ready": True})
        store, definition, bare = InsertStore(database), bench_noop.definition, BareLoop(database)
        common = InsertOptions().common(
            fsm=definition.name, version=definition.version, step=definition.initial, queue=definition.queue
        )
        started_s = time.perf_counter()
        for _ in range(spec.rows):
            await store.insert_alike(common, ["{}"])
            await bare.end_batch(DEFAULT_QUEUE)
            if spec.pause_s > 0:
                await asyncio.sleep(spec.pause_s * rng.uniform(0.8, 1.2))
        say({"seconds": time.perf_counter() - started_s, "statements": database.statements_total})
    finally:
        await database.close()


def _say_inserted(calls_s: list[float], seconds: float, statements: int) -> None:
    say(
        {
            "seconds": seconds,
            "statements": statements,
            "p50_ms": _ms(calls_s, 0.5),
            "p99_ms": _ms(calls_s, 0.99),
            "worker_cpu_s": time.process_time(),
        }
    )


def _ms(values_s: list[float], share: float) -> float | None:
    value_s = percentile(values_s, share)
    return None if value_s is None else value_s * 1000
