"""JSON as Postgres will store it: what is refused, and where the error points."""

import dataclasses
import datetime as dt
import decimal
import uuid

import msgspec
import pytest

from gendurable.errors import InvalidValueError, StateDecodeError
from gendurable.model.codec import (
    DEPTH_MAX,
    VALUE_BYTES_MAX,
    TypedDecoder,
    check_key,
    check_name,
    check_text,
    convert,
    decode_json,
    encode_json,
    encode_object,
)


class Point(msgspec.Struct):
    x: float
    y: object = None


@dataclasses.dataclass
class Pair:
    left: object
    right: object


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, True, None, "é☃\U0001f600"]}, '{"a":[1,2.5,true,null,"é☃\U0001f600"]}'),
        (Point(x=1, y=Pair(1, (2, 3))), '{"x":1,"y":{"left":1,"right":[2,3]}}'),
        ({"at": dt.datetime(2030, 1, 2, tzinfo=dt.UTC)}, '{"at":"2030-01-02T00:00:00Z"}'),
        ({"amount": decimal.Decimal("1.10")}, '{"amount":"1.10"}'),
        ({"id": uuid.UUID(int=5)}, '{"id":"00000000-0000-0000-0000-000000000005"}'),
        ({1: "a"}, '{"1":"a"}'),
        ("\\u0000 as text is fine", '"\\\\u0000 as text is fine"'),
        ("the word null", '"the word null"'),
        (nested(DEPTH_MAX), "[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX),
        ([None, nested(DEPTH_MAX - 1)], "[null," + "[" * (DEPTH_MAX - 1) + "1" + "]" * DEPTH_MAX),
        ([{}] * 200, "[" + ",".join(["{}"] * 200) + "]"),
        (2**53 + 1, "9007199254740993"),
    ],
)
def test_what_json_can_hold_is_encoded(value, text):
    """A check that refuses good values would be found only by a user's order."""
    assert encode_json(value, name="v") == text


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "v"),
        ({"a": [0, float("inf")]}, "v.a[1]"),
        (Point(x=float("-inf")), "v.x"),
        (Pair(None, Point(x=float("nan"))), "v.right.x"),
        ({"a": "x\0"}, "v.a"),
        ({"x\0": 1}, "a key of v"),
        ({"a": ["\ud800"]}, "v.a[0]"),
        ({"a": {"b": object()}}, "v.a.b"),
        ({"a": (1, {2, complex(1)})}, "v.a[1]"),
        ("x" * VALUE_BYTES_MAX, "v"),
        ({"a": lambda: 1}, "v.a"),
    ],
)
def test_what_json_or_postgres_cannot_hold_is_refused_with_its_place(value, path):
    """The place is what the author of the step needs; the database would name none."""
    with pytest.raises(InvalidValueError) as refused:
        encode_json(value, name="v")

    assert refused.value.path.startswith(path)


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 500, 100_000])
def test_too_deep_a_value_is_refused(depth):
    """Whatever its depth, and without ending the process in its own recursion."""
    with pytest.raises(InvalidValueError):
        encode_json(nested(depth), name="v")


def test_a_value_that_contains_itself_is_refused():
    """It has no end; the walk that looks for the place must have one."""
    value: list[object] = []
    value.append(value)

    with pytest.raises(InvalidValueError, match="deeper"):
        encode_json(value, name="v")


@pytest.mark.parametrize("value", [[1], "x", 7, None, True])
def test_an_object_is_a_mapping(value):
    """``state ->> 'field'`` must work on every row."""
    with pytest.raises(InvalidValueError, match="must be a mapping or a struct"):
        encode_object(value, name="state")


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (check_name, ""),
        (check_name, "  "),
        (check_name, "n" * 129),
        (check_name, None),
        (check_key, ""),
        (check_key, "k" * 513),
        (check_key, "é" * 257),
        (check_key, "a\0"),
        (check_key, "\udfff"),
        (check_text, b"bytes"),
    ],
)
def test_names_and_keys_that_cannot_be_stored_are_refused(check, value):
    """Before they meet an index whose entries have a size."""
    with pytest.raises(InvalidValueError) as refused:
        check(value, name="field")

    assert refused.value.path == "field"


@pytest.mark.parametrize(("check", "value"), [(check_name, "n" * 128), (check_key, "é" * 256), (check_text, "")])
def test_names_and_keys_up_to_their_limit_pass(check, value):
    """The limits are inclusive."""
    assert check(value, name="field") == value


def test_a_stored_value_that_does_not_fit_names_the_field():
    """An operator reads this in last_error."""
    with pytest.raises(StateDecodeError, match=r"\$\.x"):
        TypedDecoder(Point).decode('{"x": "far"}', name="state")
    with pytest.raises(StateDecodeError):
        TypedDecoder(Point).decode("{", name="state")


def test_converting_names_the_field():
    """The same for arguments given in Python."""
    assert convert({"x": 1}, Point, name="p") == Point(x=1)
    with pytest.raises(InvalidValueError, match=r"p: .*\$\.x"):
        convert({"x": "far"}, Point, name="p")


def test_nothing_stored_is_nothing_read():
    """Null columns stay None."""
    assert decode_json(None) is None
    assert decode_json('{"a": [1]}') == {"a": [1]}
