"""Deleting what ended long ago, in small batches."""

import datetime as dt
from dataclasses import dataclass
from typing import TypeAlias

from gendurable.store.database import Database

Reached: TypeAlias = tuple[dt.datetime, int]
"""The end time and the id of a row that ended: a place in the order in which they are looked at."""

_BEGINNING: Reached = (dt.datetime(1, 1, 1, tzinfo=dt.UTC), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What one batch did: rows deleted, rows looked at, and how far it got."""

    deleted: int
    seen: int
    reached: Reached | None


class RetentionStore:
    """Statements of ``sql/queries/retention.sql``."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._db = database

    async def collect_finished(
        self, *, done_ms: int, cancelled_ms: int, failed_ms: int, rows_max: int, after: Reached | None
    ) -> Collected:
        """Delete up to ``rows_max`` rows that ended longer ago than their retention.

        Args:
            done_ms: Retention of done rows, milliseconds.
            cancelled_ms: Of cancelled rows.
            failed_ms: Of failed rows.
            rows_max: Rows looked at, at most.
            after: Go on behind this row, with one that ended later or at the same time; None from the beginning.

        Raises:
            StoreUnavailableError: Nothing, or the whole batch, was deleted.
        """
        row = await self._db.fetch_row(
            "collect_finished",
            done_ms,
            cancelled_ms,
            failed_ms,
            rows_max,
            *(after or _BEGINNING),
        )
        assert row is not None
        reached = None if row["reached_id"] is None else (row["reached_at"], row["reached_id"])
        return Collected(deleted=row["deleted"], seen=row["seen"], reached=reached)
