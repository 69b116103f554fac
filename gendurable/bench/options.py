"""What a bench is asked to do; None means a scenario's own default."""

import msgspec

from gendurable.settings.sections import DEFAULT_QUEUE


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one bench.

    Attributes:
        dsn: Where Postgres is.
        jobs: Rows of one run; None for what the scenario is defined with.
        concurrency: Steps at once for each queue; None for the worker's default.
        queues: How many queues the rows are spread over; None for the scenario's own number.
        runs: How often each figure is taken; the median is told, and all of them.
        has_baseline: Measure the bare SQL loop in turn with the engine.
        is_analysed: Take statistics of the loaded table before each run, while nothing runs.
        idle_s: Seconds for which the idle engine is watched.
        lease_ttl_s: Seconds a claim lasts in ``recovery``; None for the worker's default.
    """

    dsn: str
    jobs: int | None = None
    concurrency: int | None = None
    queues: int | None = None
    runs: int = 3
    has_baseline: bool = False
    is_analysed: bool = False
    idle_s: float = 60.0
    lease_ttl_s: float | None = None

    def queue_names(self, default: int = 1) -> tuple[str, ...]:
        """The queues to spread rows over; the first is the one every worker serves."""
        wanted = self.queues or default
        return (DEFAULT_QUEUE, *(f"bench-{number}" for number in range(2, wanted + 1)))
