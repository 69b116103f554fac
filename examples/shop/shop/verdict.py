"""Holds what a run left behind against its input: plain functions, so that tests can feed them lies."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from shop.evidence import Ended, Evidence
from shop.gateway import failures_planned
from shop.orders import ExpectedOrder

VICTIMS: Final = ("the worker that was stopped", "the worker that was killed")
HELD_MIN: Final = 10
CALLED_STEPS: Final = ("charge", "ship", "receipt")

Purse: TypeAlias = tuple[str, str]
"""A tenant and a currency."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must be true, and the cases in which it is not."""

    claim: str
    expected: int | str
    found: int
    problems: Sequence[str] = ()

    @property
    def is_kept(self) -> bool:
        """True when nothing speaks against it."""
        return not self.problems


class MoneyLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant took in one currency, in minor units: by the input, by the ledger, by the orders' results."""

    purse: Purse
    orders: int
    expected: int
    ledger: int
    results: int

    @property
    def is_kept(self) -> bool:
        """True when all three agree."""
        return self.expected == self.ledger == self.results


class CallLine(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one step of the gateway.

    Attributes:
        needed: One for each order that gets there.
        failures: Those the gateway was going to fail.
        calls: All that were made.
        allowed: Repeats that the interrupted workers may have caused: one for each row they held in this step.
        removed: Repeats that reached the ledger, which removed them.
    """

    step: str
    needed: int
    failures: int
    calls: int
    allowed: int
    removed: int

    @property
    def repeats(self) -> int:
        """Calls that neither the orders nor the gateway's failures explain."""
        return self.calls - self.needed - self.failures


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All checks with the figures behind them."""

    checks: Sequence[Check]
    money: Sequence[MoneyLine]
    calls: Sequence[CallLine]

    @property
    def is_kept(self) -> bool:
        """True when every promise was kept."""
        return all(check.is_kept for check in self.checks)


def judge(expected: Sequence[ExpectedOrder], evidence: Evidence) -> Verdict:
    """Hold the evidence against the input."""
    money = list(_money_lines(expected, evidence))
    calls = [_call_line(step, expected, evidence) for step in CALLED_STEPS]
    return Verdict(
        checks=[
            _ended_once(expected, evidence),
            _valid_done(expected, evidence),
            _invalid_failed(expected, evidence),
            _receipts_ended_once(expected, evidence),
            _money_equals(money),
            _happened_once(expected, evidence),
            _calls_explained(expected, evidence, calls),
            *_victims_held_enough(evidence),
            _late_outcomes_refused(evidence),
        ],
        money=money,
        calls=calls,
    )


def calls_needed(line: ExpectedOrder) -> dict[str, int]:
    """The calls an order must come to when nothing is interrupted, the gateway's own failures among them."""
    if line.failure is None:
        steps: Sequence[str] = CALLED_STEPS
    else:
        # A refused payment is the only bad end that the gateway hears of.
        steps = ("charge",) if line.failure.startswith("payment refused") else ()
    return {step: 1 + failures_planned(line.order.id, step) for step in steps}


def _ended_once(expected: Sequence[ExpectedOrder], evidence: Evidence) -> Check:
    ids = [line.order.id for line in expected]
    wrong = {order_id: ends for order_id in ids if (ends := _ends(evidence.orders.get(order_id, ()))) != 1}
    strangers = sorted(evidence.orders.keys() - set(ids))
    return Check(
        claim="orders that ended exactly once",
        expected=len(ids),
        found=len(ids) - len(wrong),
        problems=[
            *(f"{order_id} ended {ends} times" for order_id, ends in wrong.items()),
            *(f"{order_id} is not in the input" for order_id in strangers),
        ],
    )


def _ends(instances: Sequence[Ended]) -> int:
    """How often an order ended, in one instance or in several; one that is still under way adds none."""
    return sum(instance.endings for instance in instances if instance.status in {"done", "failed", "cancelled"})


def _valid_done(expected: Sequence[ExpectedOrder], evidence: Evidence) -> Check:
    valid = [line.order.id for line in expected if line.failure is None]
    found = {order_id: [one.status for one in evidence.orders.get(order_id, ())] for order_id in valid}
    bad = [f"{order_id} is {statuses or 'missing'}" for order_id, statuses in found.items() if statuses != ["done"]]
    return Check(claim="valid orders that are done", expected=len(valid), found=len(valid) - len(bad), problems=bad)


def _invalid_failed(expected: Sequence[ExpectedOrder], evidence: Evidence) -> Check:
    invalid = {line.order.id: line.failure for line in expected if line.failure is not None}
    bad = []
    for order_id, reason in invalid.items():
        found = [(one.status, one.last_error) for one in evidence.orders.get(order_id, ())]
        if found != [("failed", reason)]:
            bad.append(f"{order_id} should have failed with {reason!r}, found {found}")
    return Check(
        claim="invalid orders that failed for their reason",
        expected=len(invalid),
        found=len(invalid) - len(bad),
        problems=bad,
    )


def _money_lines(expected: Sequence[ExpectedOrder], evidence: Evidence) -> Iterator[MoneyLine]:
    orders, wanted, charged, reported = (Counter[Purse]() for _ in range(4))
    for line in expected:
        if line.total is not None:
            purse = (line.order.tenant, line.order.currency)
            orders[purse] += 1
            wanted[purse] += line.total
            for one in evidence.orders.get(line.order.id, ()):
                total = (one.result or {}).get("total", 0)
                reported[purse] += total if isinstance(total, int) else 0
    for row in evidence.ledger:
        charged[row.tenant, row.currency] += row.amount
    for purse in sorted(wanted.keys() | charged.keys()):
        yield MoneyLine(
            purse=purse, orders=orders[purse], expected=wanted[purse], ledger=charged[purse], results=reported[purse]
        )


def _money_equals(money: Sequence[MoneyLine]) -> Check:
    bad = [
        f"{' '.join(line.purse)}: input {line.expected}, ledger {line.ledger}, results {line.results}"
        for line in money
        if not line.is_kept
    ]
    return Check(
        claim="tenants and currencies whose money is right",
        expected=len(money),
        found=len(money) - len(bad),
        problems=bad,
    )


def _happened_once(expected: Sequence[ExpectedOrder], evidence: Evidence) -> Check:
    """Each valid order has one charge of its total, one parcel and one receipt in the ledger; nothing else is there."""
    wanted = Counter(
        (line.order.id, step, line.total if step == "charge" else 0)
        for line in expected
        if line.total is not None
        for step in CALLED_STEPS
    )
    found = Counter((row.order_id, row.step, row.amount) for row in evidence.ledger)
    return Check(
        claim="charges, parcels and receipts in the ledger",
        expected=wanted.total(),
        found=found.total(),
        problems=[
            *(f"{order_id} lacks its {step} over {amount}" for order_id, step, amount in wanted - found),
            *(f"{order_id} has a {step} over {amount} too many" for order_id, step, amount in found - wanted),
        ],
    )


def _receipts_ended_once(expected: Sequence[ExpectedOrder], evidence: Evidence) -> Check:
    valid = {line.order.id for line in expected if line.failure is None}
    bad = []
    for order_id in sorted(valid | evidence.receipts.keys()):
        found = [(one.status, one.endings) for one in evidence.receipts.get(order_id, ())]
        if found != ([("done", 1)] if order_id in valid else []):
            bad.append(f"the receipt of {order_id} should have ended once, found {found}")
    return Check(
        claim="receipt jobs that ended exactly once", expected=len(valid), found=len(valid) - len(bad), problems=bad
    )


def _call_line(step: str, expected: Sequence[ExpectedOrder], evidence: Evidence) -> CallLine:
    totals = [needed[step] for line in expected if step in (needed := calls_needed(line))]
    return CallLine(
        step=step,
        needed=len(totals),
        failures=sum(totals) - len(totals),
        calls=sum(calls for (_, called), calls in evidence.calls.items() if called == step),
        allowed=sum(held == step for victim in evidence.interrupted.values() for _, held in victim),
        removed=sum(row.repeats for row in evidence.ledger if row.step == step),
    )


def _calls_explained(expected: Sequence[ExpectedOrder], evidence: Evidence, lines: Sequence[CallLine]) -> Check:
    """Not only in total: each order and step may be repeated as often as victims held just that, and no more."""
    needed = {(line.order.id, step): calls for line in expected for step, calls in calls_needed(line).items()}
    allowed = Counter(held for victim in evidence.interrupted.values() for held in victim)
    bad = []
    for pair in sorted(needed.keys() | evidence.calls.keys()):
        calls, least = evidence.calls.get(pair, 0), needed.get(pair, 0)
        if not least <= calls <= least + allowed[pair]:
            bad.append(f"{' '.join(pair)} was called {calls} times, explained are {least} to {least + allowed[pair]}")
    budget = sum(line.allowed for line in lines)
    return Check(
        claim="repeated calls, only of rows in a victim's hands",
        expected=f"0 to {budget}",
        found=sum(line.repeats for line in lines),
        problems=bad,
    )


def _victims_held_enough(evidence: Evidence) -> Iterator[Check]:
    for victim in VICTIMS:
        held = evidence.interrupted.get(victim, ())
        few = [f"only {len(held)} rows were in its hands"] if len(held) < HELD_MIN else []
        yield Check(claim=f"rows held by {victim}", expected=f"{HELD_MIN} or more", found=len(held), problems=few)


def _late_outcomes_refused(evidence: Evidence) -> Check:
    return Check(
        claim="late outcomes refused, of the stopped worker",
        expected="1 or more",
        found=evidence.refused,
        problems=[] if evidence.refused else ["no late outcome was refused"],
    )
