"""Gauges read from a live engine at every scrape."""

import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gendurable.engine import Parts
    from gendurable.metrics import Labels


def add_gauges(parts: "Parts", *, version: str) -> None:
    """Register the gauges of an engine with its metrics."""
    metrics, database = parts.metrics, parts.database

    def by_queue(attribute: str) -> "Mapping[Labels, float]":
        return {(queue,): float(getattr(executor, attribute)) for queue, executor in parts.executors.items()}

    def pool() -> "Mapping[Labels, float]":
        size, idle = database.pool_usage()
        return {("idle",): float(idle), ("in_use",): float(size - idle)}

    observed = parts.observed
    metrics.gauge("gendurable_in_flight", "Steps that run now.", lambda: by_queue("running"), ["queue"])
    metrics.gauge("gendurable_prefetched", "Claimed rows that wait for a slot.", lambda: by_queue("waiting"), ["queue"])
    metrics.gauge(
        "gendurable_unflushed", "Outcomes that are not durable yet.", lambda: by_queue("unflushed"), ["queue"]
    )
    metrics.gauge(
        "gendurable_lingering_threads",
        "Threads that still run although their step's outcome was decided.",
        lambda: by_queue("lingering_threads"),
        ["queue"],
    )
    metrics.gauge("gendurable_claims_held", "Rows this process owns.", lambda: {(): float(len(parts.holdings))})
    metrics.gauge(
        "gendurable_lease_age_seconds",
        "Time since the last heartbeat that arrived.",
        lambda: {(): parts.heartbeat.age_s},
    )
    metrics.gauge(
        "gendurable_oldest_due_seconds",
        "How long the oldest due row has waited.",
        lambda: {(queue,): seconds for queue, seconds in observed.oldest_due_s.items()},
        ["queue"],
    )
    metrics.gauge("gendurable_pool_connections", "Connections of the pool.", pool, ["state"])
    metrics.gauge(
        "gendurable_loop_lag_seconds",
        "How late the event loop was at its last check.",
        lambda: {(): observed.loop_lag_s},
    )
    metrics.gauge(
        "gendurable_listener_up",
        "Whether notifications arrive.",
        lambda: {(): float(parts.listener is not None and parts.listener.is_up)},
    )
    metrics.gauge(
        "gendurable_build_info",
        "The running version.",
        lambda: {(version, platform.python_version()): 1.0},
        ["version", "python"],
    )
