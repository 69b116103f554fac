"""Writes ``orders.jsonl``: ``python -m shop.generator``. The same seed gives the same file.

What each order must come to is worked out here with decimals, not with the shop's own functions, so that the two can
disagree.
"""

import argparse
from collections.abc import Callable, Sequence
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from shop.orders import MINOR_DIGITS, ORDERS_PATH, SELLS_IN, ExpectedOrder, Item, Order

ORDERS: Final = 320
SEED: Final = 20_240
_INVALID_EVERY: Final = 9

_GOODS: Final[dict[str, Sequence[tuple[str, str, str]]]] = {
    # sku, name, price in euros; other currencies are converted by the rates below
    "gulf-spices": [
        ("SP-SAFFRON", "Saffron, 2 g", "14.90"),
        ("SP-SUMAC", "Sumac, 250 g", "6.40"),
        ("SP-LIME", "Dried limes, 500 g", "8.75"),
        ("SP-CARDAMOM", "Cardamom, 100 g", "9.95"),
    ],
    "nordic-books": [
        ("BK-EDDA", "The Poetic Edda", "18.50"),
        ("BK-MOOMIN", "Moominland Midwinter", "11.90"),
        ("BK-ATLAS", "Atlas of Remote Islands", "32.00"),
        ("BK-KNITTING", "Lopi Knitting Patterns", "24.80"),
        ("BK-CARD", "Postcard, aurora", "1.20"),
    ],
    "tokyo-tools": [
        ("TL-NOKOGIRI", "Dozuki saw, 240 mm", "41.00"),
        ("TL-NOMI", "Bench chisel, 18 mm", "55.50"),
        ("TL-KANNA", "Smoothing plane", "129.00"),
        ("TL-STONE", "Water stone, 1000", "27.30"),
    ],
}
_RATES: Final = {"EUR": "1", "JPY": "163", "KWD": "0.334", "SEK": "11.3", "USD": "1.09"}
_PEOPLE: Final = ["aino", "bjarne", "chiyo", "dalia", "elif", "farid", "greta", "hiro", "ines", "jamal", "kaisa", "lev"]
_DECLINES: Final = {"card-expired": "the card has expired", "card-empty": "insufficient funds"}


def generate(count: int = ORDERS, seed: int = SEED) -> list[ExpectedOrder]:
    """Make so many orders; about one in nine is invalid, in every way there is."""
    rng = Random(seed)
    lines = []
    for number in range(1, count + 1):
        line = _valid(rng, number)
        if number % _INVALID_EVERY == 0:
            line = _SPOILERS[number // _INVALID_EVERY % len(_SPOILERS)](line.order, rng)
        lines.append(line)
    return lines


def _valid(rng: Random, number: int) -> ExpectedOrder:
    tenant = rng.choice(sorted(SELLS_IN))
    currency = rng.choice(SELLS_IN[tenant])
    items = [
        Item(sku=sku, name=name, quantity=rng.choice([1, 1, 1, 2, 3, 5]), unit_price=_minor(price, currency))
        for sku, name, price in rng.sample(_GOODS[tenant], k=rng.randint(1, 4))
    ]
    order = Order(
        id=f"{tenant[:2]}-{number:04}",
        tenant=tenant,
        email=f"{rng.choice(_PEOPLE)}{rng.randint(1, 99)}@example.org",
        card=f"card-{rng.randrange(10**6):06}",
        currency=currency,
        items=items,
        discount_percent=rng.choice([0, 0, 0, 0, 5, 10, 15, 33]),
        shown_total=0,
    )
    total = _total(order)
    return ExpectedOrder(order=msgspec.structs.replace(order, shown_total=total), total=total)


def _minor(euros: str, currency: str) -> int:
    """A price in minor units of another currency."""
    return int((Decimal(euros) * Decimal(_RATES[currency])).scaleb(MINOR_DIGITS[currency]).to_integral_value())


def _total(order: Order) -> int:
    full = sum((Decimal(item.unit_price) * item.quantity for item in order.items), Decimal(0))
    discount = (full * order.discount_percent / 100).to_integral_value(ROUND_FLOOR)
    return int(full - discount)


def _unknown_tenant(order: Order, _: Random) -> ExpectedOrder:
    return ExpectedOrder(
        order=msgspec.structs.replace(order, tenant="acme-flowers"), failure="unknown tenant 'acme-flowers'"
    )


def _unknown_currency(order: Order, _: Random) -> ExpectedOrder:
    return ExpectedOrder(order=msgspec.structs.replace(order, currency="DEM"), failure="unknown currency 'DEM'")


def _foreign_currency(order: Order, rng: Random) -> ExpectedOrder:
    foreign = rng.choice(sorted(MINOR_DIGITS.keys() - set(SELLS_IN[order.tenant])))
    return ExpectedOrder(
        order=msgspec.structs.replace(order, currency=foreign), failure=f"{order.tenant} does not sell in {foreign}"
    )


def _no_items(order: Order, _: Random) -> ExpectedOrder:
    return ExpectedOrder(order=msgspec.structs.replace(order, items=[]), failure="the order has no items")


def _bad_quantity(order: Order, rng: Random) -> ExpectedOrder:
    quantity = rng.choice([0, -1, -4])
    *others, last = order.items
    items = [*others, msgspec.structs.replace(last, quantity=quantity)]
    return ExpectedOrder(
        order=msgspec.structs.replace(order, items=items),
        failure=f"quantity of {last.sku} is {quantity}, it must be positive",
    )


def _negative_price(order: Order, _: Random) -> ExpectedOrder:
    first, *others = order.items
    items = [msgspec.structs.replace(first, unit_price=-first.unit_price), *others]
    return ExpectedOrder(order=msgspec.structs.replace(order, items=items), failure=f"price of {first.sku} is negative")


def _bad_discount(order: Order, rng: Random) -> ExpectedOrder:
    percent = rng.choice([-5, 101, 150])
    return ExpectedOrder(
        order=msgspec.structs.replace(order, discount_percent=percent),
        failure=f"a discount of {percent} % is not between 0 and 100",
    )


def _wrong_total(order: Order, rng: Random) -> ExpectedOrder:
    total = order.shown_total
    wrong = total - rng.randint(1, min(total, 100))
    unit = Decimal(1).scaleb(-MINOR_DIGITS[order.currency])
    amounts = [Decimal(amount) * unit for amount in (wrong, total)]
    return ExpectedOrder(
        order=msgspec.structs.replace(order, shown_total=wrong),
        failure=f"the customer was shown {order.currency} {amounts[0]}, but it costs {order.currency} {amounts[1]}",
    )


def _declined(order: Order, rng: Random) -> ExpectedOrder:
    card = rng.choice(sorted(_DECLINES))
    return ExpectedOrder(order=msgspec.structs.replace(order, card=card), failure=f"payment refused: {_DECLINES[card]}")


_SPOILERS: Final[Sequence[Callable[[Order, Random], ExpectedOrder]]] = [
    _unknown_tenant,
    _unknown_currency,
    _foreign_currency,
    _no_items,
    _bad_quantity,
    _negative_price,
    _bad_discount,
    _wrong_total,
    _declined,
]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=ORDERS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=ORDERS_PATH)
    arguments = parser.parse_args()
    lines = [msgspec.json.encode(line) + b"\n" for line in generate(arguments.count, arguments.seed)]
    arguments.out.write_bytes(b"".join(lines))


if __name__ == "__main__":
    main()
