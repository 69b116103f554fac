"""The example shop: played once in short, and its verdict fed with lies."""

import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import asyncpg
import msgspec
import pytest
from rich.console import Console

_EXAMPLE = Path(__file__).parents[2] / "examples" / "shop"
# The example is a package of its own, which need not be installed for its tests.
sys.path.insert(0, str(_EXAMPLE))

import gendurable as gd  # noqa: E402
from shop import generator  # noqa: E402
from shop.demo import play  # noqa: E402
from shop.evidence import Ended, Evidence, LedgerRow, Watch  # noqa: E402
from shop.orders import ExpectedOrder, load_orders, shown  # noqa: E402
from shop.report import print_verdict  # noqa: E402
from shop.verdict import CALLED_STEPS, VICTIMS, Verdict, calls_needed, judge  # noqa: E402

_MONEY = "tenants and currencies whose money is right"


@pytest.fixture
def installed_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers find the shop through its entry points, as if it had been installed, without an installer."""
    project = tomllib.loads((_EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    metadata.joinpath("entry_points.txt").write_text("\n".join(points))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{_EXAMPLE}")


@pytest.mark.usefixtures("installed_shop")
async def test_every_order_ends_once_although_one_worker_is_stopped_and_one_is_killed(dsn: str, tmp_path: Path):
    """What the product promises, through its public door: real processes, real signals, and a checked total.

    The end doctors the real ledger, because a check that cannot fail proves nothing.
    """
    expected = load_orders()

    verdict = await play(dsn, expected, console=Console(), folder=tmp_path)

    assert broken(verdict) == {}
    print_verdict(verdict, Console())
    doctored = await _judged_after("update shop.ledger set amount = amount + 1 where key = $1", dsn, expected)
    assert _MONEY in broken(doctored)


async def _judged_after(statement: str, dsn: str, expected: list[ExpectedOrder]) -> Verdict:
    """The verdict over the same database after somebody had a hand in the first order's charge."""
    connection = await asyncpg.connect(dsn)
    try:
        assert await connection.execute(statement, f"{expected[0].order.id}:charge") == "UPDATE 1"
        async with gd.Client(dsn) as client:
            evidence = await Watch(connection).gather(client, interrupted={}, refused=1)
    finally:
        await connection.close()
    return judge(expected, evidence)


@pytest.fixture
def expected() -> list[ExpectedOrder]:
    """Enough orders for every way of being invalid."""
    return load_orders()[:100]


@pytest.fixture
def evidence(expected: list[ExpectedOrder]) -> Evidence:
    """What a perfect run leaves behind: two victims with twelve calls in hand, of which one each was repeated."""
    ledger, orders, receipts, calls = [], {}, {}, {}
    for number, line in enumerate(expected, 1):
        order = line.order
        calls |= {(order.id, step): count for step, count in calls_needed(line).items()}
        if line.total is None:
            orders[order.id] = [Ended(id=number, status="failed", last_error=line.failure)]
            continue
        orders[order.id] = [Ended(id=number, status="done", result={"total": line.total})]
        receipts[order.id] = [Ended(id=1000 + number, status="done", result={})]
        ledger += [
            LedgerRow(
                order_id=order.id,
                step=step,
                tenant=order.tenant,
                currency=order.currency,
                amount=line.total if step == "charge" else 0,
                repeats=0,
            )
            for step in CALLED_STEPS
        ]
    valid = [line.order.id for line in expected if line.total is not None]
    interrupted = {
        VICTIMS[0]: [(order_id, "charge") for order_id in valid[:12]],
        VICTIMS[1]: [(order_id, "ship") for order_id in valid[:12]],
    }
    calls[valid[0], "charge"] += 1
    calls[valid[1], "ship"] += 1
    return Evidence(orders=orders, receipts=receipts, ledger=ledger, calls=calls, interrupted=interrupted, refused=3)


def test_a_perfect_run_is_accepted(expected: list[ExpectedOrder], evidence: Evidence):
    """The lies below prove something only if the truth passes."""
    verdict = judge(expected, evidence)

    assert verdict.is_kept, broken(verdict)
    assert sum(line.repeats for line in verdict.calls) == 2


def _changed(rows: Mapping[str, list[Ended]], order_id: str, **changes: object) -> dict[str, list[Ended]]:
    return {**rows, order_id: [msgspec.structs.replace(rows[order_id][0], **changes)]}


