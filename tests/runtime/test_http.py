"""The HTTP port of a live worker: probes that tell the truth, and metrics that Prometheus accepts."""

import asyncio
import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
from urllib.parse import urlsplit

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families

import gendurable as gd
from gendurable.metrics import Observed
from gendurable.ops.health import TICK_AGE_MAX_S, Health
from gendurable.ops.http import HttpPort, build_app
from gendurable.ops.observing import QueueAges, Ticker
from gendurable.runtime.supervisor import Supervisor
from gendurable.settings import LeaseSettings, QueueSettings, Secret, Settings
from gendurable.store.fleet import FleetStore
from gendurable.wiring import build_engine
from tests.runtime.processes import JOBS, PATIENCE_S, eventually, running

HTTP_FAMILIES = ("gendurable_", "process_", "python_")
CLOSED_LABELS = {
    "constraint",
    "direction",
    "generation",
    "implementation",
    "loop",
    "machine",
    "major",
    "minor",
    "outcome",
    "patchlevel",
    "python",
    "queue",
    "state",
    "step",
    "version",
}


@gd.job(queue="mail")
async def send(ctx: gd.Context, address: str = "") -> None:
    if not address:
        raise gd.Cancel(f"no address in {ctx.id}")


def ask(port, path, **headers):
    """One request: status, content type, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type"), answer.read().decode()
    finally:
        connection.close()


async def asked(port, path, **headers):
    """The same without blocking the loop that answers."""
    return await asyncio.to_thread(ask, port, path, **headers)


@contextlib.asynccontextmanager
async def served(dsn, **more):
    """An engine with its port, as the worker puts them together."""
    settings = Settings(dsn=Secret(dsn), queue=QueueSettings(poll_interval_s=60), **more)
    engine = build_engine(settings, gd.Registry([send]))
    health = Health(engine)
    ages = QueueAges(
        store=FleetStore(engine.parts.database),
        queues=list(engine.parts.pickers),
        observed=engine.parts.observed,
        metrics=engine.metrics,
        is_possible=lambda: engine.is_ready,
    )
    port = HttpPort(build_app(health, engine.metrics, on_scrape=ages.note_scrape), host="127.0.0.1", port=0)
    async with Supervisor().tier([ages, port, Ticker(health, engine.parts.observed)], stop_timeout_s=5):
        yield engine, health, port.port


@pytest.fixture
async def scrape(dsn):
    """What a scrape shows after a little work of every kind."""
    async with served(dsn) as (engine, _health, port), engine.running():
        client = engine.client
        good, bad = await client.insert(send.with_args(address="a@b.c")), await client.insert(send.with_args())
        await client.result(good.id, timeout=PATIENCE_S)
        await client.wait(bad.id, timeout=PATIENCE_S)
        status, content_type, text = await asked(port, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain; version=")
    return text


async def test_readiness_follows_the_engine(dsn):
    """Traffic and rollouts wait for it; the start and the end are when it matters."""
    async with served(dsn) as (engine, health, port):
        status, content_type, body = await asked(port, "/readyz")
        assert (status, content_type) == (503, "application/json")
        assert json.loads(body)["reasons"] == ["the database is not connected"]
        assert (await asked(port, "/startupz"))[0] == 503
        assert (await asked(port, "/livez"))[0] == 200

        health.is_connected = True
        assert json.loads((await asked(port, "/readyz"))[2])["reasons"] == ["the schema is not checked"]

        health.is_schema_checked = True
        async with engine.running():
            assert (await asked(port, "/readyz"))[0] == 200
            assert (await asked(port, "/startupz"))[0] == 200
        status, _, body = await asked(port, "/readyz")
        assert status == 503
        assert "draining" in json.loads(body)["reasons"]
        # The start is over for good, and a drained process is not to be restarted.
        assert (await asked(port, "/startupz"))[0] == 200
        assert (await asked(port, "/livez"))[0] == 200


async def test_a_lost_database_costs_readiness_but_not_life(dsn, postgres):
    """A restart does not bring a database back, so only readiness may say so; E75."""
    name = urlsplit(dsn).path.strip("/")
    administrator = await asyncpg.connect(postgres.dsn("postgres"))
    try:
        async with served(dsn, lease=LeaseSettings(heartbeat_s=0.1)) as (engine, _health, port), engine.running():
            await administrator.execute(f"alter database {name} allow_connections false")
            await administrator.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name
            )
            await eventually(lambda: _answers(port, "/readyz", 503))
            reasons = json.loads((await asked(port, "/readyz"))[2])["reasons"]
            alive = (await asked(port, "/livez"))[0]
            await administrator.execute(f"alter database {name} allow_connections true")
            await eventually(lambda: _answers(port, "/readyz", 200))
    finally:
        await administrator.close()

    assert reasons[0].startswith("the database has not answered")
    assert alive == 200


async def _is(holds):
    return holds()


async def _answers(port, path, status):
    return (await asked(port, path))[0] == status


async def test_a_loop_that_does_not_tick_is_not_alive(dsn):
    """Blocking user code starves heartbeats; somebody has to end such a process."""
    engine = build_engine(Settings(dsn=Secret(dsn)), gd.Registry())
    health = Health(engine)
    health._ticked_at_s -= TICK_AGE_MAX_S + 1

    assert "has not ticked" in health.why_not_alive()[0]
    health.tick()
    assert health.why_not_alive() == []


async def test_the_ticker_measures_how_late_the_loop_is(dsn):
    """The lag is the first thing to look at when everything is slow."""
    health, observed = Health(build_engine(Settings(dsn=Secret(dsn)), gd.Registry())), Observed()
    ticker = Ticker(health, observed)
    task = asyncio.create_task(ticker.run())
    await asyncio.sleep(0)
    subprocess.run(["sleep", "0.6"], check=True)
    await eventually(lambda: _is(lambda: observed.loop_lag_s > 0))
    ticker.drain()
    await task

    assert 0.2 < observed.loop_lag_s < 5


async def test_the_age_of_queues_is_asked_only_while_somebody_scrapes(dsn):
    """An idle engine is allowed one statement a second for everything; a number nobody reads is not worth one."""
    async with served(dsn) as (engine, _health, port), engine.running():
        assert engine.parts.observed.oldest_due_s == {}
        before = engine.parts.database.statements_total

        await asked(port, "/metrics")
        await eventually(lambda: _is(lambda: bool(engine.parts.observed.oldest_due_s)))

        assert engine.parts.observed.oldest_due_s == {"default": 0.0, "mail": 0.0}
        # The empty claims at the start may fall between the two readings.
        assert engine.parts.database.statements_total - before <= 1 + len(engine.parts.pickers) * 3


async def test_oldest_due_tells_how_long_a_row_has_waited(dsn, connection):
    """The one number that an alert about a stuck queue needs; future rows do not count."""
    await connection.execute(
        "insert into gendurable.gen_durable (fsm, step, queue, priority, eligible_at) values"
        " ('a', 'run', 'mail', 3, now() - interval '90 s'), ('a', 'run', 'mail', 0, now() + interval '1 h')"
    )
    async with gd.Client(dsn) as client:
        ages = await FleetStore(client.database).oldest_due_s(["mail", "default"])

    assert ages["default"] == 0.0
    assert 90 <= ages["mail"] < 200


async def test_the_scrape_counts_steps_by_machine_step_and_outcome(scrape):
    """Executed apart from committed: the difference is work that has to be done again."""
    families = {family.name: family for family in text_string_to_metric_families(scrape)}
    for name in ("gendurable_steps_executed", "gendurable_steps_committed"):
        samples = {
            (s.labels["machine"], s.labels["step"], s.labels["outcome"]): s.value
            for s in families[name].samples
            if s.name.endswith("_total")
        }
        assert samples == {("send", "run", "done"): 1.0, ("send", "run", "cancel"): 1.0}

    expected = {
        *("gendurable_step_duration_seconds", "gendurable_start_delay_seconds", "gendurable_claim_duration_seconds"),
        *("gendurable_claim_rows", "gendurable_flush_duration_seconds", "gendurable_flush_rows"),
        *("gendurable_in_flight", "gendurable_outcomes_stale", "gendurable_reaped", "gendurable_contended"),
        *("gendurable_flush_bisections", "gendurable_lease_age_seconds", "gendurable_oldest_due_seconds"),
        *("gendurable_pool_connections", "gendurable_loop_lag_seconds", "gendurable_listener_up"),
        *("gendurable_build_info", "process_resident_memory_bytes", "python_info"),
    }
    assert expected - families.keys() == set()


async def test_names_and_labels_follow_the_rules(scrape):
    """Dashboards and alerts are written against names; a label with unbounded values brings Prometheus down."""
    wrong = []
    for family in text_string_to_metric_families(scrape):
        name, units = family.name, ("milliseconds", "ms", "minutes", "kilobytes")
        if not name.startswith(HTTP_FAMILIES) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            wrong.append(f"{name}: not one of our names")
        if not family.documentation or not family.documentation.strip():
            wrong.append(f"{name}: no help")
        if set(name.split("_")) & set(units):
            wrong.append(f"{name}: not a base unit")
        if family.type != "counter" and name.endswith(("_total", "_count", "_sum", "_bucket")):
            wrong.append(f"{name}: a {family.type} with a counter's name")
        for sample in family.samples:
            if family.type == "counter" and not sample.name.endswith(("_total", "_created")):
                wrong.append(f"{sample.name}: a counter without _total")
            if unknown := sample.labels.keys() - CLOSED_LABELS - {"le"}:
                wrong.append(f"{sample.name}: labels {sorted(unknown)}")
            if "le" in sample.labels and family.type != "histogram":
                wrong.append(f"{sample.name}: le outside a histogram")

    assert wrong == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_has_nothing_to_say(scrape):
    """The official opinion, on a live scrape."""
    checked = await asyncio.to_thread(
        subprocess.run, ["promtool", "check", "metrics"], input=scrape, capture_output=True, text=True, check=False
    )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


async def test_openmetrics_is_spoken_when_asked_for(dsn):
    """Newer scrapers ask for it first."""
    async with served(dsn) as (_engine, _health, port):
        _, content_type, text = await asked(port, "/metrics", accept="application/openmetrics-text; version=1.0.0")

    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_readiness_flips_while_a_worker_drains_and_the_port_closes_last(tmp_path, dsn):
    """A load balancer must stop sending while the process still answers."""
    (tmp_path / "jobs_under_test.py").write_text(JOBS, encoding="utf-8")
    connection = await asyncpg.connect(dsn)
    await connection.execute("select gendurable.insert_job('gated')")
    await connection.close()
    arguments = ("--import", "jobs_under_test", "--http-port", "0", "--drain-timeout", "60s")
    async with running("worker", "--dsn", dsn, *arguments, cwd=tmp_path) as process:
        port = (await process.event("http port listening"))["port"]
        await process.until("started")
        ready = await asked(port, "/readyz")
        async with running("probe", "--port", str(port), cwd=tmp_path) as probe:
            probed_ready = await probe.ended()
        process.send(signal.SIGTERM)
        await process.event("stopping")
        draining, alive = await asked(port, "/readyz"), await asked(port, "/livez")
        in_flight = (await asked(port, "/metrics"))[2]
        async with running("probe", "--port", str(port), "--json", cwd=tmp_path) as probe:
            probed_draining = await probe.ended()
        (tmp_path / "gate").touch()
        code = await process.ended()

    assert ready[0] == 200
    assert (draining[0], json.loads(draining[2])["reasons"]) == (503, ["draining"])
    assert alive[0] == 200
    assert 'gendurable_in_flight{queue="default"} 1.0' in in_flight
    assert (probed_ready, probed_draining) == (0, 1)
    assert json.loads(probe.output)["reasons"] == ["draining"]
    assert code == 0
    with pytest.raises(ConnectionRefusedError):
        await asked(port, "/livez")
