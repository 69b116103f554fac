"""The command line: commands that are imported only when they are asked for, and what each error exits with."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

from gendurable.errors import ConfigurationError, GenDurableError, SchemaMismatchError, StoreUnavailableError

# Importing every command costs far more than most commands take, so each is named here and loaded when it is run.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "config": ("gendurable.cli.config_commands", "Look at the configuration."),
    "migrate": ("gendurable.cli.migrate_commands", "Create, change and check the tables."),
}

_EXIT_FAILURE: Final = 1
_EXIT_CODES: Final[Mapping[type[GenDurableError], int]] = {
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
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
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
            click.echo(f"Error: {error}", err=True)
            ctx.exit(next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), _EXIT_FAILURE))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gendurable", message="gendurable %(version)s")
def main() -> None:
    """Durable execution for Python on PostgreSQL."""
