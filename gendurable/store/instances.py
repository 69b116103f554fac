"""Reading instances, and what callers change about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gendurable.model.codec import decode_json
from gendurable.model.instance import Instance, RecordedError, Status
from gendurable.store.database import Connection, Database, Row

RESOLVE_TRIES_MAX = 3
"""A key that changes hands faster than this is not going to be caught; the caller is told of the last row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A row that a caller's statement found, as it was before the change.

    Attributes:
        id: The instance.
        status: Its status before.
        is_changed: Whether the statement changed it.
        queue: Its queue, where the statement says it.
        correlation_key: Its key, where the statement says it.
        unheld_queues: Queues in which a row got the concurrency key whose turn this row had.
    """

    id: int
    status: Status
    is_changed: bool
    queue: str = ""
    correlation_key: str | None = None
    unheld_queues: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Which instances a list has; None lets everything through."""

    machine: str | None = None
    statuses: tuple[str, ...] | None = None
    queue: str | None = None
    tags: tuple[str, ...] | None = None
    metadata: str | None = None
    parent_id: int | None = None
    key_prefix: str | None = None


class InstanceStore:
    """Statements of ``sql/queries/instances.sql``."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._db = database

    async def get(
        self, *, instance_id: int | None = None, key: str | None = None, connection: Connection | None = None
    ) -> Instance | None:
        """One instance by id or by correlation key, or None."""
        row = await self._db.fetch_row("get_instance", instance_id, key, connection=connection)
        return None if row is None else _instance(row)

    async def list_page(
        self, chosen: Filter, *, before_id: int | None, rows_max: int, connection: Connection | None = None
    ) -> list[Instance]:
        """A page, youngest first, of instances with an id below ``before_id``."""
        rows = await self._db.fetch(
            "list_instances",
            2**63 - 1 if before_id is None else before_id,
            rows_max,
            chosen.machine,
            chosen.statuses,
            chosen.queue,
            chosen.tags,
            chosen.metadata,
            chosen.parent_id,
            chosen.key_prefix,
            connection=connection,
        )
        return [_instance(row) for row in rows]

    async def watch(self, instance_ids: Sequence[int]) -> dict[int, bool]:
        """Of these instances, those that ended (True) or do not exist (False)."""
        rows = await self._db.fetch("watch_instances", list(instance_ids))
        return {row["id"]: row["status"] is not None for row in rows}

    async def cancel(
        self, *, instance_id: int | None, key: str | None, reason: str, connection: Connection | None = None
    ) -> Found | None:
        """Cancel an instance, or mark an executing one; None when there is none.

        A key is resolved before its row is locked. When the row ended under the lock, the key may be another row's by
        now, and that is the one the caller means [L6]:

            caller:  key -> row 1 ... waits for its lock ............ has it: row 1 has ended
            other:         row 1 ends, row 2 takes the key, commits
        """
        found = await self._cancel_once(instance_id=instance_id, key=key, reason=reason, connection=connection)
        for _ in range(RESOLVE_TRIES_MAX - 1):
            if instance_id is not None or found is None or not found.status.is_terminal:
                break
            again = await self._cancel_once(instance_id=None, key=key, reason=reason, connection=connection)
            if again is None or again.id == found.id:
                break
            found = again
        return found

    async def _cancel_once(
        self, *, instance_id: int | None, key: str | None, reason: str, connection: Connection | None
    ) -> Found | None:
        row = await self._db.fetch_row("cancel_instance", instance_id, key, reason, connection=connection)
        if row is None:
            return None
        unheld: list[Row] = []
        if row["turn"] is not None:
            # Its siblings are held behind it; should this process die before this, the reconciler passes the turn on.
            unheld = await self._db.fetch("unhold_keys", [row["turn"]], connection=connection)
        return Found(
            id=row["id"],
            status=Status(row["status"]),
            is_changed=row["changed"] > 0,
            unheld_queues=tuple(sorted({row["queue"] for row in unheld})),
        )

    async def retry(self, instance_id: int, *, connection: Connection | None = None) -> Found | None:
        """Run a failed or cancelled instance again; None when there is none.

        Raises:
            StoreContendedError: Its correlation key belongs to another instance now; nothing was changed.
        """
        row = await self._db.fetch_row("retry_instance", instance_id, connection=connection)
        if row is None:
            return None
        return Found(
            id=row["id"],
            status=Status(row["status"]),
            is_changed=row["changed"] > 0,
            queue=row["queue"],
            correlation_key=row["correlation_key"],
        )

    async def key_owner(self, key: str, *, connection: Connection | None = None) -> int | None:
        """The instance a correlation key addresses now."""
        row = await self._db.fetch_row("key_owner", key, connection=connection)
        return None if row is None else int(row["id"])


def _instance(row: Row) -> Instance:
    return Instance(
        id=row["id"],
        machine=row["fsm"],
        version=row["fsm_version"],
        step=row["step"],
        status=Status(row["status"]),
        queue=row["queue"],
        priority=row["priority"],
        state=decode_json(row["state"]),
        result=decode_json(row["result"]),
        attempt=row["attempt"],
        crashes=row["crashes"],
        snoozes=row["snoozes"],
        last_error=row["last_error"],
        errors=msgspec.json.decode(row["errors"], type=list[RecordedError]) if row["errors"] else [],
        correlation_key=row["correlation_key"],
        concurrency_key=row["concurrency_key"],
        metadata=decode_json(row["metadata"]) or {},
        tags=row["tags"] or [],
        parent_id=row["parent_id"],
        held=row["held"],
        locked_by=row["locked_by"],
        eligible_at=row["eligible_at"],
        inserted_at=row["inserted_at"],
        updated_at=row["updated_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        deadline_at=row["deadline_at"],
        expires_at=row["expires_at"],
        cancel_reason=row["cancel_reason"],
    )
