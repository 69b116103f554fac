"""Loading the configuration: who wins, what is refused, and what is shown."""

import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gendurable.errors import ConfigurationError
from gendurable.settings import (
    BackoffSettings,
    FlushSettings,
    LeaseSettings,
    LoadedSettings,
    PoolSettings,
    QueueSettings,
    Secret,
    Settings,
    check_settings,
    explain,
    load_settings,
    require_valid,
)
from gendurable.settings.checks import FIELDS
from gendurable.settings.sources import _ENV_KEYS

_UNSET_BY_DEFAULT = {"dsn", "listen.dsn", "imports", "flush.routes", "embedded.directory", "embedded.binaries"}


@pytest.fixture
def load(tmp_path):
    """Load from flags, environment and the text of a file in an otherwise empty folder."""

    def load(flags=None, environ=None, toml=None) -> LoadedSettings:
        if toml is not None:
            (tmp_path / "gendurable.toml").write_text(toml)
        return load_settings(flags=flags or {}, environ=environ or {}, toml_path=None, cwd=tmp_path)

    return load


@pytest.fixture
def problems(load):
    """The problems of a configuration that must not load."""

    def problems(**sources) -> list[str]:
        with pytest.raises(ConfigurationError) as caught:
            load(**sources)
        return list(caught.value.problems)

    return problems


# Defaults


def test_the_defaults_are_the_documented_ones(load):
    """The bench and every worker run with them."""
    settings = load().settings

    assert settings == Settings(node=settings.node)
    assert (settings.schema, settings.dsn, settings.served) == ("gendurable", None, ("*",))
    assert settings.queue == QueueSettings(concurrency=100, sync_threads=8, prefetch_max=400, claim_max=500)
    assert settings.queue.min_demand_rows == 10
    assert settings.queue.poll_interval_s == 2
    assert settings.lease == LeaseSettings(ttl_s=30, heartbeat_s=5)
    assert (settings.reaper.batch_max, settings.collector.interval_s, settings.reconciler.interval_s) == (500, 60, 30)
    assert settings.flush == FlushSettings(batch_max=500, delay_max_s=0, queue_max=10_000)
    assert (settings.steps.timeout_s, settings.steps.max_attempts, settings.steps.max_crashes) == (3600, 20, 5)
    assert (settings.process.drain_timeout_s, settings.process.start_deadline_s) == (25, 60)
    assert (settings.process.http_host, settings.process.http_port) == ("127.0.0.1", 9464)
    assert settings.pool == PoolSettings(min=2, max=10, connect_timeout_s=10, command_timeout_s=30)
    assert settings.collector.retention_failed_s == 30 * 86_400
    assert settings.node


def test_settings_made_in_python_are_valid_by_default_and_cannot_be_changed():
    """A library user writes Settings(...) and gets what the command line gets."""
    settings = require_valid(Settings())

    with pytest.raises(AttributeError):
        settings.schema = "x"  # type: ignore[misc]


@given(st.integers(min_value=1, max_value=100_000), st.none() | st.integers(min_value=1, max_value=100_000))
def test_the_effective_min_demand_is_between_one_and_the_concurrency(concurrency, min_demand):
    """A demand that can never be reached would leave the queue idle."""
    queue = QueueSettings(concurrency=concurrency, min_demand=min_demand)

    assert 1 <= queue.min_demand_rows <= concurrency


# Precedence and sources


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_default(load):
    """The closer to the person who starts the process, the stronger."""
    toml = '[lease]\nttl = "60s"\nheartbeat = "7s"\n[pool]\nmax = 20\nmin = 3\n'
    environ = {"GENDURABLE_LEASE_TTL": "90s", "GENDURABLE_LEASE_HEARTBEAT": "8s", "GENDURABLE_POOL_MAX": "30"}
    loaded = load({"lease.ttl": "120s", "pool.max": None}, environ, toml)

    assert loaded.settings.lease == LeaseSettings(ttl_s=120, heartbeat_s=8)
    assert loaded.settings.pool == PoolSettings(min=3, max=30)
    assert loaded.source_of("lease.ttl") == "flag lease.ttl"
    assert loaded.source_of("lease.heartbeat") == "GENDURABLE_LEASE_HEARTBEAT"
    assert loaded.source_of("pool.min").endswith("gendurable.toml")
    assert loaded.source_of("steps.timeout") == "default"


