"""The command line's options that are settings, and how they become the flags that `load_settings` takes."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import click
import msgspec

from gendurable.errors import ConfigurationError
from gendurable.settings import LoadedSettings, load_settings

_P = ParamSpec("_P")
_R = TypeVar("_R")

EXIT_CONFIGURATION: Final = 3


class ConfigurationExit(click.ClickException):
    """Ends the command with exit code 3 and shows every problem on a line of its own."""

    exit_code = EXIT_CONFIGURATION

    def __init__(self, error: ConfigurationError) -> None:
        """List the problems of the error."""
        super().__init__("\n".join(["the configuration is wrong:", *(f"  {problem}" for problem in error.problems)]))


class SettingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of one command line said about settings."""

    flags: Mapping[str, object]
    config: Path | None = None

    def load(self) -> LoadedSettings:
        """Load the settings of this process: these flags, the environment and the configuration file.

        Raises:
            ConfigurationExit: Something is wrong; every problem is in the message.
        """
        try:
            return load_settings(
                flags=self.flags, environ=os.environ, toml_path=self.config, cwd=Path.cwd(), flag_names=FLAG_NAMES
            )
        except ConfigurationError as error:
            raise ConfigurationExit(error) from error


class _Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option: how it is written, the key it sets, and click's own arguments."""

    flag: str
    key: str
    click: Mapping[str, Any]

    @property
    def argument(self) -> str:
        """The keyword that click passes it as; of its own, so that it never meets one of the command's."""
        return "setting_" + self.flag.split("/")[0].removeprefix("--").replace("-", "_")


def _text(flag: str, key: str, metavar: str, about: str) -> _Option:
    return _Option(flag=flag, key=key, click={"metavar": metavar, "default": None, "help": about})


def _switch(flag: str, key: str, about: str, *, value: bool) -> _Option:
    return _Option(flag=flag, key=key, click={"is_flag": True, "flag_value": value, "default": None, "help": about})


def _many(flag: str, key: str, metavar: str, about: str) -> _Option:
    return _Option(flag=flag, key=key, click={"multiple": True, "metavar": metavar, "help": about})


_COMMON: Final = (
    _text("--dsn", "dsn", "URL", "Where Postgres is. Visible in the process list: prefer GENDURABLE_DSN."),
    _text("--schema", "schema", "NAME", "The Postgres schema with all tables.  [default: gendurable]"),
    _Option(
        flag="--embedded",
        key="embedded.enabled",
        click={
            "is_flag": False,
            "flag_value": "",
            "default": None,
            "metavar": "[DIR]",
            "help": "Run on a Postgres server of our own, with its data in DIR or in a temporary folder.",
        },
    ),
    _text("--embedded-dir", "embedded.directory", "DIR", "The same as --embedded DIR."),
    _text("--log-level", "log.level", "LEVEL", "debug, info, warning, error or critical.  [default: info]"),
    _text("--log-format", "log.format", "FORMAT", "auto, json or console.  [default: auto]"),
)
_WORKER: Final = (
    _text("--queues", "queues", "A,B", "The queues to serve; * for those of the loaded machines, none for none."),
    _many("--queue", "queues", "NAME=N", "A queue to serve and how many of its steps run at once; may be repeated."),
    _text("--concurrency", "queue.concurrency", "N", "Steps at once, for each queue that has no number of its own."),
    _text("--sync-threads", "queue.sync_threads", "N", "Threads for plain functions, for each queue."),
    _text("--poll-interval", "queue.poll_interval", "DURATION", "The floor under notifications, such as 2s."),
    _text("--node", "node", "NAME", "The name of this machine.  [default: its host name]"),
    _many("--import", "imports", "MODULE", "Import this module too; may be repeated."),
    _text("--lease-ttl", "lease.ttl", "DURATION", "How long a claim lasts without a heartbeat, such as 30s."),
    _text("--heartbeat", "lease.heartbeat", "DURATION", "Time between heartbeats, at most a third of the ttl."),
    _text("--drain-timeout", "process.drain_timeout", "DURATION", "What running steps get at shutdown, such as 25s."),
    _text("--start-deadline", "process.start_deadline", "DURATION", "How long to wait for the database at the start."),
    _text("--http-host", "process.http_host", "HOST", "Where probes and metrics listen.  [default: 127.0.0.1]"),
    _text("--http-port", "process.http_port", "PORT", "The port of probes and metrics.  [default: 9464]"),
    _switch("--no-http", "process.http_enabled", "No probes and no metrics.", value=False),
    _switch("--no-reaper", "reaper.enabled", "Leave expired leases to other processes.", value=False),
    _switch("--no-collector", "collector.enabled", "Leave retention to other processes.", value=False),
    _switch("--no-reconciler", "reconciler.enabled", "Leave counters to other processes.", value=False),
    _switch("--no-discover", "discover", "Load only what --import names, no installed packages.", value=False),
    _switch("--no-listen", "listen.enabled", "Do not LISTEN; poll only.", value=False),
    _switch("--no-statement-cache", "pool.statement_cache", "For a pooler in transaction mode.", value=False),
)
FLAG_NAMES: Final[Mapping[str, str]] = {option.key: option.flag for option in reversed((*_COMMON, *_WORKER))}


def common_options(function: Callable[_P, _R]) -> Callable[..., _R]:
    """Add the options that every command has; the command gets them as its keyword ``options: SettingOptions``."""
    return _with_options(function, _COMMON)


def worker_options(function: Callable[_P, _R]) -> Callable[..., _R]:
    """Add the options that a worker has, the common ones among them, as the keyword ``options: SettingOptions``."""
    return _with_options(function, (*_COMMON, *_WORKER))


def _with_options(function: Callable[..., _R], options: tuple[_Option, ...]) -> Callable[..., _R]:
    @functools.wraps(function)
    def command(*args: Any, setting_config: Path | None, **kwargs: Any) -> _R:
        given = [(option, kwargs.pop(option.argument)) for option in options]
        return function(*args, options=SettingOptions(flags=_flags(given), config=setting_config), **kwargs)

    decorated: Callable[..., _R] = command
    for option in reversed(options):
        decorated = click.option(option.flag, option.argument, **option.click)(decorated)
    return click.option(
        "--config",
        "setting_config",
        type=click.Path(path_type=Path, dir_okay=False),
        default=None,
        help="The configuration file.  [default: gendurable.toml, if there is one]",
    )(decorated)


def _flags(given: Sequence[tuple[_Option, Any]]) -> dict[str, object]:
    """The flags by key; what was not given is left out, and lists of the same key are joined."""
    flags: dict[str, object] = {}
    lists: dict[str, list[str]] = {}
    for option, value in given:
        if value is None or value == ():
            continue
        if option.key in {"queues", "imports"}:
            parts = value if isinstance(value, tuple) else (value,)
            lists.setdefault(option.key, []).extend(name for part in parts for name in part.split(","))
        elif option.key == "embedded.enabled":
            flags |= {option.key: True} | ({"embedded.directory": value} if value else {})
        else:
            flags[option.key] = value
    if "embedded.directory" in flags:
        flags["embedded.enabled"] = True
    return {**flags, **lists}
