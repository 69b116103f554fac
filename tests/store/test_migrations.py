"""The schema's way up and down, many runs at once, and what a worker accepts."""

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys

import asyncpg
import pytest
from click.testing import CliRunner

from gendurable.cli import main
from gendurable.errors import (
    ConfigurationError,
    InvalidValueError,
    MigrationError,
    SchemaMismatchError,
    StoreUnavailableError,
)
from gendurable.store import migrating_session
from gendurable.store.database import ConnectOptions, Database
from gendurable.store.migrating_session import open_session
from gendurable.store.migrations import (
    check_compatible,
    load_migrations,
    migrate_down,
    migrate_up,
    migration_sql,
    migration_status,
    shipped_migrations,
    verify,
)

ALL = [migration.number for migration in shipped_migrations()]
VERSION = "0.1.0"
HEADER = "-- A table.\n-- oldest worker: 0.1.0\n-- phase: expand\n"


@contextlib.asynccontextmanager
async def connected(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close(timeout=5)


async def run_sql(dsn, text):
    async with connected(dsn) as connection:
        return await connection.fetch(text)


async def everything_in(dsn):
    """Every relation, type and function outside the system's schemas."""
    rows = await run_sql(
        dsn,
        """
        select n.nspname || '.' || o.name as name
        from (
            select relnamespace as home, relname as name from pg_class
            union all select typnamespace, typname from pg_type
            union all select pronamespace, proname from pg_proc
        ) as o
        join pg_namespace as n on n.oid = o.home
        where n.nspname !~ '^(pg_|information_schema)'
        """,
    )
    return sorted(row["name"] for row in rows)


@pytest.fixture
def folder(tmp_path):
    """A folder with two migrations that can be taken back."""
    (tmp_path / "0001_first.sql").write_text(HEADER + "create table gendurable.one (id int primary key, note text);\n")
    (tmp_path / "0001_first.down.sql").write_text("drop table gendurable.one;\n")
    (tmp_path / "0002_second.sql").write_text(HEADER + "create table gendurable.two (id int);\n")
    (tmp_path / "0002_second.down.sql").write_text("drop table gendurable.two;\n")
    return tmp_path


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command line in an empty folder with nothing configured."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "PGHOST", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words: CliRunner().invoke(main, ["migrate", *words])


@pytest.fixture
async def plain_role(empty_dsn):
    """A role that may connect and nothing else, and the address that uses it."""
    name = f"plain_{secrets.token_hex(4)}"
    await run_sql(empty_dsn, f"create role {name}")
    yield name, f"{empty_dsn}&role={name}"
    async with connected(empty_dsn) as connection:
        await connection.execute(f"drop owned by {name}; drop role {name}")


async def test_up_applies_everything_once(empty_dsn):
    """The second run is what every restart of a fleet does."""
    assert await migrate_up(empty_dsn) == ALL
    assert await migrate_up(empty_dsn) == []
    assert await verify(empty_dsn) == []


async def test_up_stops_where_it_is_told(empty_dsn):
    """A release may want its contract migration later than its code."""
    assert await migrate_up(empty_dsn, to=1) == [1]
    assert [status.state for status in await migration_status(empty_dsn)] == ["applied"] + ["pending"] * (len(ALL) - 1)
    assert await migrate_up(empty_dsn) == ALL[1:]


async def test_there_is_no_way_to_a_number_without_a_file(empty_dsn):
    """A misspelt number must not read as: all of them."""
    with pytest.raises(InvalidValueError, match="there is no migration 99"):
        await migrate_up(empty_dsn, to=99)
    with pytest.raises(InvalidValueError, match="there is no migration 0"):
        await migrate_up(empty_dsn, to=0)


async def test_a_dry_run_changes_nothing(empty_dsn):
    """It is run against production, by a role that may be allowed everything."""
    before = await everything_in(empty_dsn)

    assert await migrate_up(empty_dsn, dry_run=True) == ALL
    assert await everything_in(empty_dsn) == before

    await migrate_up(empty_dsn)
    before = await everything_in(empty_dsn)

    assert await migrate_down(empty_dsn, to=0, dry_run=True) == ALL[::-1]
    assert await everything_in(empty_dsn) == before


async def test_down_leaves_nothing_but_the_record(empty_dsn):
    """A down-script that forgets a table makes the next run up fail."""
    await migrate_up(empty_dsn)

    assert await migrate_down(empty_dsn, to=0) == ALL[::-1]
    assert {name for name in await everything_in(empty_dsn) if not name.startswith("gendurable.migrations")} <= {
        "gendurable._migrations"
    }
    assert await migrate_up(empty_dsn) == ALL
    assert await verify(empty_dsn) == []


async def test_every_migration_can_be_taken_back_alone(empty_dsn):
    """A release is rolled back one file at a time, each leaving what the one before it made."""
    for number in ALL:
        await migrate_up(empty_dsn, to=number)
        before = await everything_in(empty_dsn)
        if number > 1:
            await migrate_down(empty_dsn, to=number - 1)
            await migrate_up(empty_dsn, to=number)

        assert await everything_in(empty_dsn) == before


async def test_ten_processes_at_once_apply_each_file_once(empty_dsn):
    """A fleet starts all its containers together, each with `migrate up` first."""
    program = (
        "import sys; from gendurable.cli import main, migrate_commands;"
        "print('ready', flush=True); sys.stdin.readline(); main()"
    )
    command = [sys.executable, "-c", program, "migrate", "up", "--dsn", empty_dsn]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen(command, **pipes) for _ in range(10)]
    assert [run.stdout.readline() for run in runs] == ["ready\n"] * 10
    for run in runs:
        run.stdin.write("go\n")
        run.stdin.flush()
    ends = [await asyncio.to_thread(run.communicate, timeout=60) for run in runs]

    assert [(run.returncode, errors) for run, (_, errors) in zip(runs, ends, strict=True)] == [(0, "")] * 10
    applied = [line for output, _ in ends for line in output.splitlines() if line.startswith("applied")]
    assert applied == [f"applied {migration.label}" for migration in shipped_migrations()]
    assert await verify(empty_dsn) == []


