"""The client for threaded code: the calls of :class:`gendurable.Client`, each blocking until it is answered.

One background thread runs an event loop with a ``Client`` on it; any number of threads may call at once.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from gendurable.client import Client
from gendurable.errors import BatcherClosedError, StoreUnavailableError
from gendurable.machine.contract import Request
from gendurable.model.answers import (
    Cancelled,
    CancelRequested,
    Conflict,
    NotCancelled,
    NotRetried,
    Retried,
    StillRunning,
)
from gendurable.model.insert import InsertAnswer
from gendurable.model.instance import Instance, Status
from gendurable.model.outcome import Duration
from gendurable.reading import PAGE_ROWS, WAIT_S

T = TypeVar("T")


class SyncClient:
    """A connection pool with the calls of an application that has no event loop.

    Use it as a context manager, one for each process, from any thread but the one its callbacks run in. There is no
    ``connection=`` and no ``transaction()``: the pool's connections belong to the background thread. Code that must
    insert within a transaction of its own uses the SQL function ``insert_job``, or the async client.
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
    ) -> None:
        """Nothing is connected and no thread is started until the context is entered; see :class:`gendurable.Client`.

        Raises:
            ConfigurationError: The schema's name cannot be used.
            InvalidValueError: A timeout cannot be used.
        """
        self._build = partial(
            Client,
            dsn,
            schema=schema,
            pool_min=pool_min,
            pool_max=pool_max,
            connect_timeout=connect_timeout,
            command_timeout=command_timeout,
            statement_cache=statement_cache,
            notify=notify,
        )
        self._client = self._build()
        self._running: AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        """Start the thread and connect; may be entered again after its end.

        Raises:
            StoreUnavailableError: Postgres cannot be reached; no thread is left.
        """
        assert self._portal is None, "a client is entered once at a time"
        self._client = self._build()
        self._running = start_blocking_portal("asyncio")
        portal = self._running.__enter__()
        try:
            portal.call(_name_thread)
            portal.call(self._client.__aenter__)
        except BaseException:
            self._running.__exit__(None, None, None)
            raise
        self._portal = portal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what ``insert_async`` still holds, answer who waits, close the connections and end the thread.

        Raises:
            BatcherClosedError: Rows of ``insert_async`` could not be written; their futures say why.
        """
        portal, self._portal = self._portal, None
        if portal is None or self._running is None:
            return
        try:
            portal.call(self._client.__aexit__, kind, error, trace)
        finally:
            # Calls of other threads that are still under way find the pool closed and end with an error by themselves.
            self._running.__exit__(None, None, None)

    def insert(self, request: Request, *, notify: bool = True, **options: Any) -> InsertAnswer:
        """Insert one instance; see :meth:`gendurable.Client.insert`.

        Raises:
            InvalidValueError: An option cannot be used; nothing was written.
            StoreError: See its subclasses.
        """
        return self._call(partial(self._client.insert, request, notify=notify, **_without_connection(options)))

    def insert_many(self, requests: Sequence[Request], *, notify: bool = True, **options: Any) -> list[InsertAnswer]:
        """Insert any number of instances, all of them or none; see :meth:`gendurable.Client.insert_many`.

        Raises:
            InvalidValueError: An option cannot be used; nothing was written.
            StoreError: See its subclasses.
        """
        return self._call(partial(self._client.insert_many, requests, notify=notify, **_without_connection(options)))

    def insert_async(self, request: Request, **options: Any) -> Future[InsertAnswer]:
        """Hand one instance to the batcher; see :meth:`gendurable.Client.insert_async`.

        Blocks only while the buffer is full. Cancelling the future does not take the row back. Callbacks of the future
        run in the background thread and must not call this client.

        Raises:
            InvalidValueError: An option cannot be used; nothing was handed over.
            BatcherClosedError: The client is closed.
        """
        if self._portal is None:
            raise BatcherClosedError("the client is closed; the row was not inserted")
        answer: Future[InsertAnswer] = Future()

        async def hand_over() -> None:
            written = await self._client.insert_async(request, **options)
            written.add_done_callback(partial(_pass_on, answer))

        self._call(hand_over)
        return answer

    def cancel(
        self, target: int | None = None, *, key: str | None = None, reason: str = "cancelled by a caller"
    ) -> Cancelled | CancelRequested | NotCancelled:
        """Cancel an instance; see :meth:`gendurable.Client.cancel`.

        Raises:
            NotFoundError: No instance has this id, or the key addresses none.
        """
        return self._call(partial(self._client.cancel, target, key=key, reason=reason))

    def retry(self, target: int) -> Retried | Conflict | NotRetried:
        """Run a failed or cancelled instance again; see :meth:`gendurable.Client.retry`.

        Raises:
            NotFoundError: There is no such instance.
        """
        return self._call(partial(self._client.retry, target))

    def get(self, target: int | None = None, *, key: str | None = None) -> Instance | None:
        """Read one instance by id or by correlation key; see :meth:`gendurable.Client.get`."""
        return self._call(partial(self._client.get, target, key=key))

    def wait(
        self, target: int | None = None, *, key: str | None = None, timeout: Duration = WAIT_S
    ) -> Instance | StillRunning:
        """Wait for an instance to end, ``timeout`` in seconds or as a timedelta; see :meth:`gendurable.Client.wait`.

        Raises:
            NotFoundError: There is no such instance.
        """
        return self._call(partial(self._client.wait, target, key=key, timeout=timeout))

    def result(self, target: int | None = None, *, key: str | None = None, timeout: Duration = WAIT_S) -> Any:
        """Wait for an instance to end and return its result; see :meth:`gendurable.Client.result`.

        Raises:
            InstanceFailedError: It failed.
            InstanceCancelledError: It was cancelled.
            NotFinishedError: The time passed; the instance goes on.
            NotFoundError: There is no such instance.
        """
        return self._call(partial(self._client.result, target, key=key, timeout=timeout))

    def list(
        self,
        *,
        machine: str | None = None,
        status: Sequence[Status | str] | Status | str | None = None,
        queue: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        parent_id: int | None = None,
        key_prefix: str | None = None,
        before_id: int | None = None,
        limit: int = PAGE_ROWS,
    ) -> Sequence[Instance]:
        """One page of instances, youngest first; see :meth:`gendurable.Client.list`.

        Raises:
            InvalidValueError: A filter cannot be used.
        """
        return self._call(
            partial(
                self._client.list,
                machine=machine,
                status=status,
                queue=queue,
                tags=tags,
                metadata=metadata,
                parent_id=parent_id,
                key_prefix=key_prefix,
                before_id=before_id,
                limit=limit,
            )
        )

    def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call in the background thread; an interrupted caller, as by Ctrl-C, takes its call along."""
        portal = self._portal
        if portal is None:
            raise StoreUnavailableError("the client is not open; use it as a context manager")
        try:
            under_way: Future[T] = portal.start_task_soon(call)
        except RuntimeError as error:
            if self._portal is None:
                raise StoreUnavailableError("the client was closed meanwhile") from error
            raise
        try:
            return under_way.result()
        except BaseException:
            under_way.cancel()
            raise


def _name_thread() -> None:
    """Let a dump of all threads say whose this is."""
    threading.current_thread().name = "gendurable-client"


def _without_connection(options: dict[str, Any]) -> dict[str, Any]:
    """The options; a ``connection`` among them is misuse, and passing it on would hand it to another thread's loop."""
    if "connection" in options:
        raise TypeError("a SyncClient takes no connection=; see its docstring for the alternatives")
    return options


def _pass_on(answer: Future[InsertAnswer], written: asyncio.Future[InsertAnswer]) -> None:
    """Give a thread what the event loop got."""
    if not answer.set_running_or_notify_cancel():
        return
    if written.cancelled():
        answer.set_exception(BatcherClosedError("the client was closed before the row could be written"))
    elif error := written.exception():
        answer.set_exception(error)
    else:
        answer.set_result(written.result())
