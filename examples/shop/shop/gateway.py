"""A payment, parcel and mail service that is slow, fails sometimes, and never does the same thing twice.

It stands for the world outside. A step may run more than once, when its worker died before the outcome was committed,
so everything asked of the outside carries an idempotency key, here ``<order>:<step>``. Each call is counted before the
ledger finds that it is a repeat: the counts say what the engine did, the ledger what came of it.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

import asyncpg

from shop.orders import Order

if TYPE_CHECKING:
    Pool = asyncpg.Pool[asyncpg.Record]

_SEED: Final = 7
_FAILS_ONCE: Final = 0.12
_FAILS_TWICE: Final = 0.04
_WAY_S: Final = 0.2
_NAP_S: Final = 0.025

_DECLINED: Final = {"card-expired": "the card has expired", "card-empty": "insufficient funds"}

_COUNT: Final = """
    insert into shop.calls as c (order_id, step, calls)
    values ($1, $2, 1)
    on conflict (order_id, step) do update
    set calls = c.calls + 1
    returning c.calls
"""
_RECORD: Final = """
    insert into shop.ledger as l (key, order_id, step, tenant, currency, amount)
    values ($1, $2, $3, $4, $5, $6)
    on conflict (key) do update
    set repeats = l.repeats + 1
"""


class GatewayDownError(Exception):
    """The service did not answer; the call may be tried again."""


class CardDeclinedError(Exception):
    """The bank said no, and will say so again."""


def failures_planned(order_id: str, step: str) -> int:
    """How many calls of this pair fail before one succeeds: the same in every run."""
    chance = Random(f"{_SEED}/{order_id}/{step}").random()
    if chance < _FAILS_TWICE:
        return 2
    return 1 if chance < _FAILS_TWICE + _FAILS_ONCE else 0


class Gateway:
    """The outside services on a connection pool of their own."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool

    async def charge(self, order: Order, amount: int) -> None:
        """Take the money, once.

        Raises:
            GatewayDownError: Nothing was taken this time.
            CardDeclinedError: Nothing was taken.
        """
        await self._call(order, "charge", amount)

    async def ship(self, order: Order) -> None:
        """Send the parcel, once.

        Raises:
            GatewayDownError: Nothing was sent this time.
        """
        await self._call(order, "ship", 0)

    async def mail(self, order: Order) -> None:
        """Send the receipt, once.

        Raises:
            GatewayDownError: Nothing was sent this time.
        """
        await self._call(order, "receipt", 0)

    async def _call(self, order: Order, step: str, amount: int) -> None:
        calls = await self._pool.fetchval(_COUNT, order.id, step)
        await _travel()
        if calls <= failures_planned(order.id, step):
            raise GatewayDownError(f"the {step} service did not answer")
        if step == "charge" and order.card in _DECLINED:
            raise CardDeclinedError(_DECLINED[order.card])
        await self._pool.execute(_RECORD, f"{order.id}:{step}", order.id, step, order.tenant, order.currency, amount)
        # It is done, but the answer still has to come back: whoever dies now leaves a repeat for the ledger.
        await _travel()


async def _travel() -> None:
    """Be on the way. In naps, so that a process that was stopped meanwhile still has the rest before it."""
    for _ in range(round(_WAY_S / _NAP_S)):
        await asyncio.sleep(_NAP_S)