async def test_a_concurrent_index_build_does_not_wait_for_the_runs_that_wait_for_it(empty_dsn, folder):
    """It waits for every older snapshot, and a run waiting for the lock in one statement would hold one: a circle."""
    (folder / "0003_index.sql").write_text(
        HEADER
        + "-- transaction: none\n"
        + "drop index concurrently if exists gendurable.one_note;\n"
        + "-- Looked up by note; a comment with a semicolon;\n"
        + "create index concurrently one_note on gendurable.one (note);\n"
    )
    (folder / "0003_index.down.sql").write_text(
        "-- transaction: none\ndrop index concurrently if exists gendurable.one_note;\n"
    )
    migrations = load_migrations(folder)

    runs = [migrate_up(empty_dsn, migrations=migrations, lock_wait_s=30) for _ in range(5)]
    applied = await asyncio.gather(*runs)

    assert sorted(applied) == [[], [], [], [], [1, 2, 3]]
    assert await verify(empty_dsn, migrations=migrations) == []
    assert await migrate_down(empty_dsn, to=2, migrations=migrations) == [3]
    assert await migrate_up(empty_dsn, migrations=migrations) == [3]


async def test_a_run_gives_up_when_another_does_not_end(empty_dsn):
    """A hung run elsewhere must show, not hang the whole fleet."""
    async with open_session(empty_dsn, "gendurable") as session:
        await session.become_the_one(1)

        with pytest.raises(MigrationError, match="another run has been migrating"):
            await migrate_up(empty_dsn, lock_wait_s=0.2)


async def test_schemas_of_one_database_do_not_wait_for_each_other(empty_dsn):
    """The lock is the schema's."""
    async with open_session(empty_dsn, "gendurable") as session:
        await session.become_the_one(1)

        assert await migrate_up(empty_dsn, schema="other", lock_wait_s=0.2) == ALL


async def test_a_session_without_the_lock_writes_nothing(empty_dsn):
    """A pooler in transaction mode hands each transaction to another session, and the lock stays behind."""
    async with open_session(empty_dsn, "gendurable") as owner, open_session(empty_dsn, "gendurable") as stranger:
        await owner.become_the_one(1)

        with pytest.raises(MigrationError, match="pooler in transaction mode"):
            await stranger.prepare()
    assert await everything_in(empty_dsn) == []


