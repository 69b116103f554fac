"""The metrics of one engine: cheap to count on the hot path, rendered for Prometheus when somebody asks.

The official client locks and looks its labels up at every increment, which at tens of thousands of steps per second is
a large part of a step. Here a count is one dictionary update on the event loop; the official client's exposition format
is built from these values at scrape time.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

Labels = tuple[str, ...]

SECONDS_BUCKETS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    3600.0,
)
ROWS_BUCKETS = (0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)


class Counter:
    """A number that only rises, by label values."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        """``name`` has no ``_total``; the exposition adds it."""
        self.name = name
        self._help = help_text
        self._label_names = list(labels)
        self.values: dict[Labels, float] = {} if labels else {(): 0.0}

    def inc(self, labels: Labels = (), amount: float = 1.0) -> None:
        """Count."""
        values = self.values
        values[labels] = values.get(labels, 0.0) + amount

    def total(self) -> float:
        """The sum over all label values."""
        return sum(self.values.values())

    def collect(self) -> Metric:
        """The exposition."""
        family = CounterMetricFamily(self.name, self._help, labels=self._label_names)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """A distribution, by label values."""

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS_BUCKETS
    ) -> None:
        """``name`` ends in its unit."""
        self.name = name
        self._help = help_text
        self._label_names = list(labels)
        self._bounds = tuple(buckets)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Add one value."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def count(self) -> int:
        """How many values were added, over all label values."""
        return sum(sum(counts) for counts in self._counts.values())

    def collect(self) -> Metric:
        """The exposition."""
        family = HistogramMetricFamily(self.name, self._help, labels=self._label_names)
        for labels, counts in self._counts.items():
            running = 0
            buckets = []
            for bound, count in zip(self._bounds, counts, strict=False):
                running += count
                buckets.append((str(bound), running))
            buckets.append(("+Inf", running + counts[-1]))
            family.add_metric(labels, buckets, self._sums[labels])
        return family


class Gauge:
    """A number read when somebody asks."""

    def __init__(
        self, name: str, help_text: str, read: Callable[[], Mapping[Labels, float]], labels: Sequence[str] = ()
    ) -> None:
        """``read`` gives the present values by label values."""
        self.name = name
        self._help = help_text
        self._label_names = list(labels)
        self._read = read

    def collect(self) -> Metric:
        """The exposition."""
        family = GaugeMetricFamily(self.name, self._help, labels=self._label_names)
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        return family


class Metrics:
    """Everything one engine counts; also a collector for the official client's registry."""

    def __init__(self) -> None:
        """Start at zero; each engine has its own."""
        self.steps_executed = Counter(
            "gendurable_steps_executed",
            "Steps that ran to an outcome, committed or not.",
            ("machine", "step", "outcome"),
        )
        self.steps_committed = Counter(
            "gendurable_steps_committed", "Outcomes that are durable.", ("machine", "step", "outcome")
        )
        self.step_duration = Histogram(
            "gendurable_step_duration_seconds", "Time in a step's code.", ("machine", "step")
        )
        self.start_delay = Histogram(
            "gendurable_start_delay_seconds", "Time from when a row was due to when its step started.", ("queue",)
        )
        self.claim_duration = Histogram("gendurable_claim_duration_seconds", "Time of one claim statement.", ("queue",))
        self.claim_rows = Histogram("gendurable_claim_rows", "Rows one claim brought.", ("queue",), ROWS_BUCKETS)
        self.flush_duration = Histogram("gendurable_flush_duration_seconds", "Time of one flush transaction.")
        self.flush_rows = Histogram("gendurable_flush_rows", "Outcomes in one flush.", (), ROWS_BUCKETS)
        self.flush_bisections = Counter(
            "gendurable_flush_bisections", "Batches split because a value in them was refused."
        )
        self.flush_errors = Counter("gendurable_flush_errors", "Flushes that failed and were tried again.")
        self.outcomes_busy = Counter(
            "gendurable_outcomes_busy", "Outcomes that waited for a row which a caller's transaction held."
        )
        self.outcomes_stale = Counter(
            "gendurable_outcomes_stale",
            "Outcomes refused because the row had gone to another worker.",
            ("machine", "step"),
        )
        self.reaped = Counter("gendurable_reaped", "Rows taken from workers that are gone.", ("queue",))
        self.contended = Counter("gendurable_contended", "Races lost to another transaction.", ("constraint",))
        self.unresolved = Counter(
            "gendurable_unresolved",
            "Rows handed back because this process does not know their machine or step.",
            ("queue",),
        )
        self.collected = Counter("gendurable_collected", "Rows deleted after their retention.")
        self.notifications = Counter("gendurable_notifications", "Notifications sent and received.", ("direction",))
        self.loop_errors = Counter("gendurable_loop_errors", "Passes of a loop lost to the database.", ("loop",))
        self._gauges: list[Gauge] = []
        self._instruments: list[Counter | Histogram] = [
            value for value in vars(self).values() if isinstance(value, (Counter, Histogram))
        ]

    def gauge(
        self, name: str, help_text: str, read: Callable[[], Mapping[Labels, float]], labels: Sequence[str] = ()
    ) -> None:
        """Add a gauge that is read at every scrape."""
        self._gauges.append(Gauge(name, help_text, read, labels))

    def collect(self) -> Iterator[Metric]:
        """All metrics, for a registry of the official client."""
        parts: Iterable[Counter | Histogram | Gauge] = [*self._instruments, *self._gauges]
        for part in parts:
            yield part.collect()


class Observed:
    """Numbers that need a statement or a timer; they are refreshed at their own pace, so that a scrape never waits."""

    def __init__(self) -> None:
        """Nothing was observed yet."""
        self.oldest_due_s: dict[str, float] = {}
        self.loop_lag_s = 0.0