@pytest.mark.parametrize("key", sorted(FIELDS.keys() - _UNSET_BY_DEFAULT))
def test_every_setting_can_be_written_back_as_it_is_shown(load, key):
    """What config show prints is what files, flags and variables take."""
    shown = {row_key: value for row_key, value, _ in explain(load())}[key]
    variable = "GENDURABLE_" + key.replace(".", "_").upper()
    loaded = load(environ={variable: shown})

    assert loaded.settings == load().settings
    assert loaded.source_of(key) == variable


def test_no_two_settings_share_a_variable():
    """The dot and the underscore both become an underscore."""
    names = [key.replace(".", "_").upper() for key in FIELDS]

    assert len(names) == len(set(names))
    assert not any(name.endswith("_FILE") for name in names)
    assert set(names) <= _ENV_KEYS.keys()


def test_sections_may_be_set_off_with_two_underscores(load):
    """Many tools write nested variables so."""
    assert load(environ={"GENDURABLE_LEASE__TTL": "45s"}).settings.lease.ttl_s == 45


def test_an_empty_variable_counts_as_not_set(load):
    """Compose files write ${GENDURABLE_DSN:-}."""
    assert load(environ={"GENDURABLE_DSN": "", "GENDURABLE_LEASE_TTL": ""}).settings.dsn is None


def test_a_variable_can_name_a_file_with_the_value(load, tmp_path):
    """Container secrets are files; editors end them with a newline."""
    secret = tmp_path / "dsn"
    secret.write_text("postgresql://u:p@h/db\n")
    loaded = load(environ={"GENDURABLE_DSN_FILE": str(secret), "DATABASE_URL": "postgresql://other/db"})

    assert loaded.settings.require_dsn() == "postgresql://u:p@h/db"
    assert loaded.source_of("dsn") == f"GENDURABLE_DSN_FILE ({secret})"


def test_a_secret_file_that_cannot_be_used_is_a_problem(problems, tmp_path):
    """A missing mount must not silently fall back to another database."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    found = problems(
        environ={
            "GENDURABLE_DSN_FILE": str(tmp_path / "missing"),
            "GENDURABLE_SCHEMA_FILE": str(tmp_path / "binary"),
            "GENDURABLE_NODE_FILE": str(tmp_path / "large"),
        }
    )

    assert [problem.split(":")[0] for problem in found] == [
        "GENDURABLE_DSN_FILE",
        "GENDURABLE_NODE_FILE",
        "GENDURABLE_SCHEMA_FILE",
    ]


def test_a_variable_and_its_file_together_are_refused(problems):
    """Nobody could say which one was meant."""
    (problem,) = problems(environ={"GENDURABLE_NODE": "a", "GENDURABLE_NODE_FILE": "/nowhere"})

    assert problem == "GENDURABLE_NODE_FILE and GENDURABLE_NODE set the same thing: remove one"


def test_the_file_can_be_named(load, tmp_path, problems):
    """By --config or by a variable; a named file must exist."""
    other = tmp_path / "other.toml"
    other.write_text('schema = "jobs"')

    assert load(environ={"GENDURABLE_CONFIG": str(other)}).settings.schema == "jobs"
    assert load(environ={"GENDURABLE_CONFIG": "other.toml"}).settings.schema == "jobs"
    loaded = load_settings(flags={}, environ={"GENDURABLE_CONFIG": "no"}, toml_path=other, cwd=Path("/"))
    assert loaded.settings.schema == "jobs"
    assert "no.toml cannot be read" in problems(environ={"GENDURABLE_CONFIG": "no.toml"})[0]


# The DSN


def test_database_url_and_pg_variables_come_last(load):
    """They may be meant for the application's own database."""
    environ = {"DATABASE_URL": "postgres://a/db", "PGHOST": "b", "GENDURABLE_DSN": "postgresql://c/db"}

    assert (
        load({"dsn": "postgresql://d/db"}, environ, 'dsn = "postgresql://e/db"').settings.require_dsn()
        == "postgresql://d/db"
    )
    assert load({}, environ).settings.require_dsn() == "postgresql://c/db"
    del environ["GENDURABLE_DSN"]
    assert load({}, environ).settings.require_dsn() == "postgresql://e/db"
    assert load({}, environ, "").settings.require_dsn() == "postgresql://a/db"


