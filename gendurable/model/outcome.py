"""What a step may answer, checked where it is made.

An outcome is a value: nothing happens until the engine commits it. See the table in ``docs/guides/machines.md``.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, TypeAlias

import msgspec

from gendurable.errors import InvalidValueError
from gendurable.model.codec import check_key, check_name, check_text
from gendurable.model.durations import duration_ms

Duration: TypeAlias = float | int | dt.timedelta
StepTarget: TypeAlias = str | Callable[..., Any]
STEP_MARK: Final = "__gendurable_step__"
REASON_CHARS_MAX: Final = 8192


class Unset:
    """The type of :data:`UNSET`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Read well in signatures."""
        return "UNSET"


UNSET: Final = Unset()
"""An argument that was left out, where None means something else."""


def step_name(target: StepTarget) -> str:
    """The name of a step given by method or by name.

    Raises:
        InvalidValueError: It is neither a step nor a name.
    """
    if isinstance(target, str):
        return check_name(target, name="step")
    mark = getattr(target, STEP_MARK, None)
    if mark is None:
        raise InvalidValueError(
            f"{target!r} is not a step: pass self.<step> or its name, and decorate the method with @gd.step",
            path="step",
        )
    return str(mark.name)


def _reason(reason: str | None, *, name: str) -> str | None:
    if reason is None:
        return None
    return check_text(reason, name=name, chars_max=REASON_CHARS_MAX)


class Outcome:
    """The common type of everything a step may return."""

    __slots__ = ()


class Next(Outcome):
    """Go on with another step of the same instance, in a new claim; resets the attempt."""

    __slots__ = ("at", "concurrency_key", "delay_ms", "state", "step")

    def __init__(
        self,
        step: StepTarget,
        *,
        state: Any = None,
        delay: Duration | None = None,
        at: dt.datetime | None = None,
        concurrency_key: str | Unset | None = UNSET,
    ) -> None:
        """Describe the transition.

        Args:
            step: ``self.ship`` or ``"ship"``.
            state: The new state; None leaves it unchanged.
            delay: Seconds or a timedelta until it may run, by the database's clock.
            at: When it may run, with a time zone; instead of ``delay``.
            concurrency_key: A new key, None to release it, left out to keep it.

        Raises:
            InvalidValueError: An argument cannot be used; nothing was committed.
        """
        self.step = step_name(step)
        self.state = state
        self.delay_ms = None if delay is None else duration_ms(delay, name="delay", allow_zero=True)
        self.at = None if at is None else check_time(at, name="at")
        if delay is not None and at is not None:
            raise InvalidValueError("Next takes delay= or at=, not both", path="at")
        if concurrency_key is not None and not isinstance(concurrency_key, Unset):
            check_key(concurrency_key, name="concurrency_key")
        self.concurrency_key = concurrency_key


class Retry(Outcome):
    """Run the same step again and spend an attempt; without a delay, after the machine's backoff."""

    __slots__ = ("delay_ms", "state")

    def __init__(self, *, delay: Duration | None = None, state: Any = None) -> None:
        """Describe the retry.

        Args:
            delay: Seconds or a timedelta until it may run; None for the backoff of this attempt.
            state: The new state; None leaves it unchanged.

        Raises:
            InvalidValueError: The delay is negative or out of range.
        """
        self.delay_ms = None if delay is None else duration_ms(delay, name="delay", allow_zero=True)
        self.state = state


class Snooze(Outcome):
    """Run the same step again later without spending an attempt; at most ``max_snoozes`` times in a row."""

    __slots__ = ("delay_ms",)

    def __init__(self, delay: Duration) -> None:
        """Say how long to wait, in seconds or as a timedelta.

        Raises:
            InvalidValueError: The delay is not between 1 ms and 100 years.
        """
        self.delay_ms = duration_ms(delay, name="delay")


class Done(Outcome):
    """End successfully with a result."""

    __slots__ = ("result",)

    def __init__(self, result: Any = None) -> None:
        """Keep the result: a mapping, a struct or a dataclass; None stores ``{}``.

        Raises:
            InvalidValueError: It is something else, which readers could not tell apart from a field of a mapping.
        """
        if result is not None and not isinstance(result, (Mapping, msgspec.Struct)) and not is_dataclass(result):
            raise InvalidValueError(
                f"a result must be a mapping or a struct, not {type(result).__name__}; wrap it: {{'value': ...}}",
                path="result",
            )
        self.result = result


class Stop(Outcome):
    """End as failed: a decision, not an accident, so nothing is retried."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        """Say why; it becomes the instance's ``last_error``."""
        self.reason = _reason(reason, name="reason")


class Cancel(Exception, Outcome):  # noqa: N818 - it is an answer that may be raised from a depth, not an error
    """End as cancelled; may be returned or raised from anywhere below the step."""

    def __init__(self, reason: str | None = None) -> None:
        """Say why; it is kept as ``cancel_reason``."""
        super().__init__(reason or "cancelled")
        self.reason = _reason(reason, name="reason") or "cancelled"


def check_time(value: dt.datetime, *, name: str) -> dt.datetime:
    """Return a time the database and the driver can both hold.

    Raises:
        InvalidValueError: It has no time zone or lies outside the years 1970 to 8999.
    """
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise InvalidValueError(f"{name} must be a datetime with a time zone, not {value!r}", path=name)
    if not 1970 <= value.year < 9000:
        raise InvalidValueError(f"{name} is {value.isoformat()}; years 1970 to 8999 are allowed", path=name)
    return value


def check_mapping(value: Mapping[str, Any] | None, *, name: str) -> Mapping[str, Any] | None:
    """Return a mapping or None.

    Raises:
        InvalidValueError: It is something else.
    """
    if value is not None and not isinstance(value, Mapping):
        raise InvalidValueError(f"{name} must be a mapping, not {type(value).__name__}", path=name)
    return value
