"""Durations: how Python arguments, files and flags say them, and how they are shown again.

In Python a duration is a number of seconds or a timedelta. In files, flags and the environment it is a text with
units, such as ``30s`` or ``1h30m``. In SQL it is a bigint of milliseconds. Everything outside 1 ms to 100 years is
refused where it is made, because Postgres and the driver accept more than they can do arithmetic with [L26].
"""

import math
import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

from gendurable.errors import InvalidValueError

DURATION_MIN_MS: Final = 1
DURATION_MAX_MS: Final = 36_525 * 86_400 * 1000

_UNIT_MS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
# One optional part for each unit, largest first, so that "30m1h" and "5s5s" do not match.
_TEXT: Final = re.compile(
    r"\s*".join(rf"(?:(?P<{unit}>[0-9]+(?:\.[0-9]+)?){unit})?" for unit in _UNIT_MS),
)
_TEXT_CHARS_MAX: Final = 64
_REMEDY_TEXT: Final = 'write a number with its unit, such as "250ms", "30s", "5m", "2h", "7d", "1w" or "1h30m"'
_REMEDY_VALUE: Final = "give seconds as a number or a timedelta"


def duration_ms(value: float | timedelta, *, name: str, allow_zero: bool = False) -> int:
    """Turn a duration given in Python into milliseconds.

    Args:
        value: Seconds, or a timedelta.
        name: What the duration is, for the message, such as ``delay``.
        allow_zero: Whether exactly zero is meaningful here, as it is for a delay.

    Returns:
        Whole milliseconds, rounded to the nearest.

    Raises:
        InvalidValueError: The value is no duration, or lies outside 1 ms to 100 years.
    """
    given: object = value  # Callers without a type checker hand in anything.
    shown = _shown(given)
    if isinstance(given, timedelta):
        exact_ms = Decimal(given // timedelta(microseconds=1)) / 1000
    elif isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidValueError(f"{name} is {shown}, which is no duration: {_REMEDY_VALUE}", path=name)
    elif isinstance(given, float):
        if not math.isfinite(given):
            raise InvalidValueError(f"{name} is {shown}, which is not finite: {_REMEDY_VALUE}", path=name)
        # The shortest text is what the caller wrote; the binary fraction of 0.001 is a little more than 1 ms.
        exact_ms = Decimal(float.__repr__(given)) * 1000
    else:
        exact_ms = Decimal(int(given)) * 1000
    return _within_limits(exact_ms, name=name, shown=shown, allow_zero=allow_zero)


def parse_duration_s(value: object, *, name: str, allow_zero: bool = False) -> float:
    """Read a duration from a file, a flag or the environment.

    Args:
        value: A text such as ``30s``, ``1h30m`` or ``1h 30m``. A bare number is refused, since nobody could tell its
            unit; only ``0`` is clear without one. A timedelta is taken as it is.
        name: What the duration is, for the message, such as ``lease.ttl``.
        allow_zero: Whether exactly zero is meaningful here.

    Returns:
        Seconds.

    Raises:
        InvalidValueError: The text is no duration, or lies outside 1 ms to 100 years.
    """
    shown = _shown(value)
    if isinstance(value, timedelta):
        return duration_ms(value, name=name, allow_zero=allow_zero) / 1000
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidValueError(f"{name} is {shown}, which is no duration: {_REMEDY_TEXT}", path=name)
    text = (value if isinstance(value, str) else shown).strip()
    if allow_zero and text in {"0", "0.0"}:
        return 0.0
    if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text):
        raise InvalidValueError(f'{name} is {shown}, a number without a unit: write "{text}s" for seconds', path=name)
    match = _TEXT.fullmatch(text) if 0 < len(text) <= _TEXT_CHARS_MAX else None
    if match is None:
        raise InvalidValueError(f"{name} is {shown}, which is no duration: {_REMEDY_TEXT}", path=name)
    total_ms = sum((Decimal(part) * _UNIT_MS[unit] for unit, part in match.groupdict().items() if part), Decimal(0))
    return _within_limits(total_ms, name=name, shown=shown, allow_zero=allow_zero) / 1000


def format_duration(seconds: float) -> str:
    """Show a duration the way files and flags write it, exact to the millisecond.

    Args:
        seconds: Any finite number of seconds; a negative one gets a minus sign.

    Returns:
        A text such as ``250ms``, ``30s``, ``1h30m``, ``7d`` or ``0s``, which `parse_duration_s` reads back.
    """
    left_ms = round(abs(seconds) * 1000)
    if left_ms == 0:
        return "0s"
    parts: list[str] = []
    for unit, unit_ms in _UNIT_MS.items():
        # Retention of 7 days reads better as 7d than as 1w.
        if unit == "w":
            continue
        count, left_ms = divmod(left_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if seconds < 0 else "") + "".join(parts)


def _within_limits(value_ms: Decimal, *, name: str, shown: str, allow_zero: bool) -> int:
    if value_ms == 0 and allow_zero:
        return 0
    if not DURATION_MIN_MS <= value_ms <= DURATION_MAX_MS:
        raise _out_of_range(name, shown, allow_zero=allow_zero)
    return round(value_ms)


def _out_of_range(name: str, shown: str, *, allow_zero: bool) -> InvalidValueError:
    limits = "0, or from 1 ms to 100 years" if allow_zero else "from 1 ms to 100 years"
    return InvalidValueError(f"{name} is {shown}, out of range: give a duration of {limits}", path=name)


def _shown(value: object) -> str:
    """The value for a message, short whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # An int of more than 4,300 digits has no text.
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