def test_pg_variables_make_a_dsn_that_survives_odd_characters(load):
    """A password may hold anything, a host may be the folder of a socket."""
    environ = {"PGHOST": "/var/run/pg", "PGUSER": "me@x", "PGPASSWORD": "a&b=c%/", "PGDATABASE": "db"}
    loaded = load({}, environ)

    assert loaded.settings.require_dsn() == (
        "postgresql://?host=/var/run/pg&user=me%40x&password=a%26b%3Dc%25/&dbname=db"
    )
    assert loaded.source_of("dsn") == "PGHOST, PGUSER, PGPASSWORD, PGDATABASE"
    assert load({}, {"PGPASSWORD": "x", "PGSSLMODE": "require"}).settings.dsn is None


def test_sqlalchemys_spelling_of_a_dsn_is_understood(load):
    """DATABASE_URL is often written for SQLAlchemy."""
    assert load({}, {"DATABASE_URL": "postgresql+asyncpg://u:p@h/db"}).settings.require_dsn() == "postgresql://u:p@h/db"


@pytest.mark.parametrize("dsn", ["mysql://u:hunter2@h/db", "host=h password=hunter2", "hunter2", 5])
def test_another_kind_of_dsn_is_refused_without_showing_its_password(problems, dsn):
    """The message ends up in a log."""
    (problem,) = problems(flags={"dsn": dsn})

    assert problem.startswith("dsn (from flag dsn) is")
    assert "hunter2" not in problem


def test_a_missing_dsn_is_a_problem_only_where_one_is_needed(load):
    """config show works without a database."""
    with pytest.raises(ConfigurationError, match="GENDURABLE_DSN"):
        load().settings.require_dsn()


def test_the_stronger_of_a_dsn_and_the_embedded_server_wins(load, problems):
    """--embedded on the command line means it, whatever the file says."""
    toml = 'dsn = "postgresql://h/db"'
    by_flag = load({"embedded.enabled": True}, {"DATABASE_URL": "postgresql://a/b"}, toml).settings
    by_dsn = load({"dsn": "postgresql://h/db"}, {}, "embedded = true").settings

    assert (by_flag.embedded.enabled, by_flag.dsn) == (True, None)
    assert (by_dsn.embedded.enabled, by_dsn.require_dsn()) == (False, "postgresql://h/db")
    assert "exclude each other" in problems(toml=toml + "\nembedded = true")[0]


# Problems


def test_all_problems_of_all_sources_are_reported_at_once(problems):
    """One failed start shows everything there is to mend."""
    found = problems(
        flags={"lease.ttl": "30", "schema": "Bad-Name", "nonsense": 1},
        environ={"GENDURABLE_LEAS_TTL": "1s", "GENDURABLE_POOL_MAX": "many", "GENDURABLE_DSN": "mysql://x"},
        toml='scheme = "x"\nlog = "debug"\n[flush]\nbatch_max = 0\nbach_max = 1\n[reaper]\nenabled = "maybe"\n',
    )
    text = "\n".join(found)

    assert len(found) == 11
    assert "flag nonsense is unknown" in text
    assert "GENDURABLE_LEAS_TTL is unknown: did you mean GENDURABLE_LEASE_TTL?" in text
    assert "scheme (from" in text
    assert "did you mean schema?" in text
    assert "did you mean flush.batch_max?" in text
    assert "which is no table: write [log]" in text
    assert "lease.ttl (from flag lease.ttl) is '30', a number without a unit: write \"30s\" for seconds" in text
    assert "pool.max (from GENDURABLE_POOL_MAX) is 'many', which is no whole number: give 1 to 1,000" in text
    assert "is 0: give 1 to 10,000" in text
    assert "give true or false" in text
    assert "schema (from flag schema) is 'Bad-Name'" in text


def test_a_key_that_stands_in_the_wrong_place_is_told_the_right_one(problems):
    """People forget the section."""
    (problem,) = problems(toml='heartbeat = "5s"')

    assert "did you mean lease.heartbeat?" in problem


@pytest.mark.parametrize("toml", ["[lease", "a = 1\na = 2", "\ufeffx = 1"])
def test_a_broken_file_is_one_problem_with_its_path(problems, toml):
    """The position is in the message; the content, which may hold a password, is not."""
    (problem,) = problems(toml=toml)

    assert "gendurable.toml is no TOML" in problem


