"""``make demo``: orders through two workers, one stopped past its lease, one killed, and every promise checked.

The order of events: both workers run; bob is stopped while it holds at least ten rows, until ada has brought half of
them to their end, and comes back with outcomes that are too late; then ada is killed with SIGKILL while it holds at
least ten rows, and bob finishes alone. Exit code 1 when anything at the end does not equal the input.
"""

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars

import gendurable as gd
from gendurable.embedded import EmbeddedPostgres
from gendurable.errors import GenDurableError
from gendurable.store.migrations import migrate_up
from shop.evidence import OrderStep, Watch
from shop.fleet import LEASE_TTL_S, Worker, workers
from shop.machines import order_request
from shop.orders import ExpectedOrder, load_orders
from shop.report import print_verdict
from shop.verdict import CALLED_STEPS, HELD_MIN, VICTIMS, Verdict, judge

_CONCURRENCY: Final = 60
_CROWD: Final = 60
"""Instances under way at once: enough for each worker to hold many, few enough that an order goes through quickly."""
_BATCH: Final = 10
_LOOK_S: Final = 0.02
_DRAW_S: Final = 0.1
_SETTLE_S: Final = 0.3
_START_S: Final = 20.0
_FINISH_S: Final = 60.0


class DemoError(Exception):
    """The demo could not be played to its end; nothing is said about the engine."""


