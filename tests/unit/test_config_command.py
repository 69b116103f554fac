"""``gendurable config show``, and the options that every command takes its settings from."""

import json

import click
import pytest
from click.testing import CliRunner

from gendurable.cli.config_commands import config
from gendurable.cli.options import FLAG_NAMES, SettingOptions, common_options, worker_options
from gendurable.settings.checks import FIELDS, QUEUE_FIELDS


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run `config` in an empty folder with an empty environment of ours."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "PGHOST", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    return lambda *args: CliRunner().invoke(config, args)


def test_config_show_prints_values_and_sources(run, tmp_path):
    """For people by default."""
    (tmp_path / "my.toml").write_text('schema = "jobs"')
    result = run("show", "--config", "my.toml", "--dsn", "postgresql://u:hunter2@h/db", "--queue", "a=3", "--no-reaper")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in result.output.splitlines()}

    assert result.exit_code == 0
    assert lines["dsn"].split("  ")[0] == "postgresql://u:***@h/db"
    assert lines["dsn"].endswith("flag --dsn")
    assert lines["schema"].split()[0] == "jobs"
    assert lines["reaper.enabled"].split() == ["false", "flag", "--no-reaper"]
    assert lines["queues.a.concurrency"].split()[0] == "3"


def test_config_show_prints_json_for_programs(run):
    """One object; the value is the text of files and flags."""
    shown = json.loads(run("show", "--json", "--queues", "a,b", "--queue", "c", "--embedded-dir", "d").output)

    assert shown["queues"] == {"value": "a, b, c", "source": "flag --queues"}
    assert shown["embedded.enabled"]["value"] == "true"
    assert shown["embedded.directory"]["value"] == "d"


def test_a_wrong_configuration_exits_with_three_and_lists_the_problems(run):
    """One line for each."""
    result = run("show", "--lease-ttl", "30", "--http-port", "x")

    assert result.exit_code == 3
    assert len(result.output.splitlines()) == 3
    assert "lease.ttl (from flag --lease-ttl)" in result.output
    assert "process.http_port (from flag --http-port)" in result.output


def test_every_option_sets_a_known_setting():
    """A misspelt key would only show when somebody uses the option."""
    assert FLAG_NAMES.keys() <= FIELDS.keys() | {"queues"}
    assert QUEUE_FIELDS.keys() == {key.removeprefix("queue.") for key in FIELDS if key.startswith("queue.")}


def test_options_leave_the_commands_own_arguments_alone():
    """A command may have a --node or --queue of its own meaning."""
    seen: list[tuple[SettingOptions, str]] = []

    @click.command()
    @click.argument("queue")
    @common_options
    def command(queue: str, options: SettingOptions) -> None:
        seen.append((options, queue))

    @click.command()
    @worker_options
    def worker(options: SettingOptions) -> None:
        seen.append((options, ""))

    CliRunner().invoke(command, ["mail", "--schema", "jobs"], catch_exceptions=False)
    CliRunner().invoke(worker, ["--import", "a,b", "--import", "c", "--concurrency", "5"], catch_exceptions=False)

    assert seen == [
        (SettingOptions(flags={"schema": "jobs"}), "mail"),
        (SettingOptions(flags={"queue.concurrency": "5", "imports": ["a", "b", "c"]}), ""),
    ]
