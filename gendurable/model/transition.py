"""An outcome turned into what the flush writes: one fenced change of one row."""

import datetime as dt
from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """What became of a transition that was handed to the flusher."""

    COMMITTED = "committed"
    STALE = "stale"
    REFUSED = "refused"


class Transition(msgspec.Struct, kw_only=True, gc=False):
    """One row's change, guarded by (id, worker, claim).

    Attributes:
        id: The instance.
        claim: The fence this worker holds.
        outcome: The word for metrics: next, retry, snooze, done, stop, cancel or release.
        status: Where the row goes: ``runnable``, ``done``, ``failed`` or ``cancelled``.
        step: The next step; None keeps it.
        state: New state as JSON text; None keeps it.
        attempt: The attempt the row has afterwards.
        snoozes: The snoozes in a row it has afterwards.
        delay_ms: Milliseconds until it may run; None keeps ``eligible_at``, 0 is now.
        at: When it may run; wins over ``delay_ms``.
        result: Result as JSON text, for ``done``.
        error: Text of the error that led here; appended to the row's errors.
        error_kind: Its kind: the exception's class name, or ``stop``.
        cancel_reason: Why, for ``cancelled``.
        is_key_changed: True when ``concurrency_key`` replaces the row's.
        concurrency_key: The new key, or None to have none.
        held_key: The key the row holds while it executes; freed by this transition.
    """

    id: int
    claim: int
    outcome: str
    status: str
    step: str | None = None
    state: str | None = None
    attempt: int = 0
    snoozes: int = 0
    delay_ms: int | None = 0
    at: dt.datetime | None = None
    result: str | None = None
    error: str | None = None
    error_kind: str | None = None
    cancel_reason: str | None = None
    is_key_changed: bool = False
    concurrency_key: str | None = None
    held_key: str | None = None

    @property
    def is_plain_done(self) -> bool:
        """True when the lean statement for finished jobs can write it."""
        return self.status == "done" and self.error is None and self.held_key is None
