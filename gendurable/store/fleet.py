"""Looking at the fleet: queues, processes and machines, for people and for metrics."""

import datetime as dt
from collections.abc import Sequence

import msgspec

from gendurable.store.database import Database


class QueueOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One queue as it stands now; ``oldest_due_s`` is how long its oldest due row has waited, seconds."""

    queue: str
    runnable: int
    scheduled: int
    held: int
    executing: int
    waiting: int
    oldest_due_s: float
    paused: bool


class NodeOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One process that has registered."""

    boot: str
    node: str
    host: str
    pid: int
    version: str
    queues: list[str]
    started_at: dt.datetime
    beat_at: dt.datetime
    is_alive: bool
    executing: int


class MachineRows(msgspec.Struct, frozen=True, kw_only=True):
    """Live rows of one machine, version, step and status."""

    machine: str
    version: int
    step: str
    status: str
    rows: int


class FleetStore:
    """Statements of ``sql/queries/fleet.sql``."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._db = database

    async def queues(self) -> list[QueueOverview]:
        """Every queue that has live rows or settings."""
        return [QueueOverview(**dict(row)) for row in await self._db.fetch("queue_overview")]

    async def nodes(self) -> list[NodeOverview]:
        """Every process that has registered and was not swept."""
        return [NodeOverview(**dict(row)) for row in await self._db.fetch("list_nodes")]

    async def machines(self) -> list[MachineRows]:
        """Live rows by machine, version, step and status."""
        return [
            MachineRows(
                machine=row["fsm"], version=row["fsm_version"], step=row["step"], status=row["status"], rows=row["rows"]
            )
            for row in await self._db.fetch("count_machines")
        ]

    async def oldest_due_s(self, queues: Sequence[str]) -> dict[str, float]:
        """Seconds the oldest due row of each queue has waited; 0 when none is due."""
        rows = await self._db.fetch("oldest_due", list(queues))
        return {row["queue"]: row["oldest_due_s"] or 0.0 for row in rows}

    async def has_work(self, queues: Sequence[str]) -> bool:
        """Whether any of the queues has a row that is due or executing."""
        row = await self._db.fetch_row("due_or_executing", list(queues))
        return row is not None and bool(row["has_work"])

    async def ping(self) -> None:
        """Prove that the database answers.

        Raises:
            StoreUnavailableError: It does not.
        """
        await self._db.fetch("ping")
