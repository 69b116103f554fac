"""Run two workers under random kills for some minutes; at the end nothing may be lost and nothing committed twice.

``python -m tests.soak --minutes 10 --seed 1``. Exits with 1 and says what is wrong when the ledger disagrees.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import asyncpg

import gendurable as gd
from gendurable.embedded import EmbeddedPostgres
from gendurable.store.migrations import migrate_up
from tests.soak.machines import STEPS, Walk

ROOT = Path(__file__).parents[2]
LEASE = ("--lease-ttl", "3s", "--heartbeat", "500ms")
BATCH = 400
SETTLE_S = 90.0


@dataclass
class Tally:
    """What happened during the run."""

    inserted: int = 0
    killed: int = 0
    stopped: int = 0
    faults: list[str] = field(default_factory=list)


async def start_worker(name: str, dsn: str, log: Path) -> asyncio.subprocess.Process:
    """A real worker process."""
    with log.open("ab") as sink:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "gendurable",
                "worker",
                "--no-discover",
                "--import",
                "tests.soak.machines",
                "--node",
                name,
                "--no-http",
                *LEASE,
            ),
            cwd=ROOT,
            env={**os.environ, "GENDURABLE_DSN": dsn, "SOAK_DSN": dsn},
            stdout=sink,
            stderr=sink,
        )


async def torment(
    workers: dict[str, asyncio.subprocess.Process], dsn: str, log: Path, rng: Random, tally: Tally
) -> None:
    """Kill or stop one worker after another, and start it again."""
    while True:
        await asyncio.sleep(rng.uniform(1.0, 4.0))
        name = rng.choice(sorted(workers))
        if workers[name].returncode is not None:
            tally.faults.append(f"worker {name} ended by itself with {workers[name].returncode}; see {log}")
            return
        if rng.random() < 0.7:
            workers[name].kill()
            tally.killed += 1
        else:
            workers[name].send_signal(signal.SIGTERM)
            tally.stopped += 1
        code = await workers[name].wait()
        if code not in {0, -signal.SIGKILL, 6}:
            tally.faults.append(f"worker {name} ended with {code}; see {log}")
        workers[name] = await start_worker(name, dsn, log)


async def feed(client: gd.Client, until_s: float, tally: Tally) -> None:
    """Keep a few batches of work in the queue."""
    while time.monotonic() < until_s:
        walks = [Walk.with_state(walk=tally.inserted + i) for i in range(BATCH)]
        await client.insert_many(walks)
        tally.inserted += BATCH
        backlog = await client.list(machine="Walk", status=["runnable", "executing"], limit=1000)
        if len(backlog) > 2 * BATCH:
            await client.wait(backlog[len(backlog) // 2].id)


async def settle(connection: asyncpg.Connection, tally: Tally) -> None:
    """Wait until everything has ended, or give up and say so."""
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        if not await connection.fetchval("select count(*) from gendurable.gen_durable where finished_at is null"):
            return
        await asyncio.sleep(0.5)
    tally.faults.append("some walks had not ended when the time to settle was over")


async def check(connection: asyncpg.Connection, tally: Tally) -> int:
    """Compare rows and ledger with what was inserted; return how many runs were repeats."""
    ends = dict(await connection.fetch("select status::text, count(*) from gendurable.gen_durable group by 1"))
    if ends != {"done": tally.inserted}:
        tally.faults.append(f"{tally.inserted} walks were inserted, they ended as {ends}")
    results = await connection.fetchval("select count(distinct result ->> 'walk') from gendurable.gen_durable")
    if results != tally.inserted:
        tally.faults.append(f"{results} different results for {tally.inserted} walks")
    places = await connection.fetchval("select count(*) from (select distinct walk, place from soak_ledger) as seen")
    if places != tally.inserted * STEPS:
        tally.faults.append(f"{places} places in the ledger, {tally.inserted * STEPS} were walked")
    runs = await connection.fetchval("select count(*) from soak_ledger")
    errors = await connection.fetchval(
        "select count(*) from gendurable.gen_durable as g, jsonb_array_elements(g.errors) as e"
        " where e ->> 'kind' <> 'crash'"
    )
    return int(runs) - int(places) - int(errors)


async def soak(dsn: str, *, minutes: float, seed: int, log: Path) -> Tally:
    """The whole run."""
    tally, rng = Tally(), Random(seed)
    await migrate_up(dsn)
    connection = await asyncpg.connect(dsn)
    await connection.execute("create table soak_ledger (walk bigint, place int, worker int)")
    workers = {name: await start_worker(name, dsn, log) for name in ("ada", "bob")}
    try:
        async with gd.Client(dsn) as client:
            tormentor = asyncio.create_task(torment(workers, dsn, log, rng, tally))
            await feed(client, time.monotonic() + minutes * 60, tally)
            tormentor.cancel()
            await asyncio.wait([tormentor])
            for name, worker in workers.items():
                if worker.returncode is not None:
                    workers[name] = await start_worker(name, dsn, log)
            await settle(connection, tally)
        repeats = await check(connection, tally)
    finally:
        for worker in workers.values():
            if worker.returncode is None:
                worker.terminate()
        await asyncio.gather(*(worker.wait() for worker in workers.values()))
        await connection.close()
    print(
        f"{tally.inserted} walks of {STEPS} steps, {tally.killed} kills, {tally.stopped} stops,"
        f" {repeats} runs repeated after a kill; workers' log: {log}"
    )
    return tally


def main() -> int:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    log = Path(tempfile.mkdtemp(prefix="gendurable-soak-")) / "workers.log"
    with EmbeddedPostgres() as server:
        tally = asyncio.run(soak(server.dsn(), minutes=chosen.minutes, seed=chosen.seed, log=log))
    for fault in tally.faults:
        print(f"WRONG: {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
