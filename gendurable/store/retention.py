"""Deleting what ended long ago, in small batches."""

import datetime as dt
from dataclasses import dataclass

from gendurable.store.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What one batch did: rows deleted, rows looked at, and how far it got."""

    deleted: int
    seen: int
    reached: dt.datetime | None


class RetentionStore:
    """Statements of ``sql/queries/retention.sql``."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._db = database

    async def collect_finished(
        self, *, done_ms: int, cancelled_ms: int, failed_ms: int, rows_max: int, after: dt.datetime | None
    ) -> Collected:
        """Delete up to ``rows_max`` rows that ended longer ago than their retention.

        Args:
            done_ms: Retention of done rows, milliseconds.
            cancelled_ms: Of cancelled rows.
            failed_ms: Of failed rows.
            rows_max: Rows looked at, at most.
            after: Look only at rows that ended after this; None from the beginning.

        Raises:
            StoreUnavailableError: Nothing, or the whole batch, was deleted.
        """
        row = await self._db.fetch_row(
            "collect_finished",
            done_ms,
            cancelled_ms,
            failed_ms,
            rows_max,
            after or dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        )
        assert row is not None
        return Collected(deleted=row["deleted"], seen=row["seen"], reached=row["reached"])
