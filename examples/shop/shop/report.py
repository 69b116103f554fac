"""Prints the verdict as tables."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from shop.orders import MINOR_DIGITS, shown
from shop.verdict import CallLine, Check, MoneyLine, Verdict

_PROBLEMS_MAX: Final = 5


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print the money, the calls, and each check with what speaks against it."""
    console.print(_money_table(verdict.money), _calls_table(verdict.calls), _checks_table(verdict.checks))
    for check in verdict.checks:
        for problem in check.problems[:_PROBLEMS_MAX]:
            console.print(f"  {check.claim}: {problem}", style="red", markup=False)
        if (more := len(check.problems) - _PROBLEMS_MAX) > 0:
            console.print(f"  {check.claim}: and {more} more", style="red")
    if verdict.is_kept:
        console.print("[bold green]Every order ended exactly once, and the money is right.[/]")
    else:
        console.print("[bold red]A promise was broken.[/]")


def _mark(*, is_kept: bool) -> str:
    return "[green]ok[/]" if is_kept else "[bold red]WRONG[/]"


def _table(title: str, *columns: str, texts: int) -> Table:
    """A table whose first columns are texts and whose others are figures."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < texts or not column else "right")
    return table


def _money_table(lines: Sequence[MoneyLine]) -> Table:
    table = _table("Money", "tenant", "orders", "by the input", "by the ledger", "by the results", "", texts=1)
    for line in lines:
        tenant, currency = line.purse
        amounts = (
            shown(amount, currency) if currency in MINOR_DIGITS else f"{currency} {amount}"
            for amount in (line.expected, line.ledger, line.results)
        )
        table.add_row(tenant, str(line.orders), *amounts, _mark(is_kept=line.is_kept))
    return table


def _calls_table(lines: Sequence[CallLine]) -> Table:
    columns = ("step", "orders", "failures planned", "calls", "repeats", "held by victims", "removed by the ledger")
    table = _table("Calls of the gateway, counted before the ledger removes repeats", *columns, texts=1)
    for line in lines:
        figures = (line.needed, line.failures, line.calls, line.repeats, line.allowed, line.removed)
        table.add_row(line.step, *(str(figure) for figure in figures))
    return table


def _checks_table(checks: Sequence[Check]) -> Table:
    table = _table("Checked against the input", "what", "expected", "found", "", texts=1)
    for check in checks:
        table.add_row(check.claim, str(check.expected), str(check.found), _mark(is_kept=check.is_kept))
    return table