async def test_a_file_that_fails_leaves_those_before_it(empty_dsn, folder):
    """One transaction per file, and the message names the file."""
    (folder / "0002_second.sql").write_text(HEADER + "create table gendurable.two (id int); select 1 / 0;\n")
    migrations = load_migrations(folder)

    with pytest.raises(MigrationError, match="migration 0002_second failed: division by zero"):
        await migrate_up(empty_dsn, migrations=migrations)

    assert [status.state for status in await migration_status(empty_dsn, migrations=migrations)] == [
        "applied",
        "pending",
    ]
    assert "gendurable.two" not in await everything_in(empty_dsn)


async def test_a_file_does_not_wait_long_for_a_busy_table(empty_dsn, folder, monkeypatch):
    """While it waits, every later statement on that table waits behind it."""
    monkeypatch.setattr(migrating_session, "_TABLE_LOCK_WAIT", "50ms")
    await migrate_up(empty_dsn, migrations=load_migrations(folder))
    (folder / "0003_third.sql").write_text(HEADER + "alter table gendurable.one add column more text;\n")
    async with connected(empty_dsn) as reader, reader.transaction():
        await reader.fetch("select count(*) from gendurable.one")

        with pytest.raises(MigrationError, match="kept a table locked for 50ms"):
            await migrate_up(empty_dsn, migrations=load_migrations(folder))
    assert await migrate_up(empty_dsn, migrations=load_migrations(folder)) == [3]


async def test_an_edited_file_is_named_and_nothing_is_applied(empty_dsn, folder):
    """Two databases that both say "0001" would differ for ever."""
    await migrate_up(empty_dsn, to=1, migrations=load_migrations(folder))
    (folder / "0001_first.sql").write_text(HEADER + "create table gendurable.one (id bigint);\n")
    edited = load_migrations(folder)

    with pytest.raises(MigrationError, match="migration 0001_first was edited after it was applied"):
        await migrate_up(empty_dsn, migrations=edited)
    assert [status.state for status in await migration_status(empty_dsn, migrations=edited)] == ["edited", "pending"]
    assert any("0001_first was edited" in problem for problem in await verify(empty_dsn, migrations=edited))


async def test_a_renamed_file_is_refused(empty_dsn, folder):
    """Two branches that both add 0002 meet here."""
    await migrate_up(empty_dsn, migrations=load_migrations(folder))
    (folder / "0002_second.sql").rename(folder / "0002_other.sql")
    (folder / "0002_second.down.sql").unlink()
    renamed = load_migrations(folder)

    with pytest.raises(MigrationError, match="0002_other was applied as 0002_second"):
        await migrate_up(empty_dsn, migrations=renamed)
    with pytest.raises(MigrationError, match="0002_second came with another version"):
        await migrate_down(empty_dsn, to=0, migrations=renamed)
    async with connected(empty_dsn) as connection:
        with pytest.raises(SchemaMismatchError, match=r"lacks 0002_other"):
            await check_compatible(connection, schema="gendurable", version=VERSION, migrations=renamed)


async def test_a_gap_in_the_record_is_refused(empty_dsn, folder):
    """Somebody deleted a row by hand; what it made may or may not be there."""
    migrations = load_migrations(folder)
    await migrate_up(empty_dsn, migrations=migrations)
    await run_sql(empty_dsn, "delete from gendurable.migrations where number = 1")

    with pytest.raises(MigrationError, match="0001 is missing from the record, though 0002 is applied"):
        await migrate_up(empty_dsn, migrations=migrations)


async def test_what_cannot_be_taken_back_is_refused_before_anything_is(empty_dsn, folder):
    """Half a way down is worse than none."""
    (folder / "0001_first.down.sql").unlink()
    migrations = load_migrations(folder)
    await migrate_up(empty_dsn, migrations=migrations)

    with pytest.raises(MigrationError, match="0001_first has no script"):
        await migrate_down(empty_dsn, to=0, migrations=migrations)
    assert "gendurable.two" in await everything_in(empty_dsn)


