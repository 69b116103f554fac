"""The commands for people: what they print, what they exit with, and that they need no user code."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys

import asyncpg
import click
import pytest
from click.testing import CliRunner

import gendurable as gd
from gendurable.cli import COMMANDS, main
from gendurable.cli.rendering import shown
from gendurable.settings import QueueSettings, Secret, Settings
from gendurable.wiring import build_engine
from tests.runtime.processes import ISOLATION, clean_environment, folder_for_a_server, running

PASSWORD = "hunter2-and-more"
FOR_PEOPLE = ("insert", "show", "list", "cancel", "retry", "queues", "machines", "nodes")


@pytest.fixture
def run(dsn, tmp_path, monkeypatch):
    """Run a command on the test's database; answer (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    async def call(*arguments, address=dsn):
        # In a thread, because a command has a loop of its own.
        outcome = await asyncio.to_thread(CliRunner().invoke, main, arguments, env={"GENDURABLE_DSN": address})
        if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
            raise outcome.exception
        return outcome.exit_code, outcome.stdout, outcome.stderr

    return call


@pytest.fixture
def run_apart(dsn, tmp_path):
    """The same as a process of its own."""

    async def call(*arguments):
        async with running(*arguments, cwd=tmp_path, environment={"GENDURABLE_DSN": dsn}) as process:
            return await process.ended(), process.stdout, process.stderr

    return call


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Run a command that must not come as far as a database; answer (exit code, output)."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "PGHOST", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        outcome = CliRunner().invoke(main, arguments)
        return outcome.exit_code, outcome.output

    return call


@gd.job()
async def send_mail(ctx: gd.Context, to: str) -> dict[str, str]:
    return {"sent": f"{to} by {ctx.id}"}


