"""What a row says: statuses, scopes, and an instance as a client reads it."""

import datetime as dt
from enum import StrEnum
from typing import Any

import msgspec


class Status(StrEnum):
    """Where an instance stands."""

    RUNNABLE = "runnable"
    EXECUTING = "executing"
    AWAITING_SIGNAL = "awaiting_signal"
    AWAITING_CHILDREN = "awaiting_children"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when nothing will run any more."""
        return self in TERMINAL


TERMINAL = frozenset({Status.DONE, Status.FAILED, Status.CANCELLED})
LIVE = tuple(status for status in Status if status not in TERMINAL)


class Scope(StrEnum):
    """While which statuses a correlation key belongs to its instance.

    ``LIVE``: until it ends, then the key is free. ``EVER``: until its retention deletes it. ``NONE``: never; many rows
    may carry the key, and it addresses none of them.
    """

    LIVE = "live"
    EVER = "ever"
    NONE = "none"

    @property
    def statuses(self) -> list[str]:
        """The statuses as the table stores them."""
        if self is Scope.NONE:
            return []
        return [status.value for status in (LIVE if self is Scope.LIVE else Status)]


class RecordedError(msgspec.Struct, frozen=True, kw_only=True):
    """One of the last ten errors of an instance."""

    time: dt.datetime
    step: str
    attempt: int
    kind: str
    text: str


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it was when it was read."""

    id: int
    machine: str
    version: int
    step: str
    status: Status
    queue: str
    priority: int
    state: dict[str, Any]
    result: Any
    attempt: int
    crashes: int
    snoozes: int
    last_error: str | None
    errors: list[RecordedError]
    correlation_key: str | None
    concurrency_key: str | None
    metadata: dict[str, Any]
    tags: list[str]
    parent_id: int | None
    held: bool
    locked_by: str | None
    eligible_at: dt.datetime
    inserted_at: dt.datetime
    updated_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    deadline_at: dt.datetime | None
    expires_at: dt.datetime | None
    cancel_reason: str | None

    @property
    def is_terminal(self) -> bool:
        """True when it ended: done, failed or cancelled."""
        return self.status in TERMINAL
