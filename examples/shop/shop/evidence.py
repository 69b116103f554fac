"""What is left in the database after a run, read into plain values; and what can be seen while it goes on."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg
import msgspec

import gendurable as gd

if TYPE_CHECKING:
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

OrderStep: TypeAlias = tuple[str, str]
"""An order's id and a step: ``charge``, ``ship``, ``receipt``; ``validate`` and ``price`` never leave the engine."""

_HELD_BY: Final = """
    select g.correlation_key as key, g.step
    from gendurable.gen_durable as g
    join gendurable.nodes as n on n.boot = g.locked_by
    where n.node = $1
"""
_ENDED: Final = """
    select count(*) from gendurable.gen_durable as g where g.correlation_key = any ($1) and g.finished_at is not null
"""
_PROGRESS: Final = """
    select
        (select count(*) from gendurable.gen_durable as g where g.fsm = 'order' and g.finished_at is not null) as ended,
        (select count(*) from gendurable.gen_durable as g where g.finished_at is null) as unfinished,
        (select count(*) from shop.ledger as l where l.step = 'charge') as charged,
        (select count(*) from shop.ledger as l where l.step = 'ship') as shipped,
        (select count(*) from shop.ledger as l where l.step = 'receipt') as mailed
"""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened outside, and how often it was asked for in vain afterwards."""

    order_id: str
    step: str
    tenant: str
    currency: str
    amount: int
    repeats: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """An instance at the end of the run."""

    id: int
    status: str
    last_error: str | None = None
    result: Mapping[str, object] | None = None
    endings: int = 1


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the verdict is reached from.

    Attributes:
        orders: Order id to every instance of the order's machine.
        receipts: Order id to every instance of the job that mails the receipt.
        ledger: The outside world's own record.
        calls: Calls of the gateway, before the ledger removed repeats.
        interrupted: What each victim held when it was killed or stopped; an order and step may be in several.
        refused: Late outcomes that were refused.
    """

    orders: Mapping[str, Sequence[Ended]]
    receipts: Mapping[str, Sequence[Ended]]
    ledger: Sequence[LedgerRow]
    calls: Mapping[OrderStep, int]
    interrupted: Mapping[str, Sequence[OrderStep]]
    refused: int


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the run is."""

    ended: int
    unfinished: int
    charged: int
    shipped: int
    mailed: int


class Watch:
    """Looks at a running shop on a connection of its own."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        # Progress is drawn while the run goes on, and one connection answers one question at a time.
        self._turn = asyncio.Lock()

    async def nodes_ready(self) -> bool:
        """Whether both workers have registered."""
        async with self._turn:
            return bool(await self._connection.fetchval("select count(*) >= 2 from gendurable.nodes"))

    async def progress(self) -> Progress:
        """Count what has been reached."""
        async with self._turn:
            row = await self._connection.fetchrow(_PROGRESS)
        return msgspec.convert(dict(row or {}), Progress)

    async def held_by(self, node: str) -> list[OrderStep]:
        """The orders and steps that a worker holds now, running or about to."""
        async with self._turn:
            rows = await self._connection.fetch(_HELD_BY, node)
        return [_order_step(row["key"], row["step"]) for row in rows]

    async def count_ended(self, held: Sequence[OrderStep]) -> int:
        """How many of these instances have ended."""
        keys = [f"{'receipt' if step == 'receipt' else 'order'}:{order_id}" for order_id, step in held]
        async with self._turn:
            return int(await self._connection.fetchval(_ENDED, keys))

    async def gather(
        self, client: gd.Client, *, interrupted: Mapping[str, Sequence[OrderStep]], refused: int
    ) -> Evidence:
        """Read everything once the run is over."""
        async with self._turn:
            ledger = await self._connection.fetch(
                "select order_id, step, tenant, currency, amount, repeats from shop.ledger"
            )
            calls = await self._connection.fetch("select order_id, step, calls from shop.calls")
            endings = await self._connection.fetch(
                "select instance_id, count(*) as times from shop.endings group by instance_id"
            )
        times = {row["instance_id"]: row["times"] for row in endings}
        return Evidence(
            orders=await _ended(client, "order", times),
            receipts=await _ended(client, "send_receipt", times),
            ledger=[msgspec.convert(dict(row), LedgerRow) for row in ledger],
            calls={(row["order_id"], row["step"]): row["calls"] for row in calls},
            interrupted=interrupted,
            refused=refused,
        )


def _order_step(key: str, step: str) -> OrderStep:
    """``receipt:no-0017`` in step ``run`` is the receipt of order ``no-0017``."""
    kind, _, order_id = key.partition(":")
    return order_id, "receipt" if kind == "receipt" else step


async def _ended(client: gd.Client, machine: str, endings: Mapping[int, int]) -> dict[str, list[Ended]]:
    """Every instance of a machine by order, page by page."""
    found: dict[str, list[Ended]] = {}
    before_id: int | None = None
    while page := await client.list(machine=machine, before_id=before_id, limit=1000):
        for instance in page:
            ended = Ended(
                id=instance.id,
                status=instance.status,
                last_error=instance.last_error,
                result=instance.result,
                endings=endings.get(instance.id, 0),
            )
            order_id = (instance.correlation_key or "?").partition(":")[2]
            found.setdefault(order_id, []).append(ended)
        before_id = page[-1].id
    return found
