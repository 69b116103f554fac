"""What the soak run executes: every run of a step leaves a line in a ledger of its own."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import asyncpg

import gendurable as gd

STEPS = 4


class WalkState(gd.State):
    """How far a walk has come."""

    walk: int
    place: int = 0


class Walk(gd.Machine[WalkState], queue="soak"):
    """Walks four places; a step sometimes fails, snoozes or takes its time."""

    @gd.step
    async def go(self, ctx: gd.Context[WalkState]) -> gd.Outcome:
        """Write the ledger first, so that a run whose outcome is lost is seen as a repeat and not as nothing."""
        state = ctx.state
        await ctx.resources["ledger"].execute(
            "insert into soak_ledger (walk, place, worker) values ($1, $2, $3)", state.walk, state.place, os.getpid()
        )
        chance = Random(f"{state.walk}/{state.place}/{ctx.attempt}").random()
        if chance < 0.05:
            raise ConnectionError("the weather is bad")
        await asyncio.sleep(chance / 50)
        if state.place + 1 == STEPS:
            return gd.Done({"walk": state.walk})
        return gd.Next(self.go, state=state.replace(place=state.place + 1))

    def handle(self, _error: Exception, _ctx: gd.Context[WalkState]) -> gd.Outcome:
        """Try again at once; the run is about kills, not about waiting."""
        return gd.Retry(delay=0.01)


@gd.lifespan
async def ledger() -> AsyncIterator[Mapping[str, Any]]:
    """A pool for the ledger, apart from the engine's."""
    pool = await asyncpg.create_pool(os.environ["SOAK_DSN"], min_size=1, max_size=5)
    try:
        yield {"ledger": pool}
    finally:
        await pool.close()
