"""The command line: commands that are imported only when they are asked for, and what each error exits with."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

from gendurable.errors import (
    ConfigurationError,
    GenDurableError,
    InvalidValueError,
    SchemaMismatchError,
    StoreUnavailableError,
)

# Importing every command costs far more than most commands take, so each is named here and loaded when it is run.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "bench": ("gendurable.cli.bench_command", "Measure this version on this machine."),
    "cancel": ("gendurable.cli.change_commands", "Cancel an instance."),
    "config": ("gendurable.cli.config_commands", "Look at the configuration."),
    "dev": ("gendurable.cli.dev_command", "Run a worker that reloads, on a server of its own."),
    "insert": ("gendurable.cli.change_commands", "Insert an instance."),
    "list": ("gendurable.cli.look_commands", "List instances, youngest first."),
    "machines": ("gendurable.cli.look_commands", "Count live instances by machine, version and step."),
    "migrate": ("gendurable.cli.migrate_commands", "Create, change and check the tables."),
    "nodes": ("gendurable.cli.look_commands", "List the processes of the fleet."),
    "probe": ("gendurable.cli.probe_command", "Ask a running worker whether it is well."),
    "queues": ("gendurable.cli.look_commands", "Show what each queue holds."),
    "retry": ("gendurable.cli.change_commands", "Run a failed or cancelled instance again."),
    "show": ("gendurable.cli.look_commands", "Show one instance."),
    "worker": ("gendurable.cli.worker_commands", "Run the machines and jobs of the installed packages."),
}

_EXIT_FAILURE: Final = 1
_EXIT_CODES: Final[Mapping[type[GenDurableError], int]] = {
    InvalidValueError: 2,
    ConfigurationError: 3,
    StoreUnavailableError: 4,
    SchemaMismatchError: 5,
}


class _LazyGroup(click.Group):
    """A group whose commands are the entries of ``COMMANDS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands without importing any."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; its function has its name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        # "list" is also a type, so that its function has an underscore more.
        command: click.Command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their short help, again without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in sorted(COMMANDS.items())])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and turn our errors into exit codes."""
        try:
            return super().invoke(ctx)
        except GenDurableError as error:
            from gendurable.logs import mask_text  # noqa: PLC0415 (structlog costs more than `gendurable --help`)

            problems = error.problems if isinstance(error, ConfigurationError) else (str(error),)
            for problem in problems:
                click.echo(f"Error: {mask_text(problem)}", err=True)
            ctx.exit(next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), _EXIT_FAILURE))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gendurable", message="gendurable %(version)s")
def main() -> None:
    """Durable execution for Python on PostgreSQL."""