async def test_an_older_version_leaves_newer_migrations_alone(empty_dsn, folder):
    """In a rolling deploy both versions run `migrate up`."""
    newer = load_migrations(folder)
    await migrate_up(empty_dsn, migrations=newer)

    assert await migrate_up(empty_dsn, migrations=newer[:1]) == []
    assert await verify(empty_dsn, migrations=newer[:1]) == []
    assert [s.state for s in await migration_status(empty_dsn, migrations=newer[:1])] == ["applied", "unknown"]
    with pytest.raises(MigrationError, match="0002_second came with another version"):
        await migrate_down(empty_dsn, to=0, migrations=newer[:1])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1_a.sql": ""}, "1_a.sql is no name of a migration"),
        ({"0001_a.sql": "select 1;"}, "does not say '-- oldest worker"),
        ({"0001_a.sql": "-- oldest worker: 1.0\n-- phase: expand\n"}, "does not say '-- oldest worker"),
        ({"0001_a.sql": "-- oldest worker: 1.0.0\n-- phase: explode\n"}, "does not say '-- phase"),
        ({"0001_a.sql": HEADER + "-- transaction: some\n"}, "only 'none' means something"),
        ({"0001_a.sql": HEADER + "-- transaction: none\ndo $$begin\nnull;\nend$$;"}, "defines a function outside"),
        ({"0002_a.sql": HEADER}, "must be 1, 2, 3"),
        ({"0001_a.sql": HEADER, "0003_b.sql": HEADER}, "must be 1, 2, 3"),
        ({"0001_a.sql": HEADER, "0001_b.sql": HEADER}, "two migrations have the number 1"),
        ({"0001_a.sql": HEADER, "0001_b.down.sql": ""}, "takes back a migration that does not exist"),
    ],
)
def test_a_folder_that_cannot_be_meant_is_refused(tmp_path, files, message):
    """A file that is silently skipped is found in production."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    with pytest.raises(MigrationError, match=message):
        load_migrations(tmp_path)


def test_the_shipped_migrations_can_all_be_taken_back():
    """A release without a way back cannot be rolled back."""
    assert [migration.label for migration in shipped_migrations() if migration.down is None] == []


async def test_another_schema_gets_everything_under_its_own_name(empty_dsn):
    """Two applications share a database; nothing may point at the default schema."""
    assert await migrate_up(empty_dsn, schema="jobs_2") == ALL
    assert await verify(empty_dsn, schema="jobs_2") == []
    assert {name.split(".")[0] for name in await everything_in(empty_dsn)} == {"jobs_2"}
    assert await migrate_up(empty_dsn) == ALL
    assert await migrate_down(empty_dsn, to=0, schema="jobs_2") == ALL[::-1]
    assert await verify(empty_dsn) == []


async def test_a_schema_name_that_needs_quotes_is_refused(empty_dsn):
    """It goes into the text of every statement."""
    with pytest.raises(ConfigurationError, match="cannot be used"):
        await migrate_up(empty_dsn, schema='a"; drop table x; --')


@pytest.mark.parametrize("schema", ["gendurable", "other"])
async def test_the_printed_sql_does_what_a_run_does(empty_dsn, schema):
    """Where only an administrator may create tables, this is what he runs."""
    text = migration_sql(schema)
    assert text.startswith("\\set ON_ERROR_STOP on\n")

    await run_script(empty_dsn, text)

    assert await verify(empty_dsn, schema=schema) == []
    assert {status.state for status in await migration_status(empty_dsn, schema=schema)} == {"applied"}


async def test_the_printed_sql_can_go_on_from_what_is_applied(empty_dsn):
    """The second release prints only its own files."""
    await migrate_up(empty_dsn, to=1)

    await run_script(empty_dsn, migration_sql(after=1))

    assert await verify(empty_dsn) == []


async def run_script(dsn, text):
    async with connected(dsn) as connection:
        await connection.execute(text.removeprefix("\\set ON_ERROR_STOP on\n"))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("drop index gendurable.gen_durable_pick", "index gen_durable.gen_durable_pick is missing"),
        ("alter table gendurable.gen_durable drop column tags", "column gen_durable.tags is missing"),
        ("drop table gendurable.queues", "table queues is missing"),
        (
            "alter table gendurable.gen_durable drop constraint gen_durable_locked_iff_executing",
            "constraint gen_durable.gen_durable_locked_iff_executing is missing",
        ),
        ("drop function gendurable.insert_job", "function insert_job"),
        ("alter type gendurable.durable_status rename value 'done' to 'ended'", "type durable_status differs"),
        ("alter table gendurable.gen_durable alter column queue drop default", "column gen_durable.queue differs"),
        ("alter table gendurable.gen_durable alter column fsm drop not null", "column gen_durable.fsm differs"),
        (
            "update pg_index set indisvalid = false where indexrelid = 'gendurable.gen_durable_gc'::regclass",
            "index gen_durable.gen_durable_gc is there but invalid",
        ),
        ("delete from gendurable.migrations where number = 2", "migration 0002_insert_job is not applied"),
    ],
)
async def test_verify_names_what_is_missing_or_different(dsn, damage, problem):
    """A restore that lost an index works, and slowly."""
    await run_sql(dsn, damage)
    before = await everything_in(dsn)

    assert [found for found in await verify(dsn) if found.startswith(problem)] != []
    assert await everything_in(dsn) == before


async def test_verify_lets_operators_tune_and_add(dsn):
    """An index of their own and other vacuum settings are nobody's mistake."""
    await run_sql(dsn, "create index mine on gendurable.gen_durable (fsm)")
    await run_sql(dsn, "alter table gendurable.gen_durable set (autovacuum_vacuum_threshold = 500)")

    assert await verify(dsn) == []


