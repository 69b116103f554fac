"""The bench measures what it says: every scenario runs at a tiny size, and no figure is judged here."""

import json
import os
import subprocess
import sys

import asyncpg
import pytest

from gendurable.bench.lines import REQUIRED, compared, line_of, middle_of
from gendurable.bench.options import BenchOptions
from gendurable.bench.scenarios import SCENARIOS
from gendurable.bench.spec import ChildSpec, child_settings
from gendurable.settings import LeaseSettings, QueueSettings, Secret, Settings

DEADLINE_S = 120.0


def bench(dsn: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would."""
    return subprocess.run(
        [sys.executable, "-m", "gendurable.cli", "bench", "--dsn", dsn, "--runs", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=dict(os.environ),
    )


def lines_of(dsn: str, *arguments: str) -> list[dict]:
    """The lines of a run that must succeed."""
    done = bench(dsn, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def schemas(dsn: str) -> set[str]:
    """The schemas of a database, without Postgres's own."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("select nspname from pg_namespace where nspname !~ '^(pg_|information_)'")
        return {row["nspname"] for row in rows}
    finally:
        await connection.close()


TINY = [
    ("insert", ["--jobs", "50"], 1),
    ("drain", ["--jobs", "50"], 1),
    ("steps", ["--jobs", "20"], 1),
    ("latency", ["--jobs", "3"], 2),
    ("claim-scale", ["--jobs", "1000"], 12),
    ("idle", ["--idle-seconds", "0.2"], 1),
    ("held-snapshot", ["--jobs", "200"], 1),
    ("memory", ["--jobs", "200"], 1),
    ("recovery", ["--jobs", "5", "--lease-seconds", "1"], 1),
]


@pytest.mark.parametrize(("scenario", "arguments", "lines"), TINY)
async def test_a_scenario_prints_its_figures_as_json(dsn, scenario, arguments, lines):
    """Whatever reads the figures reads the same keys from every scenario, and the database is left as it was."""
    before = await schemas(dsn)

    told = lines_of(dsn, scenario, *arguments)

    assert [line["scenario"] for line in told] == [scenario] * lines
    assert all(set(REQUIRED) <= line.keys() for line in told)
    assert await schemas(dsn) == before


def test_every_scenario_is_tried_here():
    """A scenario that no test runs is found broken by the first who needs it."""
    assert [scenario for scenario, _, _ in TINY] == list(SCENARIOS)


@pytest.mark.parametrize(("scenario", "steps"), [("drain", 40), ("steps", 200)])
async def test_a_baseline_is_measured_in_turn(dsn, scenario, steps):
    """A ratio is worth something only when both sides did the same work in the same run."""
    (line,) = lines_of(dsn, scenario, "--jobs", "40", "--runs", "2", "--baseline", "--queues", "2")

    assert line["steps"] == steps
    assert len(line["rates"]) == len(line["baseline_rates"]) == len(line["ratios"]) == 2
    assert line["ratio"] > 0
    assert line["baseline_rate"] > 0


async def test_the_baseline_of_a_latency_is_that_of_its_statements(dsn):
    """Where the disk is slow, the bar is what the statements alone need."""
    told = lines_of(dsn, "latency", "--jobs", "3", "--baseline")

    assert [line["mode"] for line in told] == ["idle", "back to back"]
    assert all(line["baseline_p99_ms"] >= line["baseline_p50_ms"] > 0 for line in told)


async def test_every_statement_of_a_drain_is_accounted_for(dsn):
    """A drain is claims, flushes and a handful of others; more would be a cost that the figures hide."""
    (line,) = lines_of(dsn, "drain", "--jobs", "2000")

    assert line["statements"] == line["claims"] + line["flushes"] + line["other_statements"]
    assert 0 <= line["other_statements"] < 10


def test_people_get_columns(dsn):
    """Without --json somebody looks at it."""
    done = bench(dsn, "insert", "--jobs", "10")

    assert done.returncode == 0, done.stderr
    assert "SCENARIO" in done.stdout
    assert "insert" in done.stdout


def test_an_unknown_scenario_is_a_usage_error(dsn):
    """A typing mistake must not measure everything for ten minutes."""
    done = bench(dsn, "speed")

    assert done.returncode == 2
    assert "drain" in done.stderr


def test_a_database_that_is_away_is_said_in_one_line():
    """The trace of a bench tells nobody anything."""
    done = bench("postgresql://nobody@127.0.0.1:9/nothing", "drain", "--jobs", "1")

    assert done.returncode == 4
    assert "Traceback" not in done.stderr


def test_the_bench_runs_with_the_defaults_of_the_worker():
    """People measure defaults: a bench whose settings differ from the worker's is a defect."""
    plain = ChildSpec(role="worker", dsn="postgresql:///x", schema="gendurable_bench_x")

    assert child_settings(plain) == Settings(dsn=Secret("postgresql:///x"), schema="gendurable_bench_x")


def test_only_what_was_asked_for_differs_from_the_defaults():
    """An option that also changes something else makes its own figure worthless."""
    spec = ChildSpec(
        role="worker",
        dsn="postgresql:///x",
        schema="s",
        queues=("default", "bench-2"),
        concurrency=7,
        lease_ttl_s=3.0,
    )

    assert child_settings(spec) == Settings(
        dsn=Secret("postgresql:///x"),
        schema="s",
        serve=("default", "bench-2"),
        queue=QueueSettings(concurrency=7),
        lease=LeaseSettings(ttl_s=3.0, heartbeat_s=1.0),
    )


def test_every_line_has_every_key():
    """Null says that a figure means nothing here; a missing key says nothing."""
    line = line_of("idle", jobs=0, seconds=1.23456789)

    assert list(line) == list(REQUIRED)
    assert line["seconds"] == 1.235
    assert line["rate"] is None


def test_the_ratio_is_the_median_of_neighbours():
    """A shared machine changes its mind between pairs, so that the ratio of two medians compares strangers."""
    fields = compared(
        [{"rate": 10.0}, {"rate": 60.0}, {"rate": 30.0}], [{"rate": 20.0}, {"rate": 60.0}, {"rate": 40.0}]
    )

    assert fields["ratios"] == [0.5, 1.0, 0.75]
    assert fields["ratio"] == 0.75
    assert fields["baseline_rate"] == 40.0


def test_the_run_in_the_middle_is_told():
    """Seconds, statements and processor time belong to one run; a mixture of three fits nothing."""
    assert middle_of([{"rate": 3.0, "n": 3}, {"rate": 1.0, "n": 1}, {"rate": 2.0, "n": 2}])["n"] == 2


def test_queues_are_the_default_one_and_further_ones():
    """A run with one queue is exactly what a worker does that was told nothing."""
    assert BenchOptions(dsn="").queue_names() == ("default",)
    assert BenchOptions(dsn="", queues=3).queue_names() == ("default", "bench-2", "bench-3")
