"""LISTEN and NOTIFY as the rest of the engine sees them."""

import asyncio
from collections.abc import Callable

import asyncpg

from gendurable.errors import StoreUnavailableError
from gendurable.store.database import Connection, Database, translated


class NotificationStore:
    """Sends notifications, and receives them on a connection of its own."""

    def __init__(self, database: Database, *, listen_database: Database | None = None) -> None:
        """``listen_database`` leads to Postgres directly when the main one leads through a pooler."""
        self._db = database
        self._listen_db = listen_database or database

    async def notify(self, channel: str, payload: str, *, connection: Connection | None = None) -> None:
        """Send one notification, in a transaction of its own unless a connection is given.

        Raises:
            StoreUnavailableError: It may not have been sent; the poll floor covers it.
        """
        await self._db.fetch("notify", channel, payload, connection=connection)

    async def listen(
        self, channel: str, *, on_payload: Callable[[str], None], on_listening: Callable[[], None], until: asyncio.Event
    ) -> None:
        """Receive notifications until ``until`` is set.

        Args:
            channel: The channel.
            on_payload: Called for each notification.
            on_listening: Called once when everything sent from now on will arrive.
            until: Ends it in order.

        Raises:
            StoreUnavailableError: The connection could not be made or was lost.
        """
        lost = asyncio.Event()
        connection = await self._listen_db.connect_apart(on_lost=lost.set)
        try:
            with translated():
                await connection.add_listener(channel, lambda _c, _pid, _channel, payload: on_payload(str(payload)))
            on_listening()
            waits = [asyncio.ensure_future(lost.wait()), asyncio.ensure_future(until.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        finally:
            try:
                await asyncio.wait_for(connection.close(), 2.0)
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()
        if lost.is_set() and not until.is_set():
            raise StoreUnavailableError("the listening connection was lost")
