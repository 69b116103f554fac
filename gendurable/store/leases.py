"""Who is alive and what they hold: processes, leases, and taking rows from the dead."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gendurable.store.database import Connection, Database, Row


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeIdentity:
    """What proves which process this is.

    Attributes:
        boot: A name no other process has or had.
        node: The configured name; many processes may share it.
        host: The machine's name.
        host_boot: The machine's boot id.
        pid_namespace: Processes in different namespaces cannot see each other.
        pid: Process id.
        pid_started: When the process started, in the kernel's ticks; tells a reused pid.
        version: The version of gendurable.
    """

    boot: str
    node: str
    host: str
    host_boot: str
    pid_namespace: str
    pid: int
    pid_started: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reaped:
    """One row taken from a worker that is gone.

    Attributes:
        crashes: Processes its step has outlived, this one included.
        due_in_s: Seconds until it may run again; from the second crash on it waits.
    """

    id: int
    queue: str
    status: str
    concurrency_key: str | None
    worker: str
    machine: str
    step: str
    crashes: int
    due_in_s: float


class LeaseStore:
    """Statements of ``sql/queries/leases.sql``."""

    def __init__(self, database: Database, identity: NodeIdentity) -> None:
        """``identity`` is this process."""
        self._db = database
        self.identity = identity

    async def register_node(
        self, *, queues: Sequence[str], lease_ttl_ms: int, connection: Connection | None = None
    ) -> None:
        """Put this process into the table of live ones."""
        me = self.identity
        await self._db.fetch(
            "register_node",
            me.boot,
            me.node,
            me.host,
            me.host_boot,
            me.pid_namespace,
            me.pid,
            me.pid_started,
            me.version,
            list(queues),
            lease_ttl_ms,
            connection=connection,
        )

    async def beat_node(self, *, lease_ttl_ms: int, connection: Connection | None = None) -> bool:
        """Say that this process lives; False when its row was swept and it must register again."""
        return bool(await self._db.fetch("beat_node", self.identity.boot, lease_ttl_ms, connection=connection))

    async def remove_node(self) -> None:
        """Take this process out of the table, at an orderly end."""
        await self._db.fetch("remove_node", self.identity.boot)

    async def renew_leases(
        self, held: Mapping[int, int], *, lease_ttl_ms: int, connection: Connection | None = None
    ) -> dict[int, bool]:
        """Push the leases of this worker's claims forward.

        Args:
            held: Instance id to the claim this worker holds on it; never empty.
            lease_ttl_ms: New lease length, counted by Postgres from now.
            connection: The heartbeat's own connection.

        Returns:
            The ids renewed, with whether somebody asked to cancel them. A missing one was busy in a caller's
            transaction, or lost: the flush decides.

        Raises:
            StoreUnavailableError: The old leases still run.
        """
        assert held
        ids = sorted(held)
        rows = await self._db.fetch(
            "renew_leases", ids, [held[i] for i in ids], self.identity.boot, lease_ttl_ms, connection=connection
        )
        return {row["id"]: row["is_cancelled"] for row in rows}

    async def still_owned(self, held: Mapping[int, int], *, connection: Connection | None = None) -> set[int]:
        """Of claims that were not renewed: the ids that this worker still owns; the others went to another one."""
        rows = await self._db.fetch(
            "claims_still_owned", [*held], [*held.values()], self.identity.boot, connection=connection
        )
        return {row["id"] for row in rows}

    async def reap_expired(
        self, *, rows_max: int, crashes_max: int, patience_ms: int, on_unheld: Callable[[str], None] | None = None
    ) -> list[Reaped]:
        """Take rows whose worker is gone, and give freed concurrency keys on, in one transaction.

        Raises:
            StoreUnavailableError: Nothing was taken, or it was and the next pass finds nothing to do.
        """
        async with self._db.transaction() as connection:
            rows = await self._db.fetch("reap_expired", rows_max, crashes_max, patience_ms, connection=connection)
            reaped = [
                Reaped(
                    id=row["id"],
                    queue=row["queue"],
                    status=row["status"],
                    concurrency_key=row["concurrency_key"],
                    worker=row["locked_by"],
                    machine=row["fsm"],
                    step=row["step"],
                    crashes=row["crashes"],
                    due_in_s=row["due_in_ms"] / 1000,
                )
                for row in rows
            ]
            keys = sorted({row.concurrency_key for row in reaped if row.concurrency_key is not None})
            unheld = await self._db.fetch("unhold_keys", keys, connection=connection) if keys else []
        _tell(on_unheld, unheld)
        return reaped

    async def end_overdue(
        self, *, rows_max: int, on_unheld: Callable[[str], None] | None = None
    ) -> list[tuple[int, str, str, str]]:
        """End waiting rows past their deadline or expiry; return (id, status, machine, step) of each.

        ``on_unheld`` is told, after the commit, each queue in which a row got a freed concurrency key.
        """
        async with self._db.transaction() as connection:
            rows = await self._db.fetch("end_overdue", rows_max, connection=connection)
            keys = sorted({row["turn"] for row in rows if row["turn"] is not None})
            unheld = await self._db.fetch("unhold_keys", keys, connection=connection) if keys else []
        _tell(on_unheld, unheld)
        return [(row["id"], row["status"], row["fsm"], row["step"]) for row in rows]

    async def next_sweep_due_s(self) -> float | None:
        """Seconds until the next lease, deadline or expiry lapses; None when there is none."""
        row = await self._db.fetch_row("next_sweep_due")
        assert row is not None
        return None if row["due_in_ms"] is None else row["due_in_ms"] / 1000

    async def silent_neighbours(self, *, silence_ms: int) -> list[tuple[str, int, str]]:
        """Processes of this machine and namespace that have been silent: (boot, pid, when the pid started)."""
        me = self.identity
        rows = await self._db.fetch("neighbours", me.boot, me.host_boot, me.pid_namespace, silence_ms)
        return [(row["boot"], row["pid"], row["pid_started"]) for row in rows]

    async def declare_dead(self, boot: str, *, rows_max: int) -> int:
        """Let the leases of a process lapse that is proven dead; return how many rows it still held."""
        await self._db.fetch("expire_node", boot)
        return len(await self._db.fetch("expire_boot_leases", boot, rows_max))

    async def sweep_nodes(self, *, silence_ms: int) -> None:
        """Forget processes that have been silent for long and hold nothing."""
        await self._db.fetch("sweep_nodes", silence_ms)


def _tell(on_unheld: Callable[[str], None] | None, rows: Sequence[Row]) -> None:
    """Name each queue that got a row back, once the transaction that gave it is committed."""
    if on_unheld is not None:
        for queue in sorted({row["queue"] for row in rows}):
            on_unheld(queue)
