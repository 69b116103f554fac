"""The machines of the shop: what a worker runs. Start reading here."""

import os
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import asyncpg
import structlog

import gendurable as gd
from shop.gateway import CardDeclinedError, Gateway
from shop.orders import Order, problem_of, shown, total_of

log = structlog.stdlib.get_logger(__name__)


@gd.lifespan
async def services() -> AsyncIterator[Mapping[str, Any]]:
    """Open what steps need before the worker is ready, and close it after the last step has ended."""
    dsn = os.environ["DATABASE_URL"]
    async with asyncpg.create_pool(dsn, min_size=1, max_size=8) as pool, gd.Client(dsn) as client:
        yield {"gateway": Gateway(pool), "client": client}


@gd.middleware
async def slow_steps(ctx: gd.Context[Any], call_next: gd.Handler) -> Any:
    """Log steps that take long; the engine adds the ids of the instance to the line."""
    started_s = time.monotonic()
    try:
        return await call_next(ctx)
    finally:
        if (seconds := time.monotonic() - started_s) > 2:
            log.warning("slow step", seconds=round(seconds, 1), tenant=ctx.metadata.get("tenant"))


def backoff_s(attempt: int) -> float:
    """A short wait after a failed attempt, because nobody likes to watch a demo wait: 0.2 s, 0.4 s, 0.8 s …"""
    return 0.2 * 2.0**attempt


class OrderState(gd.State):
    """What is remembered between the steps of an order."""

    order: Order
    total: int = 0


class OrderMachine(gd.Machine[OrderState], name="order", queue="orders", max_attempts=8, backoff=backoff_s):
    """One order from the click to the parcel."""

    @gd.step
    async def validate(self, ctx: gd.Context[OrderState]) -> gd.Outcome:
        """Refuse what the shop cannot take: a decision, so it is not tried again."""
        if problem := problem_of(ctx.state.order):
            return gd.Stop(problem)
        return gd.Next(self.price)

    @gd.step
    async def price(self, ctx: gd.Context[OrderState]) -> gd.Outcome:
        """Work out the total and hold it against what the customer saw."""
        order, total = ctx.state.order, total_of(ctx.state.order)
        if total != order.shown_total:
            seen, costs = shown(order.shown_total, order.currency), shown(total, order.currency)
            return gd.Stop(f"the customer was shown {seen}, but it costs {costs}")
        return gd.Next(self.charge, state=ctx.state.replace(total=total))

    @gd.step(timeout=60)
    async def charge(self, ctx: gd.Context[OrderState]) -> gd.Outcome:
        """Take the money. An error that is raised is tried again after the backoff; a refusal is final."""
        gateway: Gateway = ctx.resources["gateway"]
        try:
            await gateway.charge(ctx.state.order, ctx.state.total)
        except CardDeclinedError as declined:
            return gd.Stop(f"payment refused: {declined}")
        return gd.Next(self.ship)

    @gd.step(timeout=60)
    async def ship(self, ctx: gd.Context[OrderState]) -> gd.Outcome:
        """Send the parcel and leave the receipt to a job of its own."""
        gateway: Gateway = ctx.resources["gateway"]
        client: gd.Client = ctx.resources["client"]
        order = ctx.state.order
        await gateway.ship(order)
        # This step may run again after a crash. The key is taken for ever, so the second insert answers Duplicate.
        await client.insert(
            send_receipt.with_args(order=order, total=ctx.state.total),
            correlation_key=f"receipt:{order.id}",
            scope=gd.Scope.EVER,
            metadata=ctx.metadata,
            tags=ctx.tags,
        )
        return gd.Done({"order": order.id, "total": ctx.state.total, "currency": order.currency})


@gd.job(queue="mail", timeout=60, max_attempts=8, backoff=backoff_s)
async def send_receipt(ctx: gd.Context[Any], order: Order, total: int) -> None:
    """Send the receipt; a job is a machine with one step."""
    gateway: Gateway = ctx.resources["gateway"]
    await gateway.mail(order)
    log.debug("receipt sent", to=order.email, total=shown(total, order.currency))


def order_request(order: Order) -> gd.Request:
    """A new row for an order, which can be found by its key, its tenant and its currency."""
    return OrderMachine.with_state(OrderState(order=order)).with_options(
        correlation_key=f"order:{order.id}",
        scope=gd.Scope.EVER,
        metadata={"tenant": order.tenant},
        tags=[order.tenant, order.currency],
    )
