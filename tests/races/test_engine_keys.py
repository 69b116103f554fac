"""Concurrency keys seen from a step: what a counter that is read, waited on and written has to say."""

import asyncio

import gendurable as gd
from tests.races.staging import soon
from tests.runtime.running import running, until


async def test_steps_of_one_key_do_not_overlap_and_steps_of_two_keys_do(dsn):
    """E05: four read-sleep-write steps of one key count to four, on two engines; two keys meet in the middle."""
    counted = {"k": 0}
    inside = set()
    both = asyncio.Event()

    @gd.job(name="count")
    async def count(_ctx: gd.Context, key: str) -> None:
        seen = counted[key]
        await asyncio.sleep(0.01)
        counted[key] = seen + 1

    @gd.job(name="meet")
    async def meet(_ctx: gd.Context, key: str) -> None:
        inside.add(key)
        if len(inside) == 2:
            both.set()
        await both.wait()

    async with running(dsn, count, meet) as first, running(dsn, count, meet):
        await first.client.insert_many([count.with_args(key="k")] * 4, concurrency_key="k")
        for key in ("ka", "kb"):
            await first.client.insert(meet.with_args(key=key), concurrency_key=key)
        await soon(both.wait())
        await until(lambda: counted["k"] == 4)