def test_a_file_that_is_no_text_is_a_problem(problems, tmp_path):
    """Not a traceback."""
    (tmp_path / "gendurable.toml").write_bytes(b"\xff\xfe\x00")

    assert "is no TOML" in problems()[0]


def test_a_dsn_in_the_wrong_place_is_not_shown(problems):
    """A password must not reach the log by a mistake in the file."""
    (problem,) = problems(toml='listen = "postgresql://u:hunter2@h/db"')

    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queue.concurrency", "0"),
        ("queue.concurrency", 1.0),
        ("queue.concurrency", True),
        ("queue.prefetch", "-1"),
        ("queue.concurrency", "auto"),
        ("process.http_port", "65536"),
        ("process.http_host", ""),
        ("node", "a/b"),
        ("node", "x" * 129),
        ("schema", "pg_mine"),
        ("schema", "x" * 41),
        ("schema", 'a"; drop'),
        ("log.level", "loud"),
        ("log.format", 5),
        ("backoff.jitter", "1.5"),
        ("backoff.jitter", "nan"),
        ("backoff.jitter", "much"),
        ("lease.ttl", 30),
        ("flush.delay_max", "0.1ms"),
        ("imports", 7),
        ("queues", 7),
        ("queues", "x" * 129),
        ("queues", "none,a"),
        ("queues", "a=0"),
        ("flush.routes", "fast"),
        ("flush.routes", "fast="),
        ("flush.routes", 3),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_key_and_source(problems, key, value):
    """The sentence starts with what to change."""
    (problem,) = problems(flags={key: value})

    assert problem.startswith(key)
    assert f"(from flag {key})" in problem


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(lease=LeaseSettings(ttl_s=14, heartbeat_s=5)), "lease.heartbeat is 5s, more than a third"),
        (Settings(pool=PoolSettings(min=5, max=4)), "pool.max is 4, less than pool.min"),
        (Settings(backoff=BackoffSettings(base_s=10, max_s=5)), "backoff.max is 5s, less than"),
        (Settings(queues={"": QueueSettings()}), "queues names a queue that"),
        (Settings(queues={"*": QueueSettings()}), "queues.* is no queue"),
        (Settings(queues={"a": QueueSettings(claim_max=0)}), "queues.a.claim_max is 0"),
        (Settings(serve=("a,b",)), "queues names a queue that"),
        (Settings(serve="mail"), "queues is no list of names"),  # type: ignore[arg-type]
        (Settings(dsn="postgresql://u:hunter2@h/db"), "dsn is no Secret"),  # type: ignore[arg-type]
        (Settings(lease=LeaseSettings(ttl_s=float("nan"))), "lease.ttl is nan"),
        (Settings(imports="a"), "imports is no list of names"),  # type: ignore[arg-type]
        (Settings(flush=FlushSettings(routes={"fast": ()})), "flusher 'fast', which has no queues"),
        (Settings(flush=FlushSettings(routes={"f": ("a",)}), serve=("a", "b")), "covers no queue 'b'"),
    ],
)
def test_settings_made_in_python_are_judged_by_the_same_rules(settings, text):
    """The engine can be started without files and flags."""
    (problem,) = check_settings(settings)

    assert text in problem
    assert "hunter2" not in problem
    with pytest.raises(ConfigurationError):
        require_valid(settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(lease=None), "lease is None: give LeaseSettings(...)"),  # type: ignore[arg-type]
        (Settings(queue={"concurrency": 5}), "queue is {'concurrency': 5}: give QueueSettings(...)"),  # type: ignore[arg-type]
        (Settings(queues=["a"]), "queues is ['a']: give a mapping"),  # type: ignore[arg-type]
        (Settings(queues={"a": 5}), "queues.a is 5: give QueueSettings(...)"),  # type: ignore[dict-item]
        (Settings(flush=FlushSettings(routes={"f": 5})), "flusher 'f', which is no list of names"),  # type: ignore[dict-item]
        (Settings(flush=FlushSettings(routes={"f": "a"})), "flusher 'f', which is no list of names"),  # type: ignore[dict-item]
    ],
)
def test_a_value_of_the_wrong_type_is_a_problem_beside_the_others(settings, text):
    """Nobody checks types when settings are made in Python; an AttributeError would hide every other problem."""
    other = msgspec.structs.replace(settings, pool=PoolSettings(min=5, max=4))

    assert [text in problem for problem in check_settings(settings)] == [True]
    assert [problem.split()[0] for problem in check_settings(other)][-1] == "pool.max"
    assert len(check_settings(other)) == 2


