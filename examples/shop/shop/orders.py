"""What an order is, which orders the shop takes, and what they cost: plain functions without a database."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

ORDERS_PATH: Final = Path(__file__).with_name("orders.jsonl")

MINOR_DIGITS: Final[Mapping[str, int]] = {"EUR": 2, "JPY": 0, "KWD": 3, "SEK": 2, "USD": 2}
"""How many digits of an amount stand behind the point: all amounts are whole numbers of the smallest coin."""

SELLS_IN: Final[Mapping[str, Sequence[str]]] = {
    "gulf-spices": ("KWD", "USD"),
    "nordic-books": ("EUR", "SEK"),
    "tokyo-tools": ("JPY", "USD"),
}
"""The tenants, and the currencies each of them takes."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an order; the price of a piece is in minor units."""

    sku: str
    name: str
    quantity: int
    unit_price: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An order as it came in; nothing about it has been checked but the types."""

    id: str
    tenant: str
    email: str
    card: str
    currency: str
    items: list[Item]
    discount_percent: int = 0
    shown_total: int
    """What the customer was shown before the click, in minor units."""


class ExpectedOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``orders.jsonl``: an order, and how it has to end, as whoever wrote the file knows."""

    order: Order
    total: int | None = None
    failure: str | None = None


def load_orders(path: Path = ORDERS_PATH) -> list[ExpectedOrder]:
    """Read a file with one order in each line."""
    return [msgspec.json.decode(line, type=ExpectedOrder) for line in path.read_bytes().splitlines()]


def problem_of(order: Order) -> str | None:
    """Why the shop does not take this order; None when it does."""
    if order.tenant not in SELLS_IN:
        return f"unknown tenant {order.tenant!r}"
    if order.currency not in MINOR_DIGITS:
        return f"unknown currency {order.currency!r}"
    if order.currency not in SELLS_IN[order.tenant]:
        return f"{order.tenant} does not sell in {order.currency}"
    if not order.items:
        return "the order has no items"
    for item in order.items:
        if item.quantity < 1:
            return f"quantity of {item.sku} is {item.quantity}, it must be positive"
        if item.unit_price < 0:
            return f"price of {item.sku} is negative"
    if not 0 <= order.discount_percent <= 100:
        return f"a discount of {order.discount_percent} % is not between 0 and 100"
    return None


def total_of(order: Order) -> int:
    """What a valid order costs, in minor units; a discount is rounded down to a whole one."""
    subtotal = sum(item.quantity * item.unit_price for item in order.items)
    return subtotal - subtotal * order.discount_percent // 100


def shown(amount: int, currency: str) -> str:
    """An amount as people write it: ``EUR 12.50``, ``JPY 1250``, ``KWD 1.250``."""
    digits = MINOR_DIGITS[currency]
    sign, text = "-" if amount < 0 else "", str(abs(amount)).rjust(digits + 1, "0")
    return f"{currency} {sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{currency} {sign}{text}"
