"""The process a bench starts for whatever it measures.

``python -m gendurable.bench.child`` does what the first line of its standard input says and reports in JSON lines on
standard output. It ends when the work is done, or when its input closes: a bench that dies leaves nothing running.
"""

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
import uvloop

from gendurable.bench import calling, working
from gendurable.bench.spec import ChildSpec
from gendurable.logs import configure_logging

_ROLES: Final[Mapping[str, Callable[[ChildSpec], Awaitable[None]]]] = {
    "worker": working.run_worker,
    "bare": working.run_bare,
    "insert": calling.run_insert,
    "insert_raw": calling.run_insert_raw,
    "client": calling.run_client,
    "bare_client": calling.run_bare_client,
}


async def _run(spec: ChildSpec) -> None:
    await _ROLES[spec.role](spec)


def main() -> None:
    """Do what the first line of the input says."""
    spec = msgspec.json.decode(io.FileIO(0, closefd=False).readline(), type=ChildSpec)
    configure_logging(spec.log_level, "console")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(spec))


if __name__ == "__main__":
    main()
