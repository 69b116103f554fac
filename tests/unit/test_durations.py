"""Durations as Python arguments, files and flags say them."""

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gendurable.errors import InvalidValueError
from gendurable.model.durations import DURATION_MAX_MS, duration_ms, format_duration, parse_duration_s


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        (1, 1000),
        (0.001, 1),
        (0.25, 250),
        (1.0005, 1000),
        (timedelta(milliseconds=1), 1),
        (timedelta(days=400), 400 * 86_400_000),
        (36_525 * 86_400, DURATION_MAX_MS),
        (timedelta(days=36_525), DURATION_MAX_MS),
    ],
)
def test_seconds_and_timedeltas_become_milliseconds(value, expected_ms):
    """A 400-day timeout works, and both ends of the range belong to it [L26]."""
    assert duration_ms(value, name="delay") == expected_ms


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        0.0009,
        -0.0,
        36_525 * 86_400 + 1,
        1e300,
        10**400,
        pytest.param(10**5000, id="too many digits to print"),
        math.nan,
        math.inf,
        -math.inf,
        timedelta(0),
        timedelta(microseconds=999),
        timedelta(days=36_525, microseconds=1),
        timedelta.max,
        timedelta.min,
    ],
)
def test_a_duration_outside_the_limits_is_refused_by_name(value):
    """The database would take it and fail later, where nobody can tell whose it was [L26]."""
    with pytest.raises(InvalidValueError, match=r"^delay is .*give") as caught:
        duration_ms(value, name="delay")

    assert caught.value.path == "delay"
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", [True, False, "30", "30s", None, Decimal(3), b"3", [], 1j])
def test_what_is_no_duration_is_refused_with_the_remedy(value):
    """True is 1 to Python, and a text is for files and flags only."""
    with pytest.raises(InvalidValueError, match=r"timeout is .*give seconds as a number or a timedelta"):
        duration_ms(value, name="timeout", allow_zero=True)


@pytest.mark.parametrize("value", [0, 0.0, -0.0, timedelta(0)])
def test_zero_is_allowed_where_it_means_something(value):
    """A delay of zero is now."""
    assert duration_ms(value, name="delay", allow_zero=True) == 0


@pytest.mark.parametrize("value", [-1e-9, 1e-9, 0.0005, timedelta(microseconds=1)])
def test_allowing_zero_does_not_allow_what_would_round_to_it(value):
    """A caller who writes half a millisecond expects a wait."""
    with pytest.raises(InvalidValueError, match="0, or from 1 ms"):
        duration_ms(value, name="delay", allow_zero=True)


@given(st.integers(min_value=1, max_value=DURATION_MAX_MS))
def test_whole_milliseconds_survive_as_seconds_and_as_timedelta(value_ms):
    """No duration within the limits is off by one because seconds are binary fractions."""
    assert duration_ms(value_ms / 1000, name="d") == value_ms
    assert duration_ms(timedelta(milliseconds=value_ms), name="d") == value_ms


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604_800),
        ("1w", 604_800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("  1m30s500ms ", 90.5),
        ("1.5h", 5400),
        ("0.1s", 0.1),
        (timedelta(minutes=1), 60),
    ],
)
def test_files_and_flags_write_durations_with_units(text, expected_s):
    """The unit stands in the value, so nobody has to know it."""
    assert parse_duration_s(text, name="lease.ttl") == expected_s


@pytest.mark.parametrize("bare", ["30", 30, 30.0, "0", 0, "1.5"])
def test_a_bare_number_is_refused_and_told_its_unit(bare):
    """Seconds to one reader are milliseconds to the next."""
    with pytest.raises(InvalidValueError, match=r'lease\.ttl is .* without a unit: write "[0-9.]+s"'):
        parse_duration_s(bare, name="lease.ttl")


@pytest.mark.parametrize("zero", ["0", 0, 0.0, "0s", "0ms"])
def test_zero_needs_no_unit_where_it_is_allowed(zero):
    """Nothing is nothing in every unit."""
    assert parse_duration_s(zero, name="flush.delay_max", allow_zero=True) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "30 s",
        "30sec",
        "5M",
        "30m1h",
        "5s5s",
        "-5s",
        "+5s",
        "1e3s",
        ".5s",
        "5.s",
        "٣s",
        "1y",
        "9" * 100 + "s",
        "nan",
        "inf",
        True,
        None,
        ["30s"],
        math.nan,
        -5,
    ],
)
def test_what_cannot_be_read_is_refused_with_examples(text):
    """The message shows how to write it."""
    with pytest.raises(InvalidValueError, match=r'no duration: write .*"30s"'):
        parse_duration_s(text, name="lease.ttl", allow_zero=True)


@pytest.mark.parametrize("text", ["0s", "0.5ms", "36526d", "5300w"])
def test_a_text_outside_the_limits_is_refused(text):
    """The limits are the same for Python, files and flags [L26]."""
    with pytest.raises(InvalidValueError, match="out of range"):
        parse_duration_s(text, name="lease.ttl")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (30, "30s"),
        (90, "1m30s"),
        (5400, "1h30m"),
        (604_800, "7d"),
        (86_461.001, "1d1m1s1ms"),
        (-5, "-5s"),
    ],
)
def test_a_duration_is_shown_the_way_it_is_written(seconds, text):
    """What config show prints can be pasted into the file."""
    assert format_duration(seconds) == text


@given(st.integers(min_value=1, max_value=DURATION_MAX_MS))
def test_what_is_shown_is_read_back_exactly(value_ms):
    """To the millisecond, over the whole range."""
    assert round(parse_duration_s(format_duration(value_ms / 1000), name="d") * 1000) == value_ms


@given(st.text(max_size=80))
def test_no_text_is_read_as_something_outside_the_limits(text):
    """A text is a duration within the limits, or a clean refusal."""
    try:
        seconds = parse_duration_s(text, name="d")
    except InvalidValueError:
        return

    assert 0.001 <= seconds <= DURATION_MAX_MS / 1000
