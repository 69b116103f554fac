"""What SIGQUIT prints: every thread and every task with where it stands; the process goes on."""

import asyncio
import faulthandler
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

_DEPTH_MAX: Final = 100


def dump_on_quit(loop: asyncio.AbstractEventLoop) -> None:
    """Print all threads and tasks to stderr at every SIGQUIT.

    The threads are printed from the signal handler itself, so that they show even while blocking code keeps the loop
    from coming round; the tasks follow when it does.
    """
    loop.add_signal_handler(signal.SIGQUIT, dump_tasks)
    # The loop's handler is in place by now, and chaining calls it after ours.
    faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=True, chain=True)


def dump_tasks() -> None:
    """Print every task of the running loop to stderr, each with what it awaits."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    lines = [f"\n==== {len(tasks)} tasks ====\n"]
    for task in tasks:
        lines.append(f"-- {task.get_name()}\n")
        for frame in _frames(task.get_coro()):
            lines += traceback.format_stack(frame, limit=1)
    print("".join(lines), file=sys.stderr, flush=True)


def _frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine, the outermost first; asyncio itself shows only that one."""
    for _ in range(_DEPTH_MAX):
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None:
            return
        frame = getattr(awaited, f"{kind}_frame")
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
