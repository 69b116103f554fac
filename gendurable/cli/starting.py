"""The start of a worker: a database to work on, reachable in time and with a schema that fits."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import msgspec

from gendurable.backoff import ReconnectBackoff
from gendurable.embedded import EmbeddedPostgres
from gendurable.errors import StoreUnavailableError, StoreUnreachableError
from gendurable.logs import get_logger, mask_text
from gendurable.ops.health import Health
from gendurable.settings import EmbeddedSettings, Secret, Settings
from gendurable.store.database import Database
from gendurable.store.migrations import check_compatible, migrate_up
from gendurable.wiring import product_version

log = get_logger(__name__)

RETRY_MAX_S = 2.0


def embedded_server(settings: Settings) -> EmbeddedPostgres:
    """The embedded server that the settings describe; nothing is started."""
    directory, binaries = settings.embedded.directory, settings.embedded.binaries
    return EmbeddedPostgres(Path(directory) if directory else None, bin_dir=Path(binaries) if binaries else None)


def on_server(settings: Settings, dsn: str) -> Settings:
    """The same settings with the address of a server that runs already."""
    return msgspec.structs.replace(settings, dsn=Secret(dsn), embedded=EmbeddedSettings())


@contextlib.asynccontextmanager
async def database_settings(settings: Settings) -> AsyncIterator[Settings]:
    """Settings that name a database; an embedded server runs, migrated, for the length of the block.

    Raises:
        ConfigurationError: No database is configured, or the embedded server does not start; none is left running.
    """
    if not settings.embedded.enabled:
        settings.require_dsn()
        yield settings
        return
    async with embedded_server(settings) as server:
        applied = await migrate_up(server.dsn(), schema=settings.schema)
        log.info("embedded server ready", version=server.server_version, dsn=server.dsn(), migrations_applied=applied)
        yield on_server(settings, server.dsn())


async def require_database(database: Database, health: Health, *, deadline_s: float, stop: asyncio.Event) -> None:
    """Wait until the database answers and its schema fits; return early when ``stop`` is set.

    Args:
        database: Need not be open; a connection apart is made and closed again.
        health: Told how far the start has come.
        deadline_s: Seconds until an unreachable database ends the start.
        stop: Set when somebody asks the process to end.

    Raises:
        StoreUnreachableError: The time passed without an answer.
        SchemaMismatchError: The schema does not fit; the message names the command to run.
    """
    ends_at_s = time.monotonic() + deadline_s
    backoff = ReconnectBackoff(Random(), max_s=RETRY_MAX_S)
    while not stop.is_set():
        left_s = ends_at_s - time.monotonic()
        try:
            await asyncio.wait_for(_check(database, health), max(0.05, left_s))
        except (StoreUnavailableError, TimeoutError) as error:
            left_s = ends_at_s - time.monotonic()
            if left_s <= 0:
                raise StoreUnreachableError(
                    f"the database could not be reached within {deadline_s:g} s: {mask_text(str(error) or 'no answer')}"
                ) from error
            log.warning("the database cannot be reached yet", error=str(error), seconds_left=round(left_s, 1))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(backoff.next_s(), left_s))
        else:
            return


async def _check(database: Database, health: Health) -> None:
    connection = await database.connect_apart()
    try:
        health.is_connected = True
        await check_compatible(connection, schema=database.schema, version=product_version())
        health.is_schema_checked = True
    finally:
        connection.terminate()
