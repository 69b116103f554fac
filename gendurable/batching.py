"""The opt-in batcher behind ``insert_async``: many rows in one statement, with back-pressure, losing nothing."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from gendurable.errors import (
    BatcherClosedError,
    GenDurableError,
    StoreContendedError,
    StoreUnavailableError,
    StoreUnreachableError,
)
from gendurable.logs import get_logger
from gendurable.machine.contract import Request
from gendurable.model.insert import InsertAnswer

log = get_logger(__name__)

ROWS_MAX = 1000
LINGER_S = 0.002
BUFFER_ROWS_MAX = 10_000
TRIES_MAX = 5

Entry = tuple[Request, "asyncio.Future[InsertAnswer]"]


class InsertBatcher:
    """Writes what is put into it within milliseconds."""

    def __init__(
        self,
        write: Callable[[Sequence[Request]], Awaitable[list[InsertAnswer]]],
        *,
        rows_max: int = ROWS_MAX,
        linger_s: float = LINGER_S,
        buffer_rows_max: int = BUFFER_ROWS_MAX,
    ) -> None:
        """Nothing runs until the first row.

        Args:
            write: Writes a batch: all of it or, after an error, nothing.
            rows_max: Rows of one batch.
            linger_s: Seconds to wait for company.
            buffer_rows_max: Rows that may wait; beyond, the caller does.
        """
        self._write = write
        self._rows_max = rows_max
        self._linger_s = linger_s
        self._queue: asyncio.Queue[Entry] = asyncio.Queue(buffer_rows_max)
        self._loop: asyncio.Task[None] | None = None
        self._is_closed = False
        self._closing = asyncio.Event()
        self._putting = 0
        self._failed = 0

    async def put(self, request: Request) -> "asyncio.Future[InsertAnswer]":
        """Hand over a row; waits while the buffer is full.

        Raises:
            BatcherClosedError: The batcher is closed; the row was not taken.
        """
        if self._is_closed:
            raise BatcherClosedError("the client is closed; the row was not inserted")
        if self._loop is None or self._loop.done():
            self._start()
        future: asyncio.Future[InsertAnswer] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_look_at)
        self._putting += 1
        try:
            await self._queue.put((request, future))
        finally:
            self._putting -= 1
        return future

    async def close(self, *, timeout_s: float = 30.0) -> None:
        """Write everything that was handed over.

        Raises:
            BatcherClosedError: Some rows could not be written; their futures say why.
        """
        self._is_closed = True
        self._closing.set()
        deadline_s = time.monotonic() + timeout_s
        while self._loop is not None and not self._loop.done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._loop.cancel()
            await asyncio.wait([self._loop], timeout=left_s if left_s > 0 else 1.0)
        while self._putting or not self._queue.empty():
            while not self._queue.empty():
                _request, future = self._queue.get_nowait()
                self._fail(future, BatcherClosedError("the client was closed before the row could be written"))
            # Whoever waited for room hands its row over only now.
            await asyncio.sleep(0)
        if self._failed:
            raise BatcherClosedError(f"{self._failed} rows of insert_async were not written; their futures say why")

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop().create_task(self._run())
        self._loop.add_done_callback(self._ended)

    def _ended(self, loop: asyncio.Task[None]) -> None:
        """A loop that met a bug has told its batch; the rows behind it get another one."""
        if loop.cancelled():
            return
        if error := loop.exception():
            log.error("a batch of insert_async failed", exc_info=error)
        if not self._queue.empty():
            self._start()

    async def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty() and not self._putting):
            first = await self._next()
            if first is None:
                continue
            batch = [first]
            if self._queue.qsize() + 1 < self._rows_max:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self._linger_s)
            while len(batch) < self._rows_max and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._write_batch(batch)
            except asyncio.CancelledError:
                text = "the client was closed while the row was on its way: it may have been written"
                self._fail_all(batch, BatcherClosedError(text))
                raise
            except BaseException as error:
                self._fail_all(batch, error)
                raise

    async def _next(self) -> Entry | None:
        """The next row, or None when the batcher is closing and there is none."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        take = asyncio.ensure_future(self._queue.get())
        closing = asyncio.ensure_future(self._closing.wait())
        await asyncio.wait([take, closing], return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if take.done():
            return take.result()
        take.cancel()
        return None

    async def _write_batch(self, batch: Sequence[Entry]) -> None:
        """Write a batch; split it when something in it is refused, so that one bad row costs only itself."""
        for attempt in range(TRIES_MAX):
            try:
                answers = await self._write([request for request, _ in batch])
            except StoreUnreachableError as error:
                if attempt + 1 == TRIES_MAX:
                    self._fail_all(batch, error)
                    return
                await asyncio.sleep(0.1 * 2**attempt)
            except StoreUnavailableError as error:
                # The connection was lost on the way: the rows may have been written, and writing them again could
                # write them twice. The callers are told.
                self._fail_all(batch, error)
                return
            except StoreContendedError as error:
                if attempt + 1 == TRIES_MAX:
                    self._fail_all(batch, error)
                    return
                await asyncio.sleep(0.01)
            except GenDurableError as error:
                if len(batch) == 1:
                    self._fail(batch[0][1], error)
                    return
                middle = len(batch) // 2
                await self._write_batch(batch[:middle])
                await self._write_batch(batch[middle:])
                return
            else:
                for (_request, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
                return

    def _fail_all(self, batch: Sequence[Entry], error: BaseException) -> None:
        for _request, future in batch:
            self._fail(future, error)

    def _fail(self, future: "asyncio.Future[InsertAnswer]", error: BaseException) -> None:
        """Tell a row's caller, unless it was answered already; one who gave up waiting still counts."""
        if future.done() and not future.cancelled():
            return
        self._failed += 1
        if not future.done():
            future.set_exception(error)


def _look_at(future: "asyncio.Future[InsertAnswer]") -> None:
    """Failures are counted and reported by close(), so a future nobody awaits must not warn as well."""
    if not future.cancelled():
        future.exception()
