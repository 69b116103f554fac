"""What a bench says: one flat record for each figure, the same keys always, and the statistics it is made of."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

REQUIRED = ("scenario", "jobs", "seconds", "rate", "p50_ms", "p99_ms", "statements", "round_trips")

Line = dict[str, Any]


def line_of(scenario: str, **fields: Any) -> Line:
    """A record with every required key, null where a scenario has nothing to say, then its own fields."""
    fields["scenario"] = scenario
    own = {name: value for name, value in fields.items() if name not in REQUIRED}
    return {name: _rounded(value) for name, value in ({key: fields.get(key) for key in REQUIRED} | own).items()}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which this share of the values lies (nearest rank); None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def middle_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of the run with the median rate; of an even number, the slower of the two in the middle."""
    ordered = sorted(runs, key=lambda run: float(run["rate"]))
    return dict(ordered[(len(ordered) - 1) // 2])


def compared(runs: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How runs and baselines, measured in turn, relate: medians, and every single value to show the spread.

    The ratio is the median of the ratios of neighbours, because a shared machine changes its mind between pairs.
    """
    rates = [float(run["rate"]) for run in runs]
    fields: dict[str, Any] = {"rates": rates}
    if baselines:
        bare = [float(run["rate"]) for run in baselines]
        ratios = [rate / other for rate, other in zip(rates, bare, strict=True)]
        fields |= {"baseline_rate": median(bare), "ratio": median(ratios), "baseline_rates": bare, "ratios": ratios}
    return fields


def _rounded(value: Any) -> Any:
    """Four digits say all there is to say; more look like a precision that nobody measured."""
    if isinstance(value, float):
        return round(value) if abs(value) >= 10_000 else float(f"{value:.4g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
