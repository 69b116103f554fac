"""Options of an insert: what each becomes before it travels."""

import datetime as dt

import msgspec
import pytest

import gendurable as gd
from gendurable.calls import due_by_queue, rows_of
from gendurable.errors import InvalidValueError
from gendurable.model.insert import InsertOptions

AT = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@gd.job(queue="mail")
async def mail(_ctx: gd.Context, n: int = 0) -> None:
    """Do nothing."""


def common(**options: object) -> dict[str, object]:
    checked = InsertOptions.of(options)
    return msgspec.json.decode(checked.common(fsm="mail", version=1, step="run", queue="mail"))


def test_what_is_left_out_is_the_definitions():
    """An insert without options sends nothing but what it must."""
    assert common() == {"fsm": "mail", "version": 1, "step": "run", "queue": "mail", "priority": 0}


def test_every_option_has_its_place():
    """The names are those the statements read."""
    assert common(queue="q", priority=-1, delay=1.5, concurrency_key="k", parent_id=7, step="s", tags=["a"]) == {
        "fsm": "mail",
        "version": 1,
        "step": "s",
        "queue": "q",
        "priority": -1,
        "delay_ms": 1500,
        "concurrency_key": "k",
        "parent_id": 7,
        "tags": ["a"],
    }
    assert common(metadata={"a": [1]})["metadata"] == {"a": [1]}
    assert common(at=AT)["at"] == "2030-01-01T00:00:00Z"
    assert (common(deadline=5)["deadline_ms"], common(expires_at=5)["expires_ms"]) == (5000, 5000)
    assert "deadline_at" in common(deadline=AT)
    assert "expires_at" in common(expires_at=AT)


def test_scopes_and_reservations():
    """unique_for reserves beyond the end, so its scope is ever."""
    assert InsertOptions.of({"correlation_key": "k"}).scope is gd.Scope.LIVE
    assert InsertOptions.of({"correlation_key": "k", "scope": "none"}).scope is gd.Scope.NONE
    reserved = InsertOptions.of({"correlation_key": "k", "unique_for": 60})
    assert (reserved.scope, reserved.unique_ms) == (gd.Scope.EVER, 60_000)


def test_an_unknown_option_is_refused_with_those_there_are():
    """E33: a misspelt option that was ignored would be an order without its deadline."""
    with pytest.raises(
        InvalidValueError, match=r"no options dead_line, prio; it has at, concurrency_key, .*unique_for"
    ):
        InsertOptions.of({"prio": 1, "dead_line": 5})


def test_rows_share_their_common_parts():
    """A thousand rows of one kind send what they have in common once."""
    own = mail.with_args(n=3).with_options(priority=5, correlation_key="k")
    commons, rows = rows_of([mail.with_args(n=1), mail.with_args(n=2), own], InsertOptions.of({"queue": "q"}))

    assert [row.common for row in rows] == [1, 1, 2]
    assert [msgspec.json.decode(text)["queue"] for text in commons] == ["q", "mail"]
    assert [row.correlation_key for row in rows] == [None, None, "k"]


def test_the_earliest_row_of_a_queue_is_its_wake_up():
    """Duplicates wake nobody, and a later row does not hide an earlier one."""
    requests = [
        mail.with_args().with_options(delay=5),
        mail.with_args().with_options(delay=1),
        mail.with_args().with_options(queue="other", at=dt.datetime(1999, 1, 1, tzinfo=dt.UTC)),
        mail.with_args().with_options(queue="taken", correlation_key="k"),
    ]
    answers = [gd.Inserted(1), gd.Inserted(2), gd.Inserted(3), gd.Duplicate(9)]

    assert due_by_queue(requests, InsertOptions(), answers) == {"mail": 1.0, "other": 0.0}
