"""A claimed row as the worker holds it."""

from typing import Any

import msgspec


class Claim(msgspec.Struct):
    """One row this worker owns until its outcome is durable or the claim is lost.

    Built by place for every claimed row, so the fields from ``id`` on stand in the order of the statement's columns.

    Attributes:
        queue: The queue it was claimed from.
        claimed_at: Local monotonic time of the claim, seconds; paces metrics only.
        id: The instance.
        machine: The registered name of the machine.
        version: The version the row runs on.
        step: The step to run.
        state: Stored state, JSON text, not yet decoded.
        attempt: Failures of this step so far.
        crashes: Processes this step has outlived so far.
        snoozes: Snoozes of this step in a row so far.
        claim: The fence; every write of this worker about the row carries it.
        priority: Lower runs first.
        eligible_at: When it was due.
        concurrency_key: The key it holds while it executes.
        parent_id: The instance that scheduled it.
        correlation_key: The business key.
        metadata: JSON text of an object, or None.
        tags: Labels, or None.
        inserted_at: When the row was inserted.
        is_expired: Its ``expires_at`` passed before it first started.
        deadline_in_ms: Milliseconds to its deadline when it was claimed; None without one.
        late_ms: Milliseconds it had been due when it was claimed.
    """

    queue: str
    claimed_at: float
    id: int
    machine: str
    version: int
    step: str
    state: str
    attempt: int
    crashes: int
    snoozes: int
    claim: int
    priority: int
    eligible_at: Any
    concurrency_key: str | None
    parent_id: int | None
    correlation_key: str | None
    metadata: str | None
    tags: list[str] | None
    inserted_at: Any
    is_expired: bool
    deadline_in_ms: float | None
    late_ms: float
