"""The hot statements without an engine around them: what a bench compares the engine with.

One connection claims and flushes in turn, batch after batch, and does nothing for each row but name it. The statements
are those of the product, from the same files.
"""

import time
from collections.abc import Sequence

from gendurable.store.claims import SCAN_START, ScanPosition
from gendurable.store.database import Connection, Database, Row

BARE_BOOT = "bench/bare"
BARE_BATCH_ROWS = 500
_LEASE_MS = 30_000


class BareLoop:
    """Claims and flushes on one connection of the pool."""

    def __init__(self, database: Database) -> None:
        """``database`` is open."""
        self._db = database
        self._start = SCAN_START

    async def drain_done(self, queue: str, *, batch_rows: int = BARE_BATCH_ROWS) -> int:
        """Claim and end rows as done until the queue has nothing due; return how many."""
        total = 0
        async with self._db.connection() as connection:
            while rows := await self._claim(connection, queue, batch_rows):
                await end_rows(self._db, connection, rows)
                total += len(rows)
        return total

    async def end_batch(self, queue: str, *, batch_rows: int = BARE_BATCH_ROWS) -> int:
        """Claim one batch from the start of the queue and end its rows as done; return how many."""
        async with self._db.connection() as connection:
            rows, _ = await claim_rows(self._db, connection, queue, batch_rows)
            if rows:
                await end_rows(self._db, connection, rows)
        return len(rows)

    async def probe(self, queue: str, *, batch_rows: int = BARE_BATCH_ROWS) -> tuple[float, float]:
        """The seconds of one claim from the start of the queue and of one flush of its rows; both are rolled back."""
        async with self._db.connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                rows, claim_s = await claim_rows(self._db, connection, queue, batch_rows)
                started_s = time.perf_counter()
                await end_rows(self._db, connection, rows)
                return claim_s, time.perf_counter() - started_s
            finally:
                await transaction.rollback()

    async def drain_steps(self, queue: str, steps: Sequence[str], states: Sequence[str], *, batch_rows: int) -> int:
        """Claim rows and move each to its next step, or to its end after the last; return how many steps that were.

        Args:
            queue: The queue.
            steps: The machine's steps in their order.
            states: The state each step leaves behind, JSON text; one for each step but the last.
            batch_rows: Rows of one claim.
        """
        total = 0
        following: dict[str, tuple[str | None, str | None, str]] = {
            step: (after, state, "runnable") for step, after, state in zip(steps, steps[1:], states, strict=False)
        }
        following[steps[-1]] = (None, None, "done")
        async with self._db.connection() as connection:
            while rows := await self._claim(connection, queue, batch_rows):
                await self._commit(connection, sorted(rows, key=lambda row: int(row[1])), following)
                total += len(rows)
        return total

    async def _commit(
        self, connection: Connection, rows: Sequence[Row], following: dict[str, tuple[str | None, str | None, str]]
    ) -> None:
        nothing, zeros = [None] * len(rows), [0] * len(rows)
        changes = [following[row[4]] for row in rows]
        await self._db.fetch(
            "commit_outcomes",
            [row[1] for row in rows],
            [row[9] for row in rows],
            BARE_BOOT,
            [change[2] for change in changes],
            [change[0] for change in changes],
            [change[1] for change in changes],
            zeros,
            zeros,
            zeros,
            *[nothing] * 5,
            [False] * len(rows),
            nothing,
            connection=connection,
        )

    async def _claim(self, connection: Connection, queue: str, batch_rows: int) -> list[Row]:
        """The next batch; an empty one from the middle of the queue is asked for again from its start."""
        while True:
            start = self._start
            rows, _ = await claim_rows(self._db, connection, queue, batch_rows, start)
            self._start = _position_after(rows) if len(rows) == batch_rows else SCAN_START
            if rows or start is SCAN_START:
                return rows


async def end_rows(database: Database, connection: Connection, rows: Sequence[Row]) -> None:
    """End claimed rows as done, by the product's statement."""
    await database.fetch(
        "commit_done",
        [row[1] for row in rows],
        [row[9] for row in rows],
        BARE_BOOT,
        [None] * len(rows),
        connection=connection,
    )


async def claim_rows(
    database: Database, connection: Connection, queue: str, batch_rows: int, start: ScanPosition = SCAN_START
) -> tuple[list[Row], float]:
    """One claim by the product's statement; return its rows and the seconds it took."""
    started_s = time.perf_counter()
    rows = await database.fetch(
        "claim_runnable",
        queue,
        batch_rows,
        BARE_BOOT,
        _LEASE_MS,
        start.priority,
        start.eligible_at,
        start.id,
        True,  # noqa: FBT003 - the driver takes parameters by place
        [],
        connection=connection,
    )
    seconds = time.perf_counter() - started_s
    database.note_table_pages(rows.pop()[1])
    return rows, seconds


def _position_after(rows: Sequence[Row]) -> ScanPosition:
    last = rows[-1]
    return ScanPosition(priority=last["priority"], eligible_at=last["eligible_at"], id=last["id"])