async def test_a_worker_accepts_the_schema_it_came_with(dsn):
    """Through a pool as well as on a connection."""
    async with connected(dsn) as connection:
        await check_compatible(connection, schema="gendurable", version=VERSION)
    database = Database(ConnectOptions(dsn=dsn))
    await database.open()
    try:
        await check_compatible(database, schema="gendurable", version=VERSION)
    finally:
        await database.close()


async def test_a_worker_refuses_a_database_without_a_schema(empty_dsn):
    """The message is what an operator reads first on a new machine."""
    async with connected(empty_dsn) as connection:
        with pytest.raises(SchemaMismatchError, match="run `gendurable migrate up --schema other`"):
            await check_compatible(connection, schema="other", version=VERSION)


async def test_a_worker_refuses_a_schema_that_is_too_old(empty_dsn):
    """Its statements would fail one by one instead."""
    await migrate_up(empty_dsn, to=1)

    async with connected(empty_dsn) as connection:
        with pytest.raises(SchemaMismatchError, match=r"lacks 0002_insert_job.*run `gendurable migrate up`"):
            await check_compatible(connection, schema="gendurable", version=VERSION)


@pytest.mark.parametrize("oldest_worker", ["0.1.1", "0.2.0", "1.0.0", "0.10.0"])
async def test_a_worker_refuses_a_schema_that_no_longer_serves_it(dsn, oldest_worker):
    """A contract migration took away what its statements name."""
    await add_newer_migration(dsn, oldest_worker)

    async with connected(dsn) as connection:
        with pytest.raises(
            SchemaMismatchError, match=rf"upgrade this worker \(.*>={oldest_worker}'.*down --to {len(ALL)}"
        ):
            await check_compatible(connection, schema="gendurable", version="0.1.0")


@pytest.mark.parametrize(
    ("oldest_worker", "version"), [("0.1.0", "0.1.0"), ("0.9.0", "0.10.0"), ("0.1.0", "0.1.0.dev3")]
)
async def test_a_worker_accepts_a_newer_schema_that_still_serves_it(dsn, oldest_worker, version):
    """In a rolling deploy the schema moves first."""
    await add_newer_migration(dsn, oldest_worker)

    async with connected(dsn) as connection:
        await check_compatible(connection, schema="gendurable", version=version)