async def test_what_insert_writes_show_shows(run_apart):
    """The round trip of somebody who tries it out, without a line of Python."""
    code, out, _ = await run_apart(
        *("insert", "send_mail", "--args", '{"to": "a@example.org"}', "--key", "mail:1", "--queue", "mail"),
        *("--priority", "-3", "--delay", "5m", "--tag", "eu", "--metadata", '{"by": "ann"}', "--json"),
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["answer"] == "inserted"

    code, out, _ = await run_apart("show", str(answer["id"]), "--json")
    assert code == 0
    found = json.loads(out)
    assert found | {"id": answer["id"], "machine": "send_mail", "step": "run", "status": "runnable"} == found
    assert (found["state"], found["metadata"]) == ({"to": "a@example.org"}, {"by": "ann"})
    assert (found["queue"], found["priority"], found["tags"]) == ("mail", -3, ["eu"])
    assert (found["correlation_key"], found["version"]) == ("mail:1", 1)
    assert found["eligible_at"] > found["inserted_at"]

    code, out, _ = await run_apart("show", "--key", "mail:1")
    assert code == 0
    assert re.search(r"^machine +send_mail$", out, re.MULTILINE)
    assert re.search(r'^state +\{"to":"a@example.org"\}$', out, re.MULTILINE)


async def test_an_inserted_job_runs_where_its_code_is(run, dsn):
    """The row of the command line is a row like any other, and its worker is woken."""
    settings = Settings(dsn=Secret(dsn), queue=QueueSettings(poll_interval_s=60))
    async with build_engine(settings, gd.Registry([send_mail])).running() as engine:
        _, out, _ = await run("insert", "send_mail", "--args", '{"to": "b"}', "--json")
        number = json.loads(out)["id"]

        assert await engine.client.result(number, timeout=30) == {"sent": f"b by {number}"}
        _, nodes, _ = await run("nodes", "--json")
        assert [(node["queues"], node["is_alive"]) for node in json.loads(nodes)] == [(["default"], True)]


async def test_a_taken_key_answers_with_its_holder(run):
    """Running a script twice must not insert twice, and is no failure."""
    _, first, _ = await run("insert", "x", "--key", "k", "--json")
    code, second, _ = await run("insert", "x", "--key", "k", "--json")

    assert code == 0
    assert json.loads(second) == {"answer": "duplicate", "id": json.loads(first)["id"]}


async def test_list_filters_and_pages(run, connection):
    """With a million rows, the page is the only way to look."""
    for place in range(6):
        await connection.execute(
            "select gendurable.insert_job($1, queue => $2, correlation_key => $3, tags => $4)",
            "even" if place % 2 == 0 else "odd",
            "a" if place < 3 else "b",
            f"key:{place}",
            ["first"] if place == 0 else None,
        )

    async def keys(*arguments):
        code, out, _ = await run("list", "--json", *arguments)
        assert code == 0
        return [json.loads(line)["correlation_key"][-1] for line in out.splitlines()]

    assert await keys() == ["5", "4", "3", "2", "1", "0"]
    assert await keys("--machine", "even", "--queue", "a") == ["2", "0"]
    assert await keys("--tag", "first") == ["0"]
    assert await keys("--key-prefix", "key:4") == ["4"]
    assert await keys("--status", "done", "--status", "failed") == []
    assert await keys("--limit", "2") == ["5", "4"]
    _, out, _ = await run("list", "--limit", "2")
    last = out.splitlines()[-1].split()[0]
    assert await keys("--limit", "2", "--before", last) == ["3", "2"]


async def test_cancel_and_retry_answer_and_exit_by_what_happened(run, connection):
    """A script must be able to tell "done" from "too late"."""
    number = str(await connection.fetchval("select id from gendurable.insert_job('x', correlation_key => 'k')"))

    assert await run("cancel", "--key", "k", "--reason", "no stock") == (0, f"cancelled {number}\n", "")
    shown_fields = json.loads((await run("show", number, "--json"))[1])
    assert (shown_fields["status"], shown_fields["cancel_reason"]) == ("cancelled", "no stock")
    assert (await run("cancel", number))[0] == 1
    code, out, _ = await run("retry", number, "--json")
    assert (code, json.loads(out)) == (0, {"answer": "retried", "id": int(number)})
    code, out, _ = await run("retry", number, "--json")
    assert (code, json.loads(out)) == (1, {"answer": "not_retried", "id": int(number), "status": "runnable"})


async def test_a_retry_names_who_has_the_key_now(run, connection):
    """Two live rows of one order would be two orders."""
    old = await connection.fetchval("select id from gendurable.insert_job('x', correlation_key => 'k')")
    await run("cancel", str(old))
    new = await connection.fetchval("select id from gendurable.insert_job('x', correlation_key => 'k')")

    code, out, _ = await run("retry", str(old), "--json")
    assert (code, json.loads(out)) == (1, {"answer": "conflict", "id": old, "holder": new})


async def test_queues_and_machines_count_what_is_live(run, connection):
    """What is stuck, and what a deploy has to be able to run."""
    await connection.execute("select gendurable.insert_job('x', queue => 'mail')")
    await connection.execute("select gendurable.insert_job('x', queue => 'mail', schedule_in => interval '1 h')")

    (queue,) = json.loads((await run("queues", "--json"))[1])
    assert (queue["queue"], queue["runnable"], queue["scheduled"], queue["executing"]) == ("mail", 1, 1, 0)
    (machine,) = json.loads((await run("machines", "--json"))[1])
    assert machine == {"machine": "x", "version": 1, "step": "run", "status": "runnable", "rows": 2}
    code, out, _ = await run("queues")
    assert code == 0
    assert [line.split()[:3] for line in out.splitlines()] == [["QUEUE", "DUE", "SCHEDULED"], ["mail", "1", "1"]]


async def test_what_does_not_exist_exits_with_one(run):
    """A question with the answer "no" is neither misuse nor a lost database."""
    for arguments in (("show", "7"), ("show", "--key", "k"), ("cancel", "7"), ("cancel", "--key", "k"), ("retry", "7")):
        code, out, err = await run(*arguments)

        assert (code, out) == (1, "")
        assert err.startswith("Error: ")
        assert "Traceback" not in err


@pytest.mark.parametrize("command", FOR_PEOPLE)
async def test_an_unknown_database_is_told_in_one_line(run, dsn, command):
    """Not a screen of Python, and not the password."""
    arguments = {"insert": ["x"], "show": ["1"], "cancel": ["1"], "retry": ["1"]}.get(command, [])
    address = re.sub(r"//postgres@/\w+", f"//postgres:{PASSWORD}@/no_such_database", dsn)
    code, out, err = await run(command, *arguments, address=address)

    assert (code, out) == (4, "")
    assert len(err.splitlines()) == 1
    assert "no_such_database" in err
    assert PASSWORD not in err


async def test_a_schema_that_is_missing_names_the_command_to_run(run, empty_dsn):
    """The first thing that happens to a newcomer."""
    code, _, err = await run("queues", address=empty_dsn)

    assert code == 5
    assert "gendurable migrate up" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "1", "--key", "k"),
        ("show", "order:42"),
        ("show", "0"),
        ("show", "99999999999999999999"),
        ("cancel",),
        ("retry", "x"),
        ("list", "--limit", "0"),
        ("list", "--limit", "1001"),
        ("list", "--status", "lost"),
        ("insert",),
        ("insert", "x", "--args", "[1]"),
        ("insert", "x", "--args", "{"),
        ("insert", "x", "--args", '{"a": NaN}'),
        ("insert", "x", "--args", '{"a": "\\u0000"}'),
        ("insert", "x", "--delay", "5"),
        ("insert", "x", "--delay", "200y"),
        ("insert", "x", "--priority", "40000"),
        ("insert", "x", "--unique-for", "1h"),
        ("insert", "x", "--key", ""),
        ("insert", ""),
        ("probe", "--url", "ftp://h"),
        ("dev",),
        ("dev", "m", "--dsn", "postgresql://h/d"),
        ("worker", "--drain", "--once"),
        ("nonsense",),
    ],
)
def test_misuse_exits_with_two_before_anything_is_asked(refused, arguments):
    """No database is configured here, so a command that went on would exit with 3."""
    code, output = refused(*arguments)

    assert code == 2, output
    assert "Traceback" not in output


