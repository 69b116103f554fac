"""Rows that were inserted by somebody who knows a machine's name and nothing else."""

from typing import Any

import gendurable as gd
from gendurable.settings import Secret, Settings
from gendurable.wiring import build_engine


class Walk(gd.Machine[dict[str, Any]]):
    @gd.step
    async def leave(self, ctx: gd.Context[dict[str, Any]]) -> gd.Outcome:
        return gd.Next(self.arrive, state={**ctx.state, "left_by": ctx.step})

    @gd.step
    async def arrive(self, ctx: gd.Context[dict[str, Any]]) -> gd.Outcome:
        return gd.Done(ctx.state)


async def test_a_machine_inserted_by_sql_without_a_step_starts_where_it_starts(dsn, connection):
    """Other languages and the command line do not know which step a machine starts with."""
    async with build_engine(Settings(dsn=Secret(dsn)), gd.Registry([Walk])).running() as engine:
        instance_id = await connection.fetchval("select id from gendurable.insert_job('Walk', '{\"to\": \"sea\"}')")
        engine.parts.hub.poke("default")

        result = await engine.client.result(instance_id)

    assert result == {"to": "sea", "left_by": "leave"}
