"""The client: inserts instances, reads them, waits for them and changes their fate."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from gendurable.batching import InsertBatcher
from gendurable.calls import AfterCommit, check_id, check_reason, check_step, check_target_id, due_by_queue, rows_of
from gendurable.errors import (
    NotFoundError,
    StoreContendedError,
)
from gendurable.machine.contract import Request
from gendurable.metrics import Metrics
from gendurable.model.answers import (
    Cancelled,
    CancelRequested,
    Conflict,
    NotCancelled,
    NotRetried,
    Retried,
)
from gendurable.model.durations import duration_ms
from gendurable.model.insert import InsertAnswer, Inserted, InsertOptions
from gendurable.model.instance import Status
from gendurable.model.outcome import Duration
from gendurable.poke.emitter import PokeEmitter
from gendurable.poke.hub import PokeHub
from gendurable.poke.message import PokeMessage, channel_of, encode_message
from gendurable.reading import InstanceReader
from gendurable.store.database import Connection, ConnectOptions, Database
from gendurable.store.inserts import InsertStore
from gendurable.store.instances import InstanceStore
from gendurable.store.notifications import NotificationStore
from gendurable.watching import InstanceWatcher

_PLAIN = InsertOptions()


class Client(InstanceReader):
    """A connection pool with the calls of an application.

    Use it as an async context manager, one for each process. Every call that writes takes ``connection=``, an asyncpg
    connection of yours: the write then commits or vanishes with your transaction. Answers are values, misuse raises.
    """

    def __init__(
        self,
        dsn: str = "",
        *,
        schema: str = "gendurable",
        pool_min: int = 1,
        pool_max: int = 10,
        connect_timeout: Duration = 10.0,
        command_timeout: Duration = 30.0,
        statement_cache: bool = True,
        notify: bool = True,
        hub: PokeHub | None = None,
    ) -> None:
        """Nothing is connected until the context is entered.

        Args:
            dsn: A PostgreSQL URL; empty to use the ``PG*`` environment.
            schema: The Postgres schema with gendurable's tables.
            pool_min: Connections kept open.
            pool_max: Connections at most.
            connect_timeout: Seconds or a timedelta for making a connection.
            command_timeout: Seconds or a timedelta for one statement.
            statement_cache: False behind a pooler in transaction mode.
            notify: False to send no notifications; workers then find new work at their poll interval.
            hub: The wake-ups of an engine in this process; it is then woken directly as well.

        Raises:
            ConfigurationError: The schema's name cannot be used.
            InvalidValueError: A timeout cannot be used.
        """
        database = Database(
            ConnectOptions(
                dsn=dsn,
                schema=schema,
                pool_min=pool_min,
                pool_max=pool_max,
                connect_timeout_s=duration_ms(connect_timeout, name="connect_timeout") / 1000,
                command_timeout_s=duration_ms(command_timeout, name="command_timeout") / 1000,
                statement_cache=statement_cache,
                application_name="gendurable client",
            )
        )
        emitter = PokeEmitter(
            NotificationStore(database),
            schema=database.schema,
            sender=f"client/{uuid.uuid4()}",
            metrics=Metrics(),
        )
        self._set_up(database, owns_database=True, notify=notify, hub=hub or PokeHub(), emitter=emitter)

    @classmethod
    def over(cls, database: Database, *, hub: PokeHub, emitter: PokeEmitter) -> Self:
        """A client on an engine's own pool and wake-ups; opening and closing them stays with the engine."""
        client = cls.__new__(cls)
        client._set_up(  # noqa: SLF001 - this is the other constructor
            database, owns_database=False, notify=True, hub=hub, emitter=emitter
        )
        return client

    def _set_up(
        self, database: Database, *, owns_database: bool, notify: bool, hub: PokeHub, emitter: PokeEmitter
    ) -> None:
        self._database = database
        self._owns_database = owns_database
        self._inserts = InsertStore(database)
        self._instances = InstanceStore(database)
        self._notifications = NotificationStore(database)
        self._hub = hub
        self._notifies = notify
        self._emitter = emitter
        self._watcher = InstanceWatcher(self._instances)
        self._on_answered = self._emitter.hurry
        self._batcher = InsertBatcher(self._insert_batch)
        self._emitting: asyncio.Task[None] | None = None
        # Wakes of the transactions opened by transaction(), sent after their commit; a connection is in it meanwhile.
        self._after_commit: dict[int, AfterCommit] = {}

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            StoreUnavailableError: Postgres cannot be reached.
        """
        if self._owns_database:
            await self._database.open()
            self._emitting = asyncio.get_running_loop().create_task(self._emitter.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what ``insert_async`` still holds, send the last wake-ups, close the connections.

        Raises:
            BatcherClosedError: Rows of ``insert_async`` could not be written; their futures say why.
        """
        try:
            await self._batcher.close()
        finally:
            await self._watcher.close()
            if self._emitting is not None:
                self._emitter.drain()
                await asyncio.wait([self._emitting], timeout=2.0)
                self._emitting.cancel()
            if self._owns_database:
                await self._database.close()

    @property
    def database(self) -> Database:
        """The pool, for the engine and for tools."""
        return self._database

    def note_ended(self, instance_id: int) -> None:
        """An engine of this process has made an instance's end durable; whoever waits for it is answered at once."""
        self._watcher.note_ended(instance_id)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction on a connection of this client's pool; wake-ups are sent after its commit, out of band.

        Pass the connection to calls as ``connection=``, and use it for your own statements.
        """
        pending = AfterCommit()
        async with self._database.transaction() as connection:
            self._after_commit[id(connection)] = pending
            try:
                yield connection
            finally:
                del self._after_commit[id(connection)]
        for queue, due_in_s in pending.due_in_s.items():
            self._poke(queue, due_in_s)
        for instance_id in pending.cancels:
            self._emitter.cancel(instance_id)

    async def insert(
        self, request: Request, *, connection: Connection | None = None, notify: bool = True, **options: Any
    ) -> InsertAnswer:
        """Insert one instance.

        Args:
            request: ``Machine.with_state(...)`` or ``job.with_args(...)``.
            connection: Your connection; the row commits or vanishes with your transaction.
            notify: False to leave the wake-up to the poll interval.
            **options: See the table of insert options in ``docs/guides/jobs.md``.

        Returns:
            ``Inserted(id)``, or ``Duplicate(id)`` with the holder of the correlation key.

        Raises:
            InvalidValueError: An option cannot be used; nothing was written.
            StoreError: See its subclasses.
        """
        answers = await self.insert_many([request], connection=connection, notify=notify, **options)
        return answers[0]

    async def insert_many(
        self,
        requests: Sequence[Request],
        *,
        connection: Connection | None = None,
        notify: bool = True,
        **options: Any,
    ) -> list[InsertAnswer]:
        """Insert any number of instances in one statement: all of them or, after an error, none.

        Args:
            requests: Rows; one with options of its own (:meth:`Request.with_options`) ignores those of the call.
            connection: Your connection; the rows commit or vanish with your transaction.
            notify: False to leave the wake-up to the poll interval.
            **options: Options for all rows without their own.

        Returns:
            One answer for each row, in the order of the input.

        Raises:
            InvalidValueError: An option cannot be used; nothing was written.
            StoreError: See its subclasses.
        """
        if not requests:
            return []
        shared = InsertOptions.of(options) if options else _PLAIN
        first = requests[0]
        definition = first.definition
        if shared.correlation_key is None and all(
            request.options is None and request.definition is definition for request in requests
        ):
            check_step(first, shared)
            common = shared.common(
                fsm=definition.name, version=definition.version, step=definition.initial, queue=definition.queue
            )
            states = [request.state for request in requests]
            ids = await self._inserts.insert_alike(common, states, connection=connection)
            answers: list[InsertAnswer] = [Inserted(instance_id) for instance_id in ids]
        else:
            commons, rows = rows_of(requests, shared)
            answers = await self._inserts.insert_rows(commons, rows, connection=connection)
        if notify and self._notifies:
            await self._wake(due_by_queue(requests, shared, answers), connection)
        return answers

    async def insert_async(self, request: Request, **options: Any) -> "asyncio.Future[InsertAnswer]":
        """Hand one instance to the batcher, which writes many callers' rows in one statement.

        The call waits while the buffer is full, and returns a future of the answer. Rows are written within
        milliseconds; closing the client writes what is left. One bad row costs only itself: its future gets the error.

        Raises:
            InvalidValueError: An option cannot be used; nothing was handed over.
            BatcherClosedError: The client is closed.
        """
        own = request if not options else request.with_options(**options)
        check_step(own, own.options or _PLAIN)
        return await self._batcher.put(own)

    async def cancel(
        self,
        target: int | None = None,
        *,
        key: str | None = None,
        reason: str = "cancelled by a caller",
        connection: Connection | None = None,
    ) -> Cancelled | CancelRequested | NotCancelled:
        """Cancel an instance.

        Returns:
            ``Cancelled`` when it waited and has ended now; ``CancelRequested`` when it executes: its step is
            interrupted, its outcome is refused, and it ends at its next commit; ``NotCancelled`` when it had
            ended before.

        Raises:
            NotFoundError: No instance has this id, or the key addresses none.
        """
        instance_id, key = check_target_id(target, key)
        check_reason(reason)
        found = await self._instances.cancel(instance_id=instance_id, key=key, reason=reason, connection=connection)
        if found is None:
            raise NotFoundError(instance_id, key=key)
        if found.status.is_terminal:
            return NotCancelled(found.id, found.status)
        if found.status is not Status.EXECUTING:
            if self._notifies:
                await self._wake(dict.fromkeys(found.unheld_queues, 0.0), connection)
            return Cancelled(found.id)
        if self._notifies:
            await self._interrupt(found.id, connection)
        return CancelRequested(found.id)

    async def retry(self, target: int, *, connection: Connection | None = None) -> Retried | Conflict | NotRetried:
        """Run a failed or cancelled instance again, from the step it ended in, with fresh attempts.

        Returns:
            ``Retried``; ``Conflict(holder)`` when its correlation key belongs to another instance now; ``NotRetried``
            when it has not ended, or is done.

        Raises:
            NotFoundError: There is no such instance.
        """
        check_id(target, name="target")
        try:
            found = await self._retry(target, connection)
        except StoreContendedError:
            instance = await self._instances.get(instance_id=target, connection=connection)
            key = instance.correlation_key if instance is not None else None
            holder = await self._instances.key_owner(key, connection=connection) if key is not None else None
            if holder is None:
                raise
            return Conflict(target, holder)
        if found is None:
            raise NotFoundError(target)
        if not found.is_changed:
            return NotRetried(found.id, found.status)
        if self._notifies:
            await self._wake({found.queue: 0.0}, connection)
        return Retried(found.id)

    async def _retry(self, target: int, connection: Connection | None) -> Any:
        """Retry under a savepoint, so that a taken key leaves the caller's transaction usable."""
        if connection is None or not connection.is_in_transaction():
            return await self._instances.retry(target, connection=connection)
        async with connection.transaction():
            return await self._instances.retry(target, connection=connection)

    async def _insert_batch(self, requests: Sequence[Request]) -> list[InsertAnswer]:
        return await self.insert_many(requests)

    def _poke(self, queue: str, due_in_s: float) -> None:
        self._hub.poke(queue, due_in_s)
        self._emitter.poke(queue, due_in_s)

    async def _wake(self, due_in_s: Mapping[str, float], connection: Connection | None) -> None:
        """Wake the workers: after our commit out of band, after the caller's by a NOTIFY in their transaction [L24]."""
        if not due_in_s:
            return
        pending = self._after_commit.get(id(connection)) if connection is not None else None
        if pending is not None:
            pending.add(due_in_s)
        elif connection is not None and connection.is_in_transaction():
            # Postgres drops a notification that repeats one of the same transaction, so a queue costs one.
            await self._notify_within(
                PokeMessage(q={queue: int(seconds * 1000) for queue, seconds in sorted(due_in_s.items())}), connection
            )
        else:
            for queue, seconds in due_in_s.items():
                self._poke(queue, seconds)

    async def _interrupt(self, instance_id: int, connection: Connection | None) -> None:
        """Tell the worker that executes a cancelled instance, at the same moment as a wake-up."""
        pending = self._after_commit.get(id(connection)) if connection is not None else None
        if pending is not None:
            pending.cancels.append(instance_id)
        elif connection is not None and connection.is_in_transaction():
            await self._notify_within(PokeMessage(cancel=[instance_id]), connection)
        else:
            self._emitter.cancel(instance_id)

    async def _notify_within(self, message: PokeMessage, connection: Connection) -> None:
        """A NOTIFY in the caller's transaction, which Postgres delivers at its commit or never."""
        await self._notifications.notify(
            channel_of(self._database.schema), encode_message(message), connection=connection
        )