def test_a_key_in_the_place_of_an_id_is_explained(refused):
    """A bare number is an id; anything else was meant as a key."""
    assert "--key order:42" in refused("show", "order:42")[1]


def test_without_a_database_every_command_says_how_to_name_one(refused):
    """Exit code 3, as for every wrong configuration."""
    for command in ("queues", "machines", "nodes", "list"):
        code, output = refused(command)

        assert code == 3
        assert "GENDURABLE_DSN" in output


def test_a_probe_without_a_worker_fails(refused):
    """The container is not healthy when nothing listens."""
    code, output = refused("probe", "--port", "1", "--json")

    assert code == 1
    assert json.loads(output)["ok"] is False


def test_every_command_for_people_speaks_json():
    """Scripts should never have to parse a table."""
    for name in (*FOR_PEOPLE, "probe"):
        command = main.get_command(click.Context(main), name)

        assert command is not None
        assert "--json" in [option for parameter in command.params for option in parameter.opts]


def test_help_imports_no_command_and_no_user_code():
    """Shells ask for it at every tab; an entry point that is broken must not break it."""
    program = (
        "import sys\n"
        "from gendurable.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(sorted(m for m in sys.modules if m.startswith(('gendurable.cli.', 'starlette', 'uvicorn'))))\n"
    )
    shown_text = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean_environment()
    ).stdout

    assert shown_text.splitlines()[-1] == "[]"
    for name in COMMANDS:
        assert f"  {name} " in shown_text


def test_a_stored_text_cannot_steer_the_terminal():
    """States and errors come from strangers."""
    assert shown("\x1b[2Jgone\nnext") == r"\x1b[2Jgone\nnext"
    assert shown("\x1b[2Jgone\nnext", chars_max=None) == "\\x1b[2Jgone\nnext"
    assert shown(["a", "b"]) == "a, b"
    assert shown("x" * 100) == "x" * 59 + "…"
    assert shown(None) == "-"


async def test_dev_runs_a_module_and_reloads_it_at_a_change(tmp_path, dsn):
    """The loop of somebody who writes a step: save, and the new code runs; the server stays."""
    module = tmp_path / "mine.py"
    source = "import gendurable as gd\n@gd.job()\nasync def greet(ctx):\n    print('hello one', flush=True)\n"
    module.write_text(source)
    folder = folder_for_a_server()
    arguments = ("dev", "mine", "--embedded", str(folder))
    async with running(*arguments, cwd=tmp_path, environment={"GENDURABLE_DSN": dsn}) as process:
        await process.until("worker ready")
        address = ("--embedded", str(folder))
        async with running("insert", "greet", *address, cwd=tmp_path) as other:
            assert await other.ended() == 0, other.output
        await process.until("hello one")
        seen = len(process.lines)
        module.write_text(source.replace("one", "two"))
        await process.until("worker ready", after=seen)
        async with running("insert", "greet", *address, cwd=tmp_path) as other:
            assert await other.ended() == 0, other.output
        await process.until("hello two")
        process.send(signal.SIGTERM)
        code = await process.ended()

    assert code == 0
    assert not (folder / "data" / "postmaster.pid").exists()
    shutil.rmtree(folder)
    # The configured database is left alone: half-written code belongs on none that matters.
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("select count(*) from gendurable.nodes") == 0
    await connection.close()


async def test_dev_without_reloading_ends_with_its_worker(tmp_path):
    """There is no change to wait for, so a broken module must not leave it hanging."""
    (tmp_path / "mine.py").write_text("raise RuntimeError('half-written')")
    folder = folder_for_a_server()
    async with running("dev", "mine", "--no-reload", "--embedded", str(folder), cwd=tmp_path) as process:
        code = await process.ended()
    shutil.rmtree(folder)

    assert code == 3
    assert "half-written" in process.output


async def test_dev_without_watchfiles_names_the_package(tmp_path):
    """An optional package is no reason for a traceback."""
    (tmp_path / "watchfiles.py").write_text("raise ImportError('not installed')")
    environment = {"PYTHONPATH": f"{ISOLATION}:{tmp_path}"}
    async with running("dev", "mine", cwd=tmp_path, environment=environment) as process:
        code = await process.ended()

    assert code == 3
    assert "pip install 'gendurable[dev]'" in process.output
    assert "Traceback" not in process.output
