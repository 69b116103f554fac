"""``gendurable dev``: a worker beside the editor, on a database of the project's own, started anew at every change.

The database server belongs to this process and outlives the worker, which is a child: code that was imported once
cannot be imported anew reliably, and a child that a broken module kills costs nothing.
"""

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from gendurable.cli.options import SettingOptions, common_options
from gendurable.cli.starting import database_settings
from gendurable.errors import ConfigurationError
from gendurable.logs import configure_logging, get_logger

log = get_logger(__name__)

DIRECTORY: Final = Path(".gendurable/postgres")
DRAIN: Final = "2s"
"""What running steps get at a reload: the programmer waits for it."""


@click.command()
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@click.option("--watch", multiple=True, type=click.Path(exists=True), metavar="DIR", help="Watch this folder too.")
@click.option("--no-reload", is_flag=True, help="Start the worker once.")
@click.option("--http-port", metavar="PORT", default="0", show_default=True, help="Probes and metrics; 0: a free port.")
@common_options
def dev(
    *, options: SettingOptions, modules: tuple[str, ...], watch: tuple[str, ...], no_reload: bool, http_port: str
) -> None:
    """Run the machines of these modules on an embedded server in .gendurable/postgres, and reload at every change.

    Any other configured database is left alone: half-written code belongs on none that matters. From another terminal:
    gendurable insert NAME --embedded .gendurable/postgres
    """
    if options.flags.get("dsn"):
        raise click.UsageError("dev runs on an embedded server; for another database use `gendurable worker --dsn`.")
    directory = options.flags.get("embedded.directory") or str(DIRECTORY)
    flags = {**options.flags, "embedded.enabled": True, "embedded.directory": directory}
    settings = SettingOptions(flags=flags, config=options.config).load().settings
    configure_logging(settings.log.level, "console")
    watchfiles = None if no_reload else _watchfiles()
    reloader = _Reloader(
        modules, http_port, schema=settings.schema, level=settings.log.level, reloads=watchfiles is not None
    )
    code = asyncio.run(
        reloader.run(
            database_settings(settings),
            _changes(watchfiles, [Path.cwd(), *map(Path, watch)], Path(str(directory)).absolute()),
        )
    )
    raise click.exceptions.Exit(code)


def _watchfiles() -> Any:
    try:
        return importlib.import_module("watchfiles")
    except ImportError as error:
        raise ConfigurationError(
            "reloading needs the package watchfiles: run `pip install 'gendurable[dev]'`, or use --no-reload"
        ) from error


async def _changes(watchfiles: Any, folders: Sequence[Path], database: Path) -> AsyncIterator[list[str]]:
    """The changed files of each save; nothing, for ever, when nothing is watched."""
    if watchfiles is None:
        await asyncio.Event().wait()
    only = watchfiles.PythonFilter(ignore_paths=[str(database)])
    async for changes in watchfiles.awatch(*folders, watch_filter=only):
        yield sorted({path for _, path in changes})


class _Reloader:
    """Keeps one child running: a new one at every change, none after a signal."""

    def __init__(self, modules: Sequence[str], http_port: str, *, schema: str, level: str, reloads: bool) -> None:
        imports = [argument for module in modules for argument in ("--import", module)]
        self._arguments = [*imports, "--http-port", http_port, "--schema", schema, "--log-level", level]
        self._reloads = reloads
        self._stop = asyncio.Event()

    async def run(
        self, database: contextlib.AbstractAsyncContextManager[Any], changes: AsyncIterator[list[str]]
    ) -> int:
        """Run until a signal; return the exit code of the last worker."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        async with database as settings:
            stopping = asyncio.create_task(self._stop.wait())
            try:
                while True:
                    child = await self._start(settings.require_dsn())
                    change = asyncio.ensure_future(anext(changes))
                    ended = asyncio.create_task(child.wait())
                    await asyncio.wait([stopping, change, ended], return_when=asyncio.FIRST_COMPLETED)
                    if ended.done() and not stopping.done() and not change.done():
                        if not self._reloads:
                            change.cancel()
                            return ended.result()
                        log.warning("the worker ended; waiting for a change", exit_code=ended.result())
                        await asyncio.wait([stopping, change], return_when=asyncio.FIRST_COMPLETED)
                    code = await _end(child)
                    if stopping.done():
                        change.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await change
                        return code
                    log.info("reloading", changed=change.result()[:5])
            finally:
                stopping.cancel()

    async def _start(self, dsn: str) -> asyncio.subprocess.Process:
        """A worker in a session of its own, so that Ctrl-C reaches it once, through us."""
        command = [sys.executable, "-m", "gendurable.cli", "worker", "--dsn", dsn, "--log-format", "console"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
        return await asyncio.create_subprocess_exec(
            *command, "--drain-timeout", DRAIN, *self._arguments, env=environment, start_new_session=True
        )


async def _end(child: asyncio.subprocess.Process) -> int:
    """Let a worker drain; return its exit code."""
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    return await child.wait()
