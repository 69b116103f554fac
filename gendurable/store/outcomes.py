"""Writing outcomes: one transaction for a batch, fenced row by row."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gendurable.model.transition import Transition
from gendurable.store.database import Connection, Database


@dataclass(frozen=True, kw_only=True, slots=True)
class FlushAnswer:
    """What a flush wrote.

    Attributes:
        statuses: Id to the status the row has now, for every row written.
        due_in_s: Id to the seconds until it may run, for rows that go on.
        unheld_queues: Queues in which a row got the concurrency key that a written row let go.
    """

    statuses: dict[int, str]
    due_in_s: dict[int, float] = field(default_factory=dict)
    unheld_queues: list[str] = field(default_factory=list)


class OutcomeStore:
    """Statements of ``sql/queries/outcomes.sql``, for one worker process."""

    def __init__(self, database: Database, *, boot: str) -> None:
        """``boot`` names this process in every guard."""
        self._db = database
        self._boot = boot

    async def commit(self, batch: Sequence[Transition]) -> FlushAnswer:
        """Write the batch in one transaction; rows that are not owned any more, or busy, are left out of the answer.

        Args:
            batch: At least one transition, no id twice, ascending by id.

        Raises:
            StoreDataError: A value was refused; nothing was written.
            StoreContendedError: A deadlock or a serialization failure; nothing was written.
            StoreUnavailableError: The commit may have happened or not; see :meth:`landed`.
        """
        assert batch
        if all(entry.is_plain_done for entry in batch):
            rows = await self._db.fetch(
                "commit_done",
                [entry.id for entry in batch],
                [entry.claim for entry in batch],
                self._boot,
                [entry.result for entry in batch],
            )
            return FlushAnswer(statuses=dict.fromkeys((row[0] for row in rows), "done"))
        keys = sorted({entry.held_key for entry in batch if entry.held_key is not None})
        if not keys:
            return await self._commit_mixed(batch, None)
        async with self._db.transaction() as connection:
            answer = await self._commit_mixed(batch, connection)
            written = sorted({entry.held_key for entry in batch if entry.held_key and entry.id in answer.statuses})
            if written:
                rows = await self._db.fetch("unhold_keys", written, connection=connection)
                answer.unheld_queues.extend(sorted({row["queue"] for row in rows}))
        return answer

    async def _commit_mixed(self, batch: Sequence[Transition], connection: Connection | None) -> FlushAnswer:
        rows = await self._db.fetch(
            "commit_outcomes",
            [entry.id for entry in batch],
            [entry.claim for entry in batch],
            self._boot,
            [entry.status for entry in batch],
            [entry.step for entry in batch],
            [entry.state for entry in batch],
            [entry.attempt for entry in batch],
            [entry.snoozes for entry in batch],
            [entry.delay_ms for entry in batch],
            [entry.at for entry in batch],
            [entry.result for entry in batch],
            [entry.error for entry in batch],
            [entry.error_kind for entry in batch],
            [entry.cancel_reason for entry in batch],
            [entry.is_key_changed for entry in batch],
            [entry.concurrency_key for entry in batch],
            connection=connection,
        )
        return FlushAnswer(
            statuses={row[0]: row[1] for row in rows},
            due_in_s={row[0]: row[2] / 1000 for row in rows if row[1] == "runnable"},
        )

    async def commit_waiting(self, entry: Transition, *, lock_wait_ms: int) -> FlushAnswer:
        """The slow lane: wait for a row that a caller's transaction holds, then write its outcome.

        Raises:
            StoreContendedError: The row was not to be had within the time; nothing was written.
            StoreUnavailableError: As :meth:`commit`.
        """
        async with self._db.transaction() as connection:
            await self._db.fetch("limit_lock_wait", str(lock_wait_ms), connection=connection)
            await self._db.fetch("lock_claims_waiting", [entry.id], self._boot, connection=connection)
            answer = await self._commit_mixed([entry], connection)
            if entry.held_key is not None and answer.statuses:
                rows = await self._db.fetch("unhold_keys", [entry.held_key], connection=connection)
                answer.unheld_queues.extend(sorted({row["queue"] for row in rows}))
        return answer

    async def still_owned(self, batch: Sequence[Transition]) -> set[int]:
        """Of rows a flush left out: those that are still ours and were only busy; the others are lost."""
        rows = await self._db.fetch(
            "claims_still_owned", [entry.id for entry in batch], [entry.claim for entry in batch], self._boot
        )
        return {row["id"] for row in rows}

    async def landed(self, batch: Sequence[Transition]) -> set[int]:
        """After a connection was lost during :meth:`commit`: the ids whose outcome was committed all the same."""
        rows = await self._db.fetch("outcome_landed", [entry.id for entry in batch], [entry.claim for entry in batch])
        return {row["id"] for row in rows}
