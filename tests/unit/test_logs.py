"""One format for every event, with the step's ids and without secrets."""

import contextlib
import contextvars
import io
import json
import logging
import time
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gendurable.logs import configure_logging, get_logger, mask_dsn, mask_text, step_context


@pytest.fixture
def stream():
    """Configure JSON logging into a stream."""
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    return stream


def events(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def connect(dsn: str, secret: str) -> None:
    raise ConnectionError(f"no way to {dsn} with password='{secret}'")


@contextlib.contextmanager
def inside_step(**fields: object):
    token = step_context.set(fields)
    try:
        yield
    finally:
        step_context.reset(token)


def test_our_events_and_the_users_have_one_format(stream):
    """People read one log, whoever wrote the line."""
    get_logger("gendurable.test").info("lease lost", instance_id=7)
    logging.getLogger("shop").info("sold %d", 3, extra={"order": 5})
    structlog.get_logger("other").info("bound", item=1)
    ours, stdlib, users_structlog = events(stream)

    assert {**ours, "timestamp": ""} == {
        "event": "lease lost",
        "level": "info",
        "logger": "gendurable.test",
        "timestamp": "",
        "instance_id": 7,
    }
    assert (stdlib["event"], stdlib["order"], stdlib["logger"]) == ("sold 3", 5, "shop")
    assert (users_structlog["event"], users_structlog["item"], users_structlog["logger"]) == ("bound", 1, "other")
    assert str(stdlib["timestamp"]).endswith("Z")


def test_everything_logged_inside_a_step_carries_its_ids(stream):
    """Without them, a user's line cannot be found by instance."""
    with inside_step(instance_id=42, machine="Checkout", step="ship", attempt=1, queue="q", tags=["a"]):
        logging.getLogger("shop").warning("stdlib")
        get_logger("gendurable.test").info("ours")
        structlog.get_logger().info("structlog")
    logging.getLogger("shop").warning("outside")
    *inside, outside = events(stream)

    expected = {"instance_id": 42, "machine": "Checkout", "step": "ship", "attempt": 1, "queue": "q", "tags": ["a"]}
    assert all(event | expected == event for event in inside)
    assert not expected.keys() & outside.keys()


def test_ids_belong_to_the_context_that_set_them(stream):
    """Steps run side by side on one loop; neither may show the other's ids."""
    first, second = contextvars.copy_context(), contextvars.copy_context()
    first.run(step_context.set, {"instance_id": 1})
    second.run(step_context.set, {"instance_id": 2})
    for context in (first, second, first):
        context.run(logging.getLogger("shop").info, "x")

    assert [event["instance_id"] for event in events(stream)] == [1, 2, 1]


def test_a_field_of_the_event_wins_over_the_steps(stream):
    """A step may log about another instance."""
    with inside_step(instance_id=1, machine="M"):
        get_logger("gendurable.test").info("cancelled child", instance_id=2)

    assert events(stream)[0]["instance_id"] == 2
    assert events(stream)[0]["machine"] == "M"


def test_structlog_context_variables_are_kept(stream):
    """Users who bind a request id find it again."""
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        logging.getLogger("shop").info("x")

    assert events(stream)[0]["request_id"] == "r1"


def test_fields_named_like_parts_of_a_log_record_are_harmless(stream):
    """Stdlib logging refuses extras called name, module or args."""
    get_logger("gendurable.test").info("50% done", name="n", module="m", args=1, msg="x", process=3, level="high")
    event = events(stream)[0]

    assert (event["event"], event["name"], event["module"], event["process"]) == ("50% done", "n", "m", 3)
    assert (event["level"], event["level_"]) == ("info", "high")


def test_the_level_holds_for_all_loggers(stream):
    """Debug events cost nothing when they are not shown."""
    get_logger("gendurable.test").debug("no")
    logging.getLogger("shop").debug("no")
    configure_logging("debug", "json", stream)
    get_logger("gendurable.test").debug("yes")

    assert [event["event"] for event in events(stream)] == ["yes"]


def test_configuring_again_does_not_print_twice(stream):
    """The command line configures early and again when the settings are loaded."""
    second = io.StringIO()
    configure_logging("info", "json", second)
    get_logger("gendurable.test").info("once")

    assert stream.getvalue() == ""
    assert len(events(second)) == 1


def test_auto_is_json_unless_the_stream_is_a_terminal():
    """Containers collect JSON; people at a terminal read text."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = io.StringIO(), Terminal()
    for target in (plain, terminal):
        configure_logging("info", "auto", target)
        get_logger("gendurable.test").info("hello", instance_id=7)

    assert json.loads(plain.getvalue())["event"] == "hello"
    assert "hello" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_secret_is_printed_wherever_it_stands(log_format):
    """Keys, messages, arguments, nested values, objects and tracebacks, from either kind of logger."""
    secret, dsn = "hunter2", "postgres://app:hunter2@db/shop"
    stream = io.StringIO()
    configure_logging("info", log_format, stream)
    ours, users = get_logger("gendurable.test"), logging.getLogger("shop")
    ours.info("connecting to %s", dsn, dsn=dsn, password=secret, api_key=secret, nested={"token": secret, "l": [dsn]})
    ours.info(dsn, where=Path("x"), problem=ValueError(dsn), other={"deep": ({"client_secret": [secret]},)})
    users.info("connecting to %s", dsn, extra={"auth_token": secret, "DB_PASSWORD": secret})
    with inside_step(instance_id=1, note=dsn):
        users.info("in a step")
    for logger in (ours, users):
        try:
            connect(dsn, secret)
        except ConnectionError:
            logger.exception("failed", stack_info=True)

    printed = stream.getvalue()
    assert secret not in printed
    assert "postgres://app:***@db/shop" in printed
    assert "ConnectionError" in printed


def test_a_process_that_configured_nothing_still_prints_readable_lines_without_secrets():
    """The client runs inside other people's programs, with their formatter."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("gendurable.test").addHandler(handler)
    try:
        get_logger("gendurable.test").warning("lease lost", instance_id=7, token="x")
    finally:
        logging.getLogger("gendurable.test").removeHandler(handler)

    assert stream.getvalue() == "WARNING lease lost instance_id=7 token=***\n"


def test_numbers_under_a_secrets_name_are_shown(stream):
    """token_count is a count."""
    get_logger("gendurable.test").info("x", token_count=5, correlation_key="order:42", has_password=True)
    event = events(stream)[0]

    assert (event["token_count"], event["correlation_key"], event["has_password"]) == (5, "order:42", True)


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:p@h:5432/db?sslmode=require", "postgresql://u:***@h:5432/db?sslmode=require"),
        ("postgresql://u:p@ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p/w?x@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql://h:5432/db?application_name=a@b", "postgresql://h:5432/db?application_name=a@b"),
        (
            "postgresql:///db?host=/tmp&user=u&password=p%40&port=1",
            "postgresql:///db?host=/tmp&user=u&password=***&port=1",
        ),
        ("postgresql://h/db?sslpassword=p", "postgresql://h/db?sslpassword=***"),
        ("host=h password=p dbname=d", "host=h password=*** dbname=d"),
        ("host=h password='p q\\'r' dbname=d", "host=h password=*** dbname=d"),
        ("", ""),
    ],
)
def test_a_dsn_is_shown_whole_but_for_its_passwords(dsn, shown):
    """Which database it was is worth knowing; people put raw signs into passwords."""
    assert mask_dsn(dsn) == shown


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=30))
def test_no_password_survives_masking(password):
    """Even one that makes the URL malformed."""
    marked = f"{password}SECRET{password}"

    assert "SECRET" not in mask_dsn(f"postgres://user:{marked}@host/db")
    assert "SECRET" not in mask_text(f"cannot reach postgres://user:{marked}@host/db now")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see https://u:p@example.org/x", "see https://u:***@example.org/x"),
        ("see http://example.org:80/x by a@b.org", "see http://example.org:80/x by a@b.org"),
        ('{"password": 1}', '{"password": 1}'),
        ("a=1 token=abc, b=2", "a=1 token=***, b=2"),
        ("password = 'cut off", "password = *** off"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_text_keeps_what_is_no_secret(text, shown):
    """A log that hides too much is of no use either."""
    assert mask_text(text) == shown


@pytest.mark.parametrize("part", ["a.", "postgres://:", "x://y:", "password='", "token=", "a_password"])
def test_no_text_takes_long_to_mask(part):
    """A user's megabyte in a log line must not stop the event loop; quadratic work would take minutes."""
    text = part * (200_000 // len(part)) + "://="
    started = time.process_time()
    mask_text(text)

    assert time.process_time() - started < 2