async def add_newer_migration(dsn, oldest_worker):
    async with connected(dsn) as connection:
        await connection.execute(
            "insert into gendurable.migrations (number, name, checksum, oldest_worker, phase)"
            " values ($1, 'newer', 'f00', $2, 'contract')",
            len(ALL) + 1,
            oldest_worker,
        )


async def test_a_role_that_may_not_create_gets_told_what_to_do(empty_dsn, plain_role):
    """The application's role is rarely the owner."""
    _, role_dsn = plain_role

    with pytest.raises(MigrationError, match="grant this one CREATE on the database") as caught:
        await migrate_up(role_dsn)
    assert "permission denied" in str(caught.value)
    assert await everything_in(empty_dsn) == []


async def test_a_role_that_may_read_is_enough_to_check(empty_dsn, plain_role):
    """A worker needs no right to create, nor does a run that finds nothing to do."""
    name, role_dsn = plain_role
    await migrate_up(empty_dsn)
    await run_sql(empty_dsn, f"grant usage on schema gendurable to {name}")
    await run_sql(empty_dsn, f"grant select on gendurable.migrations to {name}")

    assert await migrate_up(role_dsn) == []
    async with connected(role_dsn) as connection:
        await check_compatible(connection, schema="gendurable", version=VERSION)
    with pytest.raises(MigrationError, match=r"building schema .* failed: permission denied"):
        await verify(role_dsn)


async def test_a_schema_made_by_an_administrator_is_enough(empty_dsn, plain_role):
    """Then the role needs no right on the database."""
    name, role_dsn = plain_role
    await run_sql(empty_dsn, f"create schema gendurable authorization {name}")

    assert await migrate_up(role_dsn) == ALL
    assert {status.applied_by for status in await migration_status(empty_dsn)} == {name}


async def test_an_unreachable_database_is_worth_retrying():
    """The driver's own errors stay inside."""
    with pytest.raises(StoreUnavailableError):
        await migrate_up("postgresql://nobody@127.0.0.1:1/nothing")


def test_the_commands_go_up_and_down(run, empty_dsn):
    """What an operator types, in order."""
    shown = [migration.label for migration in shipped_migrations()]

    assert run("up", "--dry-run", "--dsn", empty_dsn).output.splitlines() == [f"would apply {name}" for name in shown]
    assert run("verify", "--dsn", empty_dsn).exit_code == 5
    assert run("up", "--dsn", empty_dsn).output.splitlines() == [f"applied {name}" for name in shown]
    assert run("up", "--dsn", empty_dsn).output == "schema gendurable is up to date\n"
    assert json.loads(run("verify", "--json", "--dsn", empty_dsn).output) == {"problems": []}
    statuses = json.loads(run("status", "--json", "--dsn", empty_dsn).output)
    assert [(status["number"], status["state"]) for status in statuses] == [(number, "applied") for number in ALL]
    assert run("status", "--dsn", empty_dsn).output.count(" applied ") == len(ALL)
    assert run("down", "--to", "1", "--dry-run", "--dsn", empty_dsn).output.splitlines() == [
        f"would take back {name}" for name in reversed(shown[1:])
    ]
    assert run("down", "--to", "1", "--yes", "--dsn", empty_dsn).exit_code == 0
    assert run("verify", "--dsn", empty_dsn).exit_code == 5


def test_down_asks_first(run, dsn):
    """It loses every job there is."""
    result = run("down", "--to", "0", "--dsn", dsn)

    assert result.exit_code == 1
    assert "lose what they hold?" in result.output
    assert run("up", "--dsn", dsn).output == "schema gendurable is up to date\n"


def test_the_sql_command_asks_no_database(run):
    """It runs where none can be reached."""
    result = run("sql", "--schema", "other")

    assert result.exit_code == 0
    assert "create table other.gen_durable (" in result.output
    assert "gendurable." not in result.output


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (("up", "--to", "x"), 2),
        (("up", "--to", "99"), 2),
        (("down",), 2),
        (("up",), 3),
        (("up", "--schema", "No"), 3),
        (("up", "--dsn", "postgresql://nobody@127.0.0.1:1/nothing"), 4),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(run, words, exit_code):
    """Scripts and orchestrators decide by it."""
    result = run(*words)

    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