def test_values_that_do_not_fit_are_reported_beside_values_that_are_wrong_by_themselves(problems):
    """Mending the one and being told of the other at the next start is two failed starts."""
    found = problems(
        flags={"queues": "a,b", "lease.ttl": "5s", "lease.heartbeat": "5s", "flush.routes": "f=a"},
        toml="[steps]\nmax_attempts = 0\n[flush]\nbatch_max = 'many'\n",
    )

    assert [problem.split()[0] for problem in found] == [
        "flush.batch_max", "steps.max_attempts", "lease.heartbeat", "flush.routes",
    ]  # fmt: skip


def test_a_value_that_cannot_be_read_is_not_compared(problems):
    """The default in its place was not meant: mending the one mistake leaves nothing to complain of."""
    (problem,) = problems(flags={"lease.ttl": "two minutes", "lease.heartbeat": "30s"})

    assert problem.startswith("lease.ttl")


def test_what_a_queue_inherits_is_reported_where_it_stands(problems):
    """One mistake is one problem, however many queues have it from the section for all; their own are theirs."""
    toml = "[queue]\nconcurrency = 0\n[queues.a]\nprefetch = 1\n[queues.b]\nconcurrency = 0\n"

    assert [problem.split()[0] for problem in problems(toml=toml)] == ["queue.concurrency", "queues.b.concurrency"]


@pytest.mark.parametrize(("ttl_s", "beat_s"), [(0.3, 0.1), (30, 10), (0.003, 0.001)])
def test_a_heartbeat_of_exactly_a_third_is_allowed(ttl_s, beat_s):
    """Three times 0.1 is more than 0.3 in binary fractions."""
    assert check_settings(Settings(lease=LeaseSettings(ttl_s=ttl_s, heartbeat_s=beat_s))) == []


def test_variables_that_are_not_settings_are_left_alone(load):
    """Kubernetes sets such variables beside a Service called gendurable or gendurable-process-http."""
    loaded = load(
        environ={
            "GENDURABLE_SERVICE_HOST": "10.0.0.1",
            "GENDURABLE_SERVICE_PORT": "9464",
            "GENDURABLE_SERVICE_PORT_HTTP": "9464",
            "GENDURABLE_PORT": "tcp://10.0.0.1:9464",
            "GENDURABLE_PORT_9464_TCP": "tcp://10.0.0.1:9464",
            "GENDURABLE_PORT_9464_TCP_PROTO": "tcp",
            "GENDURABLE_PORT_9464_TCP_ADDR": "10.0.0.1",
            "GENDURABLE_WORKER_SERVICE_HOST": "10.0.0.1",
            "GENDURABLE_PROCESS_HTTP_PORT": "tcp://10.0.0.1:9464",
            "OTHER": "x",
        }
    )

    assert loaded.settings.process.http_port == 9464
    assert load(environ={"GENDURABLE_PROCESS_HTTP_PORT": "80"}).settings.process.http_port == 80


# Queues and flushers


def test_without_queues_a_process_serves_those_of_its_machines_and_default(load):
    """A new machine needs no new configuration."""
    settings = load({"queue.concurrency": "5"}).settings

    assert settings.queues_for(["mail", "mail"]) == {
        "mail": QueueSettings(concurrency=5),
        "default": QueueSettings(concurrency=5),
    }


@pytest.mark.parametrize(
    ("queues", "served"),
    [
        ("a,b", ["a", "b"]),
        ("a, b=20", ["a", "b"]),
        (["a", "b"], ["a", "b"]),
        ("none", []),
        (["none"], []),
        ("*,extra", ["mail", "default", "extra"]),
    ],
)
def test_the_queues_to_serve_can_be_named(load, queues, served):
    """As a list, or as one text; none serves nothing, and * stands for the loaded ones."""
    assert list(load({"queues": queues}).settings.queues_for(["mail"])) == served


