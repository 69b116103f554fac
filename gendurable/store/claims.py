"""Claiming rows, handing them back, and the rows that wait behind a busy concurrency key."""

import datetime as dt
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gendurable.model.claim import Claim
from gendurable.store.database import Database

_START = dt.datetime(1969, 12, 31, tzinfo=dt.UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanPosition:
    """Where a claim's index scan starts, exclusive."""

    priority: int = -32768
    eligible_at: dt.datetime = _START
    id: int = 0


SCAN_START = ScanPosition()


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimAnswer:
    """What one claim brought.

    Attributes:
        claims: The rows this worker owns now, in batch order.
        held_keys: Keys of rows that were held because their key is busy; see :meth:`ClaimStore.settle_held_keys`.
        next_due_in_s: Seconds until the next future row, None when there is none or when the batch was full.
        position: Where the scan got to; None when nothing was claimed.
    """

    claims: list[Claim]
    held_keys: list[str] = field(default_factory=list)
    next_due_in_s: float | None = None
    position: ScanPosition | None = None


class ClaimStore:
    """Statements of ``sql/queries/claims.sql``, for one worker process."""

    def __init__(self, database: Database, *, boot: str) -> None:
        """``boot`` names this process in every guard."""
        self._db = database
        self._boot = boot

    async def claim_runnable(
        self,
        *,
        queue: str,
        rows_max: int,
        lease_ttl_ms: int,
        start: ScanPosition = SCAN_START,
        with_keys: bool = True,
        unresolved: Sequence[str] = (),
    ) -> ClaimAnswer:
        """Claim up to ``rows_max`` due rows of one queue.

        Args:
            queue: The queue.
            rows_max: At least 1.
            lease_ttl_ms: Milliseconds until the claims lapse unless renewed.
            start: Skip everything up to this position; an optimisation only.
            with_keys: False to leave rows with a concurrency key.
            unresolved: ``fsm@version`` pairs to leave to other processes.

        Raises:
            StoreContendedError: Another process took a key at the same moment; nothing was claimed.
            StoreUnavailableError: Nothing was claimed, or the claim was lost with the connection and its lease decides.
        """
        assert rows_max > 0
        rows = await self._db.fetch(
            "claim_runnable",
            queue,
            rows_max,
            self._boot,
            lease_ttl_ms,
            start.priority,
            start.eligible_at,
            start.id,
            with_keys,
            list(unresolved),
        )
        last = rows.pop()
        assert last[0] == "next"
        self._db.note_table_pages(last[1])
        held_keys = []
        while rows and rows[-1][0] == "held":
            held_keys.append(rows.pop()["concurrency_key"])
        now_s = time.monotonic()
        # By place: names cost a lookup for each of twenty columns, and this runs for every row.
        claims = [Claim(queue, now_s, *row[1:]) for row in rows]
        position = None
        if rows:
            final = rows[-1]
            position = ScanPosition(priority=final["priority"], eligible_at=final["eligible_at"], id=final["id"])
        due_ms = last["due_in_ms"]
        return ClaimAnswer(
            claims=claims,
            held_keys=sorted(set(held_keys)),
            next_due_in_s=None if due_ms is None else due_ms / 1000,
            position=position,
        )

    async def release_claims(
        self,
        claims: Sequence[Claim],
        *,
        delays_ms: Sequence[int | None],
        on_unheld: Callable[[str], None] | None = None,
    ) -> set[int]:
        """Hand rows back, attempt unchanged.

        Args:
            claims: What this worker holds; at least one.
            delays_ms: For each, milliseconds before it may run; None leaves it due when it was.
            on_unheld: Told, after the commit, each queue in which a row got a freed concurrency key.

        Returns:
            The ids handed back; a missing one was lost, or is locked by a caller and left to its lease.

        Raises:
            StoreUnavailableError: The leases decide.
        """
        assert claims
        ordered = sorted(zip(claims, delays_ms, strict=True), key=lambda pair: pair[0].id)
        ids = [claim.id for claim, _ in ordered]
        fences = [claim.claim for claim, _ in ordered]
        delays = [delay for _, delay in ordered]
        if all(claim.concurrency_key is None for claim in claims):
            rows = await self._db.fetch("release_claims", ids, fences, self._boot, delays)
            return {row["id"] for row in rows}
        async with self._db.transaction() as connection:
            rows = await self._db.fetch("release_claims", ids, fences, self._boot, delays, connection=connection)
            released = {row["id"] for row in rows}
            # The key of a claim that was lost is somebody else's to pass on.
            keys = sorted({claim.concurrency_key for claim in claims if claim.concurrency_key and claim.id in released})
            unheld = await self._db.fetch("unhold_keys", keys, connection=connection) if keys else []
        if on_unheld is not None:
            for queue in sorted({row["queue"] for row in unheld}):
                on_unheld(queue)
        return released

    async def settle_held_keys(self, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        """After a claim held rows: un-hold those whose key was freed meanwhile.

        Returns:
            The queues that got a row back, and the keys that are changing hands now and must be asked again.

        Raises:
            StoreUnavailableError: The reconciler will do it.
        """
        answers = await self._db.fetch("key_holders", sorted(keys))
        free = [row["key"] for row in answers if row["answer"] == "free"]
        changing = [row["key"] for row in answers if row["answer"] == "changing"]
        return (await self.unhold_keys(free) if free else []), changing

    async def unhold_keys(self, keys: Sequence[str]) -> list[str]:
        """Give each key to its next held row; return the queues that got one."""
        rows = await self._db.fetch("unhold_keys", sorted(keys))
        return sorted({row["queue"] for row in rows})

    async def orphaned_held_keys(self, *, keys_max: int) -> list[str]:
        """Keys that hold rows although nobody executes them."""
        return [row["key"] for row in await self._db.fetch("orphaned_held_keys", keys_max)]
