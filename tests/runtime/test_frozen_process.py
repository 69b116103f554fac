"""A process that was frozen past its lease does not start rows that went to another worker meanwhile."""

import asyncio

import gendurable as gd
from gendurable.settings import LeaseSettings, ListenSettings, QueueSettings, ReaperSettings, Secret, Settings
from gendurable.wiring import build_engine


async def test_rows_lost_while_frozen_are_given_up_and_not_started(dsn, connection):
    """A worker that comes back after SIGSTOP holds prefetched rows that others have; running them only repeats work."""
    started: list[int] = []
    first_started, release = asyncio.Event(), asyncio.Event()

    @gd.job()
    async def work(_ctx: gd.Context[None], n: int) -> None:
        started.append(n)
        first_started.set()
        if n == 0:
            await release.wait()

    settings = Settings(
        dsn=Secret(dsn),
        queue=QueueSettings(concurrency=1, prefetch=5, poll_interval_s=60.0),
        lease=LeaseSettings(ttl_s=180.0, heartbeat_s=60.0),
        listen=ListenSettings(enabled=False),
        reaper=ReaperSettings(enabled=False),
    )
    engine = build_engine(settings, gd.Registry([work]))
    async with engine.running():
        await engine.client.insert_many([work.with_args(n=n) for n in range(4)])
        await asyncio.wait_for(first_started.wait(), 10)
        assert engine.parts.executors["default"].waiting == 3
        # What a freeze past the lease looks like: the last beat is long ago, and another worker has taken two rows.
        engine.parts.heartbeat._beat_at_s -= 200.0
        for claim in engine.parts.holdings.claims():
            claim.claimed_at -= 200.0
        await connection.execute(
            "update gendurable.gen_durable set claim = claim + 2, locked_by = 'other'"
            " where (state ->> 'n')::int in (1, 2)"
        )
        release.set()
        first = await connection.fetchval("select id from gendurable.gen_durable where state ->> 'n' = '0'")
        await engine.client.result(first)
        assert started == [0]

        await engine.parts.heartbeat.beat_once()

        last = await connection.fetchval("select id from gendurable.gen_durable where state ->> 'n' = '3'")
        await engine.client.result(last)

    assert started == [0, 3]


async def test_a_row_claimed_again_while_a_beat_was_under_way_is_kept(dsn):
    """The beat's answer speaks of the old claim; dropping the new one would stall the row until its lease ends."""
    blocked, release = asyncio.Event(), asyncio.Event()

    @gd.job()
    async def work(_ctx: gd.Context[None], n: int) -> None:
        if n == 0:
            blocked.set()
            await release.wait()

    settings = Settings(dsn=Secret(dsn), queue=QueueSettings(concurrency=1, prefetch=5, poll_interval_s=60.0))
    engine = build_engine(settings, gd.Registry([work]))
    async with engine.running():
        answers = await engine.client.insert_many([work.with_args(n=n) for n in range(2)])
        await asyncio.wait_for(blocked.wait(), 10)
        executor = engine.parts.executors["default"]
        async with asyncio.timeout(10):
            while executor.waiting == 0:  # noqa: ASYNC110 - the executor has no event for tests
                await asyncio.sleep(0.001)

        executor.after_beat({answers[1].id: 0})

        assert executor.waiting == 1
        release.set()
        await engine.client.result(answers[1].id)
