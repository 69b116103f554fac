"""A slot that becomes free is used at once, however few of them there are."""

import asyncio

import gendurable as gd
from gendurable.settings import ListenSettings, QueueSettings, Secret, Settings
from gendurable.wiring import build_engine


async def test_one_freed_slot_of_many_is_filled_without_waiting_for_a_poll(dsn):
    """With every slot taken by long steps, a backlog must not wait for a tenth of them, nor for the poll interval."""
    release = [asyncio.Event() for _ in range(21)]
    started: list[int] = []
    all_taken, next_started = asyncio.Event(), asyncio.Event()

    @gd.job()
    async def long_step(_ctx: gd.Context[None], n: int) -> None:
        started.append(n)
        if len(started) == 20:
            all_taken.set()
        if len(started) == 21:
            next_started.set()
        await release[n].wait()

    queue = QueueSettings(concurrency=20, prefetch=0, poll_interval_s=60.0)
    settings = Settings(dsn=Secret(dsn), queue=queue, listen=ListenSettings(enabled=False))
    async with build_engine(settings, gd.Registry([long_step])).running() as engine:
        await engine.client.insert_many([long_step.with_args(n=n) for n in range(21)])
        await asyncio.wait_for(all_taken.wait(), 10)
        async with asyncio.timeout(10):
            while not engine.parts.pickers["default"]._is_full:  # noqa: ASYNC110 - the picker has no event for tests
                await asyncio.sleep(0.001)
        release[0].set()

        await asyncio.wait_for(next_started.wait(), 10)
        for event in release:
            event.set()

    assert sorted(started) == list(range(21))
