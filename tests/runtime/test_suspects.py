"""Rows whose step has outlived several processes, on running engines: one at a time, and nobody waits for them."""

import asyncio

import gendurable as gd
import gendurable.runtime.picker
from tests.runtime.running import ids_of, row_of, running, soon, until, until_row, until_true


async def suspects(client: gd.Client, connection, requests) -> list[int]:
    """Rows that look as if two processes had died with them; due in a moment, so that no engine has them yet."""
    ids = ids_of(await client.insert_many([request.with_options(delay=3600) for request in requests]))
    await connection.execute("update gendurable.gen_durable set crashes = 2, eligible_at = now() where crashes = 0")
    return ids


EXECUTING = "select count(*) from gendurable.gen_durable where status = 'executing'"


async def test_one_suspect_runs_at_a_time_whatever_their_queues(dsn, connection):
    """E21: the place is the process's, because a crash is."""
    started: list[int] = []
    unsettled: list[int] = []

    async def look(ctx: gd.Context) -> None:
        started.append(ctx.id)
        unsettled.append(await connection.fetchval(f"{EXECUTING} and id = any ($1)", started))

    here, there = gd.job(name="here")(look), gd.job(name="there", queue="other")(look)
    async with gd.Client(dsn) as client:
        ids = await suspects(client, connection, [job.with_args() for job in (here, there) for _ in range(6)])
        async with running(dsn, here, there, concurrency=20):
            for instance_id in ids:
                await soon(client.result(instance_id))
        rows = [await row_of(connection, instance_id) for instance_id in ids]

    assert unsettled == [1] * 12
    assert {(row["attempt"], row["crashes"]) for row in rows} == {(0, 2)}


async def test_the_next_suspect_starts_only_when_the_last_ones_outcome_is_durable(dsn, connection):
    """E21: an outcome that waits for a caller's transaction is lost with the process, and its row counts the crash."""
    started: list[int] = []
    caller = connection.transaction()

    @gd.job()
    async def locked_by_a_caller(ctx: gd.Context) -> None:
        if not started:
            await caller.start()
            await connection.execute("select from gendurable.gen_durable where id = $1 for update", ctx.id)
        started.append(ctx.id)

    async with gd.Client(dsn) as client:
        ids = await suspects(client, connection, [locked_by_a_caller.with_args() for _ in range(2)])
        async with running(dsn, locked_by_a_caller):
            await until(lambda: started)
            query = "select claim >= 3 from gendurable.gen_durable where id = $1"
            await until_true(connection, query, ids[1])
            assert started == ids[:1]
            await caller.rollback()
            for instance_id in ids:
                await soon(client.result(instance_id))

    assert started == ids


async def test_a_suspect_starts_when_those_claimed_with_it_are_handed_back(dsn, connection, monkeypatch):
    """E21: they are this process's until then, and would count a crash that is not theirs."""
    executing: list[int] = []

    @gd.job()
    async def look(_ctx: gd.Context) -> None:
        executing.append(await connection.fetchval(EXECUTING))

    # However slow the machine is: no later claim while the step looks.
    monkeypatch.setattr(gendurable.runtime.picker, "SUSPECT_PAUSE_S", 0.3)
    async with gd.Client(dsn) as client:
        ids = await suspects(client, connection, [look.with_args() for _ in range(4)])
        async with running(dsn, look, concurrency=20):
            for instance_id in ids:
                await soon(client.result(instance_id))

    assert executing == [1] * 4


async def test_a_long_suspect_keeps_no_other_work_waiting(dsn, connection):
    """Rows that are no suspects run beside it, and another process takes the suspects that this one hands back."""
    gate, started = asyncio.Event(), []

    @gd.job(name="gated")
    async def here(ctx: gd.Context) -> None:
        started.append(ctx.id)
        await gate.wait()

    @gd.job(name="gated")
    async def elsewhere(_ctx: gd.Context) -> dict[str, bool]:
        return {"elsewhere": True}

    @gd.job()
    async def quick(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with gd.Client(dsn) as client:
        ids = await suspects(client, connection, [here.with_args() for _ in range(3)])
        async with running(dsn, here, quick, concurrency=20) as engine:
            await until(lambda: started)
            answers = await client.insert_many([quick.with_args() for _ in range(30)])
            for answer in answers:
                await soon(client.result(answer.id))
            # Handed back, and again: each claim raises the fence.
            await until_true(
                connection, "select min(claim) >= 2 from gendurable.gen_durable where id = any ($1)", ids[1:]
            )
            engine.parts.pickers["default"].drain()
            async with running(dsn, elsewhere):
                for instance_id in ids[1:]:
                    assert await soon(client.result(instance_id)) == {"elsewhere": True}
            assert started == ids[:1]
            gate.set()
            await soon(client.result(ids[0]))


async def test_a_suspect_cut_off_by_the_end_of_a_drain_is_handed_back(dsn, connection):
    """Its process ended in order, so no crash is counted, and the next one runs it."""
    started = asyncio.Event()

    @gd.job(name="job")
    async def endless(_ctx: gd.Context) -> None:
        started.set()
        await asyncio.Event().wait()

    @gd.job(name="job")
    async def quick(_ctx: gd.Context) -> None:
        """Do nothing."""

    async with gd.Client(dsn) as client:
        ids = await suspects(client, connection, [endless.with_args() for _ in range(2)])
        async with running(dsn, endless, drain_timeout_s=0.1):
            await soon(started.wait())
        rows = [await until_row(connection, instance_id, status="runnable", crashes=2) for instance_id in ids]
        assert {row["locked_by"] for row in rows} == {None}
        async with running(dsn, quick):
            for instance_id in ids:
                await soon(client.result(instance_id))
