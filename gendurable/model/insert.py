"""What can be said about a new row, checked where it is made, and what an insert answers."""

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from gendurable.errors import InvalidValueError
from gendurable.model.codec import TAGS_MAX, check_key, check_name, encode_object
from gendurable.model.durations import duration_ms
from gendurable.model.instance import Scope
from gendurable.model.outcome import Duration, check_mapping, check_time

PRIORITY_MIN = -32768
PRIORITY_MAX = 32767


class Inserted(msgspec.Struct, frozen=True):
    """A new instance was written; ``id`` is its id."""

    id: int


class Duplicate(msgspec.Struct, frozen=True):
    """The correlation key belongs to another instance, ``id``; nothing was written."""

    id: int


InsertAnswer: TypeAlias = Inserted | Duplicate


class InsertOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Checked options of an insert; the table in ``docs/guides/jobs.md`` explains each.

    Attributes:
        queue: None for the machine's queue.
        priority: Lower runs first.
        delay_ms: Milliseconds until it may run, by the database's clock.
        at: When it may run; instead of the delay.
        correlation_key: The business key.
        scope: While which statuses the key belongs to the instance.
        unique_ms: Milliseconds the key stays reserved after the insert, also after the end.
        concurrency_key: At most one instance of a key executes.
        metadata: JSON text of an object.
        tags: Labels.
        deadline_ms: Milliseconds it has in all.
        deadline_at: Until when it must have ended.
        expires_ms: Milliseconds within which it must start.
        expires_at: Until when it must have started.
        parent_id: The instance it belongs to.
        step: Start at another step than the initial one.
    """

    queue: str | None = None
    priority: int = 0
    delay_ms: int | None = None
    at: dt.datetime | None = None
    correlation_key: str | None = None
    scope: Scope = Scope.LIVE
    unique_ms: int | None = None
    concurrency_key: str | None = None
    metadata: str | None = None
    tags: tuple[str, ...] = ()
    deadline_ms: int | None = None
    deadline_at: dt.datetime | None = None
    expires_ms: int | None = None
    expires_at: dt.datetime | None = None
    parent_id: int | None = None
    step: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "InsertOptions":
        """Check options given by name.

        Raises:
            InvalidValueError: One is unknown or its value cannot be used; nothing was written.
        """
        unknown = options.keys() - _NAMES
        if unknown:
            raise InvalidValueError(
                f"insert has no options {', '.join(sorted(unknown))}; it has {', '.join(sorted(_NAMES))}",
                path="options",
            )
        return _checked(**options)

    def common(self, *, fsm: str, version: int, step: str, queue: str) -> str:
        """The row's values besides state and correlation, as the insert statements take them: JSON text."""
        fields: dict[str, Any] = {
            "fsm": fsm,
            "version": version,
            "step": self.step or step,
            "queue": self.queue or queue,
            "priority": self.priority,
        }
        for name in (
            "delay_ms",
            "at",
            "concurrency_key",
            "parent_id",
            "deadline_ms",
            "deadline_at",
            "expires_ms",
            "expires_at",
        ):
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        if self.metadata is not None:
            fields["metadata"] = msgspec.Raw(self.metadata.encode())
        if self.tags:
            fields["tags"] = list(self.tags)
        return msgspec.json.encode(fields).decode()


def _checked(
    *,
    queue: str | None = None,
    priority: int = 0,
    delay: Duration | None = None,
    at: dt.datetime | None = None,
    correlation_key: str | None = None,
    scope: Scope | str = Scope.LIVE,
    unique_for: Duration | None = None,
    concurrency_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    deadline: Duration | dt.datetime | None = None,
    expires_at: Duration | dt.datetime | None = None,
    parent_id: int | None = None,
    step: str | None = None,
) -> InsertOptions:
    if delay is not None and at is not None:
        raise InvalidValueError("an insert takes delay= or at=, not both", path="at")
    if correlation_key is None and (unique_for is not None or _check_scope(scope) is not Scope.LIVE):
        raise InvalidValueError(
            "scope= and unique_for= say how long a correlation_key= is reserved; give one", path="scope"
        )
    deadline_ms, deadline_at = _moment(deadline, name="deadline")
    expires_ms, expires_when = _moment(expires_at, name="expires_at")
    return InsertOptions(
        queue=None if queue is None else check_name(queue, name="queue"),
        priority=_check_priority(priority),
        delay_ms=None if delay is None else duration_ms(delay, name="delay", allow_zero=True),
        at=None if at is None else check_time(at, name="at"),
        correlation_key=None if correlation_key is None else check_key(correlation_key, name="correlation_key"),
        scope=Scope.EVER if unique_for is not None else _check_scope(scope),
        unique_ms=None if unique_for is None else duration_ms(unique_for, name="unique_for"),
        concurrency_key=None if concurrency_key is None else check_key(concurrency_key, name="concurrency_key"),
        metadata=None if check_mapping(metadata, name="metadata") is None else encode_object(metadata, name="metadata"),
        tags=_check_tags(tags),
        deadline_ms=deadline_ms,
        deadline_at=deadline_at,
        expires_ms=expires_ms,
        expires_at=expires_when,
        parent_id=_check_parent(parent_id),
        step=None if step is None else check_name(step, name="step"),
    )


_NAMES = frozenset(_checked.__kwdefaults__ or ())


def _moment(value: Duration | dt.datetime | None, *, name: str) -> tuple[int | None, dt.datetime | None]:
    """A moment given as a duration from now, by the database's clock, or as a time."""
    if isinstance(value, dt.datetime):
        return None, check_time(value, name=name)
    return (None if value is None else duration_ms(value, name=name)), None


def _check_priority(priority: int) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidValueError(
            f"priority is {priority!r}; use a whole number from {PRIORITY_MIN} to {PRIORITY_MAX}, lower runs first",
            path="priority",
        )
    return priority


def _check_scope(scope: Scope | str) -> Scope:
    try:
        return Scope(scope)
    except ValueError as error:
        raise InvalidValueError(
            f"scope is {scope!r}; use 'live' (the key is free again at the end), 'ever' or 'none'", path="scope"
        ) from error


def _check_parent(parent_id: int | None) -> int | None:
    if parent_id is not None and (
        isinstance(parent_id, bool) or not isinstance(parent_id, int) or not 1 <= parent_id < 2**63
    ):
        raise InvalidValueError(f"parent_id is {parent_id!r}; give the id of an instance", path="parent_id")
    return parent_id


def _check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, (str, bytes)) or not isinstance(tags, Collection) or len(tags) > TAGS_MAX:
        raise InvalidValueError(f"tags must be a list of at most {TAGS_MAX} names, not {tags!r}", path="tags")
    return tuple(dict.fromkeys(check_name(tag, name="tag") for tag in tags))