async def play(dsn: str, expected: Sequence[ExpectedOrder], *, console: Console, folder: Path) -> Verdict:
    """Play the whole demo on a migrated database and judge it.

    Args:
        dsn: A database with gendurable's tables and nothing in them.
        expected: The orders.
        console: Where progress goes.
        folder: Where the workers' logs go.

    Raises:
        DemoError: A worker did not start, or died on its own.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(gd.Client(dsn))
        connection = await asyncpg.connect(dsn)
        stack.push_async_callback(connection.close)
        await connection.execute(Path(__file__).with_name("shop.sql").read_text(encoding="utf-8"))
        watch = Watch(connection)
        first, second = await stack.enter_async_context(
            workers(["ada", "bob"], dsn=dsn, concurrency=_CONCURRENCY, folder=folder)
        )
        await _until(watch.nodes_ready, "the workers did not start", [first, second], within_s=_START_S)
        say = console.print
        say(f"Workers [b]ada[/b] (pid {first.pid}) and [b]bob[/b] (pid {second.pid}) are up.")
        async with _beside(_draw(watch, expected, console)), _beside(_arrive(expected, client, watch)) as arriving:
            late = await _freeze(second, watch)
            say(
                f"[yellow]Stopped bob[/yellow] while it held {len(late)} rows; its leases run out in {LEASE_TTL_S:g} s."
            )
            await _until(_half_ended(watch, late), "ada did not end bob's rows", [first], within_s=_FINISH_S)
            second.resume()
            say("[yellow]Bob is back[/yellow]: ada has ended half of its rows, and what bob was doing comes too late.")
            await _freeze(first, watch)
            await first.kill()
            lost = await _held_at_last(first, watch)
            say(f"[red]Killed ada[/red] with -9 while it held {len(lost)} rows; bob goes on alone.")
            await arriving
            await _finished(watch, second)
            await asyncio.sleep(2 * _DRAW_S)
        interrupted = dict(zip(VICTIMS, (late, lost), strict=True))
        return judge(expected, await watch.gather(client, interrupted=interrupted, refused=second.outcomes_refused()))


async def _freeze(worker: Worker, watch: Watch) -> list[OrderStep]:
    """Stop a worker while the gateway is at work for at least ten of its rows; return all it holds."""
    deadline_s = time.monotonic() + _FINISH_S
    while time.monotonic() < deadline_s:
        if _is_busy(await watch.held_by(worker.name)):
            worker.pause()
            held = await _held_at_last(worker, watch)
            if _is_busy(held):
                return held
            worker.resume()
        await asyncio.sleep(_LOOK_S)
    raise DemoError(f"{worker.name} never held {HELD_MIN} rows")


def _is_busy(held: Sequence[OrderStep]) -> bool:
    return sum(step in CALLED_STEPS for _, step in held) >= HELD_MIN


async def _held_at_last(worker: Worker, watch: Watch) -> list[OrderStep]:
    """What a worker that was stopped or killed holds, once the server has done what it had been sent already."""
    await asyncio.sleep(_SETTLE_S)
    return await watch.held_by(worker.name)


def _half_ended(watch: Watch, held: Sequence[OrderStep]) -> Callable[[], Awaitable[bool]]:
    async def is_half_ended() -> bool:
        return await watch.count_ended(held) >= len(held) / 2

    return is_half_ended


async def _arrive(expected: Sequence[ExpectedOrder], client: gd.Client, watch: Watch) -> None:
    """Insert the orders batch by batch, as customers come in, whenever the shop is not crowded."""

    async def has_room() -> bool:
        return (await watch.progress()).unfinished < _CROWD

    for start in range(0, len(expected), _BATCH):
        await _until(has_room, "the shop stayed crowded", [], within_s=_FINISH_S)
        await client.insert_many([order_request(line.order) for line in expected[start : start + _BATCH]])


async def _finished(watch: Watch, worker: Worker) -> None:
    """Wait for the last instance to end; when it takes too long, the verdict will say what is missing."""

    async def is_finished() -> bool:
        return (await watch.progress()).unfinished == 0

    try:
        await _until(is_finished, "the orders did not all end", [worker], within_s=_FINISH_S)
    except TimeoutError as error:
        print(error, file=sys.stderr)


async def _until(
    holds: Callable[[], Awaitable[bool]], otherwise: str, needed: Sequence[Worker], *, within_s: float
) -> None:
    """Look until something holds.

    Raises:
        DemoError: One of the workers needed for it has died.
        TimeoutError: It did not come to hold in time.
    """
    deadline_s = time.monotonic() + within_s
    while not await holds():
        for worker in needed:
            if worker.has_ended:
                raise DemoError(f"{worker.name} ended by itself:\n{worker.log_tail()}")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{otherwise} within {within_s:g} s")
        await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something beside a block, and end it with the block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _draw(watch: Watch, expected: Sequence[ExpectedOrder], console: Console) -> None:
    """Draw how far the run is, until cancelled."""
    valid = sum(line.failure is None for line in expected)
    columns = (TextColumn("{task.description:>8}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBars(*columns, console=console) as bars:
        tasks = {
            name: bars.add_task(name, total=len(expected) if name == "ended" else valid)
            for name in ("charged", "shipped", "mailed", "ended")
        }
        while True:
            progress = await watch.progress()
            for name, task in tasks.items():
                bars.update(task, completed=getattr(progress, name))
            await asyncio.sleep(_DRAW_S)


async def _demo(console: Console) -> bool:
    """Bring the server and the tables, play, and say whether every promise was kept."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Like Ctrl-C: everything that was started is stopped on the way out.
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    expected = load_orders()
    with tempfile.TemporaryDirectory(prefix="gendurable-shop-") as folder:
        async with EmbeddedPostgres() as server:
            console.print(f"PostgreSQL {server.server_version} is up; {len(expected)} orders are waiting.")
            await migrate_up(server.dsn())
            verdict = await play(server.dsn(), expected, console=console, folder=Path(folder))
    print_verdict(verdict, console)
    return verdict.is_kept


def main() -> int:
    """Run the demo; 0 when every promise was kept, 1 when not, 130 when it was interrupted."""
    try:
        return 0 if asyncio.run(_demo(Console())) else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; the workers and the server are stopped", file=sys.stderr)
        return 130
    except (DemoError, TimeoutError, GenDurableError) as error:
        print(f"the demo could not be played: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
