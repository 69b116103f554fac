"""Metrics: counted cheaply, exposed by the rules."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gendurable.metrics import Counter, Histogram, Metrics


def exposed(metrics: Metrics) -> dict[str, object]:
    registry = CollectorRegistry()
    registry.register(metrics)
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def samples(family) -> dict[tuple[str, ...], float]:
    return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in family.samples}


def test_counts_and_observations_are_exposed_with_their_labels():
    """What an operator sees is what was counted."""
    metrics = Metrics()
    metrics.steps_committed.inc(("Pay", "start", "next"))
    metrics.steps_committed.inc(("Pay", "start", "next"), 2)
    metrics.flush_rows.observe(3)
    metrics.gauge("gendurable_in_flight", "Steps that run.", lambda: {("a",): 7.0}, ["queue"])
    families = exposed(metrics)

    labels = (("machine", "Pay"), ("outcome", "next"), ("step", "start"))
    assert samples(families["gendurable_steps_committed"])["gendurable_steps_committed_total", *labels] == 3
    rows = samples(families["gendurable_flush_rows"])
    assert (rows["gendurable_flush_rows_count",], rows["gendurable_flush_rows_sum",]) == (1, 3)
    assert samples(families["gendurable_in_flight"])["gendurable_in_flight", ("queue", "a")] == 7


def test_buckets_are_cumulative_and_their_bounds_belong_to_them():
    """Prometheus reads ``le`` as at most."""
    histogram = Histogram("x_seconds", "Help.", (), (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)

    found = {sample.labels.get("le"): sample.value for sample in histogram.collect().samples if "le" in sample.labels}
    assert found == {"1.0": 2, "2.0": 4, "+Inf": 5}
    assert histogram.count() == 5


def test_names_follow_the_rules():
    """Dashboards outlive versions: a prefix, a unit at the end, and help for everything."""
    for name, family in exposed(Metrics()).items():
        assert name.startswith("gendurable_")
        assert not name.endswith(("_ms", "_total_total", "_milliseconds"))
        assert family.documentation.endswith(".")


def test_a_counter_without_labels_is_there_from_the_start():
    """A rate over a metric that does not exist yet is no zero."""
    assert samples(exposed(Metrics())["gendurable_collected"]) == {("gendurable_collected_total",): 0.0}


@pytest.mark.parametrize("amount", [1, 2.5])
def test_totals_add_up_over_all_labels(amount):
    """The summary of a drain reads them."""
    counter = Counter("x", "Help.", ("a",))
    counter.inc(("1",), amount)
    counter.inc(("2",), amount)

    assert counter.total() == 2 * amount
