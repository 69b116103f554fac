"""A worker process for tests that kill it: ``python -m tests.runtime.worker_script DSN TTL_S SLOTS``."""

import asyncio
import os
import signal
import sys

import gendurable as gd
from gendurable.settings import StepSettings
from gendurable.wiring import build_engine
from tests.runtime.running import settings_for


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@gd.job()
async def hold(ctx: gd.Context, seconds: float) -> dict[str, int]:
    """Say that it started; only the first run waits, so that a second one shows that it ran again."""
    say(f"started {ctx.id}")
    if ctx.crashes == 0:
        await asyncio.sleep(seconds)
    return {"attempt": ctx.attempt, "crashes": ctx.crashes}


@gd.job()
async def quick(_ctx: gd.Context) -> None:
    """Do nothing."""


@gd.job()
async def poison(_ctx: gd.Context) -> None:
    """Kill the process that runs it."""
    os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    """Work until killed."""
    dsn, ttl_s, slots = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    settings = settings_for(
        dsn,
        concurrency=slots,
        ttl_s=ttl_s,
        heartbeat_s=ttl_s / 10,
        node="same",
        steps=StepSettings(max_crashes=3),
    )
    engine = build_engine(settings, gd.Registry([hold, quick, poison]))
    async with engine.running():
        say("ready")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
