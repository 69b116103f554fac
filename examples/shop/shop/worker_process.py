"""One worker as a process: ``python -m shop.worker_process``, with the options of ``gendurable worker``."""

import asyncio
import signal

import click

from gendurable.cli.options import SettingOptions, worker_options
from gendurable.logs import configure_logging
from gendurable.machine.discovery import discover
from gendurable.wiring import build_engine


@click.command
@worker_options
def main(options: SettingOptions) -> None:
    """Work until SIGTERM."""
    settings = options.load().settings
    configure_logging(settings.log.level, settings.log.format)

    async def work() -> None:
        engine = build_engine(settings, discover(settings.imports))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, engine.stop)
        await engine.run()

    asyncio.run(work())


if __name__ == "__main__":
    main()