def _lies() -> Iterator[tuple[str, str, Callable[[Evidence, str, str], dict[str, object]]]]:
    """A name, the check that must notice, and what is changed, given a valid and an invalid order."""
    once, money, things = (
        "orders that ended exactly once",
        _MONEY,
        "charges, parcels and receipts in the ledger",
    )
    repeated = "repeated calls, only of rows in a victim's hands"
    reasons = "invalid orders that failed for their reason"
    yield "an order is missing", once, lambda e, v, _: {"orders": {k: o for k, o in e.orders.items() if k != v}}
    yield "an order ended twice", once, lambda e, v, _: {"orders": _changed(e.orders, v, endings=2)}
    yield "an order never ended", once, lambda e, v, _: {"orders": _changed(e.orders, v, status="runnable")}
    yield "an order ran twice", once, lambda e, v, _: {"orders": {**e.orders, v: [*e.orders[v], *e.orders[v]]}}
    yield "a stranger ended", once, lambda e, v, _: {"orders": {**e.orders, "zz-1": e.orders[v]}}
    yield (
        "a valid order failed",
        "valid orders that are done",
        lambda e, v, _: {"orders": _changed(e.orders, v, status="failed")},
    )
    yield "an invalid order is done", reasons, lambda e, _, i: {"orders": _changed(e.orders, i, status="done")}
    yield "the reason is another", reasons, lambda e, _, i: {"orders": _changed(e.orders, i, last_error="no")}
    yield "a result says less", money, lambda e, v, _: {"orders": _changed(e.orders, v, result={"total": 1})}
    yield (
        "a coin is missing",
        money,
        lambda e, *_: {"ledger": [msgspec.structs.replace(e.ledger[0], amount=e.ledger[0].amount - 1), *e.ledger[1:]]},
    )
    yield (
        "money went to another tenant",
        money,
        lambda e, *_: {"ledger": [msgspec.structs.replace(e.ledger[0], tenant="thief"), *e.ledger[1:]]},
    )
    yield "a charge was made twice", things, lambda e, *_: {"ledger": [*e.ledger, e.ledger[0]]}
    yield "a parcel is missing", things, lambda e, *_: {"ledger": e.ledger[:-2]}
    yield (
        "a receipt ended twice",
        "receipt jobs that ended exactly once",
        lambda e, v, _: {"receipts": _changed(e.receipts, v, endings=2)},
    )
    yield "a call was repeated that no victim held", repeated, lambda e, v, _: {"calls": {**e.calls, (v, "receipt"): 9}}
    yield "a call was never made", repeated, lambda e, v, _: {"calls": {**e.calls, (v, "receipt"): 0}}
    yield "an invalid order was shipped", repeated, lambda e, _, i: {"calls": {**e.calls, (i, "ship"): 1}}
    yield (
        "nobody was killed",
        f"rows held by {VICTIMS[1]}",
        lambda e, *_: {"interrupted": {VICTIMS[0]: e.interrupted[VICTIMS[0]]}},
    )
    yield "no late outcome came", "late outcomes refused, of the stopped worker", lambda *_: {"refused": 0}


@pytest.mark.parametrize(("claim", "lie"), [pytest.param(claim, lie, id=name) for name, claim, lie in _lies()])
def test_a_lie_in_the_evidence_is_noticed(
    claim: str,
    lie: Callable[[Evidence, str, str], dict[str, object]],
    expected: list[ExpectedOrder],
    evidence: Evidence,
):
    """The demo ends with 1 for each thing that can go wrong, not only for those that happen to go together."""
    valid = expected[-1].order.id
    invalid = next(line.order.id for line in expected if line.failure is not None)

    verdict = judge(expected, msgspec.structs.replace(evidence, **lie(evidence, valid, invalid)))

    assert not verdict.is_kept
    assert claim in broken(verdict)
    print_verdict(verdict, Console())


def broken(verdict: Verdict) -> dict[str, list[str]]:
    """The checks that failed, with their problems."""
    return {check.claim: list(check.problems) for check in verdict.checks if not check.is_kept}


def test_the_orders_are_those_of_the_generator():
    """Nobody edits the file by hand and leaves the generator behind; every tenant, currency and failure is there."""
    lines = load_orders()
    failures = Counter((line.failure or "none").split()[0] for line in lines)

    assert lines == generator.generate()
    assert len({line.order.id for line in lines}) == len(lines) >= 300
    assert failures["none"] > 250
    assert len(failures) >= 6


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [(1250, "EUR", "EUR 12.50"), (5, "EUR", "EUR 0.05"), (1250, "JPY", "JPY 1250"), (1250, "KWD", "KWD 1.250")],
)
def test_amounts_are_shown_with_the_digits_of_their_currency(amount: int, currency: str, text: str):
    """A yen has no hundredth, and a dinar has a thousand fils."""
    assert shown(amount, currency) == text
