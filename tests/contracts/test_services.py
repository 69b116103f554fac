"""What every loop of a worker promises the supervisor, whichever it is."""

import asyncio

import pytest

import gendurable as gd
from gendurable.errors import StoreUnavailableError
from gendurable.settings import CollectorSettings
from gendurable.wiring import build_engine
from tests.runtime.running import settings_for, soon, until


@gd.job()
async def quick(_ctx: gd.Context) -> None:
    """Do nothing."""


LOOPS = ["heartbeat", "listener", "picker:default", "reaper", "collector", "reconciler"]
NAMES = [*LOOPS, "flusher:default", "emitter", "owed"]


@pytest.fixture
async def parts(dsn):
    """The parts of an engine that is connected but runs nothing."""
    settings = settings_for(dsn, collector=CollectorSettings(interval_s=60.0))
    engine = build_engine(settings, gd.Registry([quick]), seed=1)
    await engine.parts.database.open()
    for executor in engine.parts.executors.values():
        executor.start(resources={}, middleware=[])
    yield engine.parts
    for executor in engine.parts.executors.values():
        executor.close()
    await engine.parts.database.close()


def services_of(parts) -> dict[str, object]:
    found = [
        parts.heartbeat,
        *parts.flushers,
        parts.emitter,
        parts.listener,
        parts.owed,
        *parts.pickers.values(),
        *parts.upkeep,
    ]
    return {service.name: service for service in found}


async def test_the_list_of_services_is_complete(parts):
    """A loop that is added must keep these promises as well."""
    assert sorted(services_of(parts)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_it_ends_soon_after_it_is_drained_although_its_pause_is_a_minute(parts, name):
    """A stop must not wait for anybody's interval."""
    service = services_of(parts)[name]
    running = asyncio.create_task(service.run())
    await asyncio.sleep(0.1)
    assert not running.done()
    service.drain()
    service.drain()
    await asyncio.wait([running], timeout=3)

    assert (running.done(), running.done() and running.exception()) == (True, None)


@pytest.mark.parametrize("name", NAMES)
async def test_drained_before_it_runs_it_ends_at_once(parts, name):
    """A stop may arrive before the start."""
    service = services_of(parts)[name]
    service.drain()
    running = asyncio.create_task(service.run())
    await asyncio.wait([running], timeout=3)

    assert (running.done(), running.done() and running.exception()) == (True, None)


@pytest.mark.parametrize("name", NAMES)
async def test_cancelled_it_ends_and_leaves_no_connection(parts, name, connection):
    """The last means of the supervisor; what it held open must not stay open."""
    running = asyncio.create_task(services_of(parts)[name].run())
    await asyncio.sleep(0.1)
    running.cancel()
    await soon(asyncio.wait([running]))
    await parts.database.close()
    query = (
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
    )
    for _ in range(200):
        if await connection.fetchval(query) == 0:
            return
        await asyncio.sleep(0.01)
    pytest.fail("a connection was left open")


@pytest.mark.parametrize("name", LOOPS)
async def test_a_database_that_is_away_costs_it_a_pass_and_not_its_life(parts, name, monkeypatch):
    """An outage is no bug: the loop is still there when the database is back."""
    refused = asyncio.Event()

    async def away(*_arguments: object, **_options: object) -> object:
        refused.set()
        raise StoreUnavailableError("away")

    service = services_of(parts)[name]
    for place in (parts.database, type(parts.database)):
        monkeypatch.setattr(place, "fetch", away)
    monkeypatch.setattr(parts.database, "connect_apart", away)
    if name in {"collector", "reconciler"}:
        monkeypatch.setattr(service, "pass_once", away)
        service._wake.set()
    running = asyncio.create_task(service.run())
    await until(refused.is_set)
    await asyncio.sleep(0.02)
    assert not running.done()
    service.drain()

    await soon(running, within_s=3)
