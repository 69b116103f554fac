"""What a bench runs: a job that does nothing, one that holds its row, a machine of five steps and one of orders."""

import asyncio

from gendurable.machine.context import Context
from gendurable.machine.contract import Machine, step
from gendurable.machine.jobs import job
from gendurable.machine.registry import Registry
from gendurable.machine.state import State
from gendurable.model.outcome import Done, Next, Outcome


@job()
async def bench_noop(ctx: Context[None]) -> None:
    """End at once."""


@job()
async def bench_hold(ctx: Context[None], seconds: float) -> None:
    """Hold the row the first time; a second worker that gets it ends it at once."""
    if ctx.crashes == 0:
        await asyncio.sleep(seconds)


class BenchStepsState(State):
    """How many steps were taken."""

    taken: int = 0


class BenchSteps(Machine[BenchStepsState], name="bench_steps"):
    """Five steps, each of them durable before the next."""

    @step
    async def one(self, ctx: Context[BenchStepsState]) -> Outcome:
        """Count and go on."""
        return Next(self.two, state=ctx.state.replace(taken=1))

    @step
    async def two(self, ctx: Context[BenchStepsState]) -> Outcome:
        """Count and go on."""
        return Next(self.three, state=ctx.state.replace(taken=2))

    @step
    async def three(self, ctx: Context[BenchStepsState]) -> Outcome:
        """Count and go on."""
        return Next(self.four, state=ctx.state.replace(taken=3))

    @step
    async def four(self, ctx: Context[BenchStepsState]) -> Outcome:
        """Count and go on."""
        return Next(self.five, state=ctx.state.replace(taken=4))

    @step
    async def five(self, ctx: Context[BenchStepsState]) -> Outcome:
        """End."""
        return Done({"taken": ctx.state.taken + 1})


class BenchOrderState(State):
    """Three typed fields."""

    order: int
    customer: str
    amount: float


class BenchOrder(Machine[BenchOrderState], name="bench_order"):
    """What bulk inserts write."""

    @step
    async def only(self, ctx: Context[BenchOrderState]) -> Outcome:
        """End at once."""
        return Done({"order": ctx.state.order})


def prepared_order_states(rows: int) -> list[str]:
    """The states that ``BenchOrder.with_state`` would make, as JSON texts."""
    return [BenchOrder.with_state(order=i, customer=f"customer {i}", amount=i / 100).state for i in range(rows)]


STEPS = ("one", "two", "three", "four", "five")
STEP_STATES = tuple(f'{{"taken":{taken}}}' for taken in range(1, len(STEPS)))


def bench_registry() -> Registry:
    """The machines of the bench and no others: what is installed beside them must not change a figure."""
    return Registry([bench_noop, bench_hold, BenchSteps, BenchOrder])
