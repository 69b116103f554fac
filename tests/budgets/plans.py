"""What a statement really reads: its plan as it ran, in a transaction that is rolled back."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg

from tests.races.staging import TABLE, text_of

INSTANCE_TABLE = TABLE.partition(".")[2]
AUTO_RUNS = 9
"""Postgres makes custom plans five times before it considers the generic one."""


async def plan_of(
    connection: asyncpg.Connection,
    name: str,
    arguments: Sequence[object],
    *,
    is_generic: bool,
    text: str | None = None,
    runs: int = AUTO_RUNS,
) -> dict[str, Any]:
    """The executed plan of a prepared statement: forced generic, or what Postgres has settled on after nine runs.

    After none it is the plan for these very arguments, which a connection makes at first, and always without a cache.
    """
    await connection.execute(f"prepare measured as {text or text_of(name)}")
    values = ", ".join(map(literal, arguments))
    call = f"execute measured({values})" if values else "execute measured"
    try:
        await connection.execute(f"set plan_cache_mode = {'force_generic_plan' if is_generic else 'auto'}")
        for _ in range(0 if is_generic else runs):
            await connection.execute(f"begin; {call}; rollback")
        transaction = connection.transaction()
        await transaction.start()
        rows = await connection.fetch(f"explain (analyze, buffers, timing off, format json) {call}")
        await transaction.rollback()
    finally:
        if not connection.is_in_transaction():
            await connection.execute("deallocate measured")
    return json.loads(rows[0][0])[0]["Plan"]


def literal(value: object) -> str:
    """A value as SQL text; Postgres reads it as whatever the statement says the parameter is."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return quoted("{" + ",".join("null" if item is None else json.dumps(str(item)) for item in value) + "}")
    return quoted(str(value))


def quoted(text: str) -> str:
    """Text in quotes."""
    return "'" + text.replace("'", "''") + "'"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan that was executed at all."""
    if plan["Actual Loops"] > 0:
        yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def buffers(plan: dict[str, Any]) -> int:
    """Pages touched by the whole statement."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def full_scans(plan: dict[str, Any]) -> list[str]:
    """Scans that read the whole instance table or a whole index of it."""
    return [
        node["Node Type"]
        for node in nodes(plan)
        if node.get("Relation Name") == INSTANCE_TABLE and node["Node Type"] == "Seq Scan"
    ]


def rows_sorted_max(plan: dict[str, Any]) -> int:
    """The rows that the largest sort took in."""
    sorts = [node["Plans"][0] for node in nodes(plan) if node["Node Type"].endswith("Sort")]
    return max((int(child["Actual Rows"] * child["Actual Loops"]) for child in sorts), default=0)