def test_tables_of_queues_name_them_and_set_them(load):
    """What they leave out comes from the section for all queues."""
    toml = """
    [queue]
    sync_threads = 2
    poll_interval = "1s"
    [queues]
    small = 5
    [queues.mail]
    concurrency = 20
    poll_interval = "500ms"
    prefetch = "auto"
    [queues.plain]
    """
    loaded = load(toml=toml)

    assert loaded.settings.queues_for(["ignored"]) == {
        "small": QueueSettings(concurrency=5, sync_threads=2, poll_interval_s=1),
        "mail": QueueSettings(concurrency=20, sync_threads=2, poll_interval_s=0.5),
        "plain": QueueSettings(sync_threads=2, poll_interval_s=1),
    }
    assert loaded.source_of("queues").endswith("gendurable.toml")


def test_a_list_of_queues_keeps_what_the_file_sets_for_each(load):
    """--queues says which; the file goes on saying how."""
    toml = "[queues.a]\nconcurrency = 7\nsync_threads = 3\n[queues.b]\nconcurrency = 9\n"
    settings = load({"queues": ["a=8", "c"]}, {}, toml).settings

    assert settings.queues_for([]) == {"a": QueueSettings(concurrency=8, sync_threads=3), "c": QueueSettings()}


@pytest.mark.parametrize(
    ("toml", "text"),
    [
        ("[queues.a]\nconcurency = 1", "did you mean concurrency?"),
        ("[queues.a]\nconcurrency = 0", "queues.a.concurrency (from"),
        ('[queues]\na = "many"', "queues.a.concurrency (from"),
        ('[queues."a,b"]', "names a queue that"),
        ('[queues."*"]', "queues.* is no queue"),
    ],
)
def test_wrong_settings_of_a_queue_are_problems(problems, toml, text):
    """Each names its queue."""
    (problem,) = problems(toml=toml)

    assert text in problem


def test_the_first_flusher_that_names_a_queue_serves_it(load):
    """The order of the table is the order of the routes."""
    toml = '[flush.routes]\nfast = ["mail", "sms"]\nrest = ["*"]\n'
    from_file = load(toml=toml).settings.flush
    from_text = load(environ={"GENDURABLE_FLUSH_ROUTES": "fast = mail, sms; rest=*"}).settings.flush

    assert from_file == from_text
    assert [from_file.flusher_of(queue) for queue in ("mail", "sms", "other")] == ["fast", "fast", "rest"]
    assert FlushSettings().flusher_of("any") == "default"


def test_a_queue_without_a_flusher_is_refused_before_anything_starts(problems, load):
    """Its outcomes would never be committed."""
    routes = {"flush.routes": {"fast": ["a"]}}

    assert "covers no queue 'b'" in problems(flags=routes | {"queues": "a,b"})[0]
    with pytest.raises(ConfigurationError, match=r"covers no queue 'mail'.*covers no queue 'default'"):
        load(routes).settings.queues_for(["a", "mail"])


# Showing


def test_explain_lists_every_setting_with_its_source_and_no_secret(load):
    """Including the settings of single queues."""
    environ = {
        "GENDURABLE_DSN": "postgresql://u:hunter2@h/db",
        "GENDURABLE_LISTEN_DSN": "postgresql://h/?password=hunter2",
    }
    rows = explain(load({"queues": "a=3"}, environ))
    by_key = {key: (value, source) for key, value, source in rows}

    assert FIELDS.keys() <= by_key.keys()
    assert "hunter2" not in str(rows)
    assert by_key["dsn"] == ("postgresql://u:***@h/db", "GENDURABLE_DSN")
    assert by_key["listen.dsn"] == ("postgresql://h/?password=***", "GENDURABLE_LISTEN_DSN")
    assert by_key["queues"] == ("a", "flag queues")
    assert by_key["queues.a.concurrency"] == ("3", "flag queues")
    assert by_key["lease.ttl"] == ("30s", "default")
    assert by_key["node"][1] == "default (host name)"


def test_a_secret_shows_itself_to_nobody():
    """Settings end up in tracebacks, logs and pickles."""
    secret = Secret("hunter2")

    assert "hunter2" not in f"{secret} {secret!r} {Settings(dsn=secret)!r} {[secret]}"
    assert secret == Secret("hunter2")
    assert secret != Secret("other")
    assert len({secret, Secret("hunter2")}) == 1
    assert secret.reveal() == "hunter2"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
