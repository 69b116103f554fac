"""What SIGQUIT prints: every thread and every task with where it stands; the process goes on."""

import asyncio
import faulthandler
import signal
import sys


def dump_on_quit(loop: asyncio.AbstractEventLoop) -> None:
    """Print all threads and tasks to stderr at every SIGQUIT.

    The threads are printed from the signal handler itself, so that they show even while blocking code keeps the loop
    from coming round; the tasks follow when it does.
    """
    loop.add_signal_handler(signal.SIGQUIT, dump_tasks)
    # The loop's handler is in place by now, and chaining calls it after ours.
    faulthandler.register(signal.SIGQUIT, file=sys.stderr, all_threads=True, chain=True)


def dump_tasks() -> None:
    """Print every task of the running loop to stderr."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    print(f"\n==== {len(tasks)} tasks ====", file=sys.stderr)
    for task in tasks:
        print(f"-- {task.get_name()}", file=sys.stderr)
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()
