"""``gendurable worker``: the daemon."""

import signal
import sys
from pathlib import Path

import click

from gendurable.cli.options import SettingOptions, worker_options
from gendurable.cli.worker_process import WorkerLife, run_worker
from gendurable.logs import configure_logging
from gendurable.machine.discovery import discover


@click.command()
@click.option("--drain", "until_empty", is_flag=True, help="End when the served queues have nothing due.")
@click.option("--once", "one_batch", is_flag=True, help="Take one batch from each served queue, then end.")
@worker_options
def worker(*, options: SettingOptions, until_empty: bool, one_batch: bool) -> None:
    """Run the machines and jobs of the installed packages.

    SIGTERM or Ctrl-C drains: nothing new is claimed, running steps get the drain timeout. A second signal hands
    everything back at once. SIGQUIT prints all threads and tasks.

    Exits with 0 after a clean drain, 1 when a part of it failed, 3 when the configuration or a machine package is
    wrong, 4 when the database could not be reached by the start deadline, 5 when the schema does not fit, and 6 when
    steps were cut off by the drain timeout or a second signal.
    """
    if until_empty and one_batch:
        raise click.UsageError("--drain and --once exclude each other.")
    settings = options.load().settings
    configure_logging(settings.log.level, settings.log.format)
    if settings.imports and (here := str(Path.cwd())) not in sys.path:
        # As with `python -m`: modules of the current folder are meant when somebody imports by name.
        sys.path.insert(0, here)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Until the loop takes over there is nothing to drain, and an import may take a while.
        signal.signal(number, lambda *_: sys.exit(0))
    registry = discover(settings.imports, use_entry_points=settings.discover)
    life = WorkerLife(until_empty=until_empty, one_batch=one_batch)
    raise click.exceptions.Exit(run_worker(settings, registry, life))
