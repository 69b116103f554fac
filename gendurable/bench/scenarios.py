"""The scenarios by name, in the order in which they are run."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from gendurable.bench import claiming, draining, inserting, latency, watching
from gendurable.bench.lines import Line
from gendurable.bench.options import BenchOptions

SCENARIOS: Final[Mapping[str, Callable[[BenchOptions], Awaitable[Line | list[Line]]]]] = {
    "insert": inserting.insert,
    "drain": draining.drain,
    "steps": draining.steps,
    "latency": latency.latency,
    "claim-scale": claiming.claim_scale,
    "idle": watching.idle,
    "held-snapshot": claiming.held_snapshot,
    "memory": watching.memory,
    "recovery": watching.recovery,
}


async def run_scenarios(names: Sequence[str], options: BenchOptions) -> AsyncIterator[Line]:
    """Run scenarios one after another and give each line when it is there.

    Raises:
        GenDurableError: A scenario could not be measured; those before it have given their lines.
    """
    for name in names:
        lines = await SCENARIOS[name](options)
        for line in [lines] if isinstance(lines, dict) else lines:
            yield line
