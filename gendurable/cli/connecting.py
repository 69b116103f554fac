"""What the commands for people share: a short-lived client, and how one instance is addressed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from gendurable.cli.options import SettingOptions
from gendurable.cli.starting import database_settings
from gendurable.client import Client
from gendurable.errors import StoreRejectedError
from gendurable.settings import Settings
from gendurable.store.migrations import check_compatible
from gendurable.wiring import product_version

T = TypeVar("T")


def with_client(options: SettingOptions, call: Callable[[Client], Awaitable[T]]) -> T:
    """Run one call on a client of the configured database.

    Raises:
        ConfigurationExit: The configuration is wrong.
        StoreUnavailableError: The database cannot be reached; exit code 4.
        SchemaMismatchError: The schema is missing or does not fit; exit code 5.
    """
    return asyncio.run(_call(options.load().settings, call))


async def _call(wanted: Settings, call: Callable[[Client], Awaitable[T]]) -> T:
    async with database_settings(wanted) as settings:
        pool = settings.pool
        async with Client(
            settings.require_dsn(),
            schema=settings.schema,
            pool_max=2,
            connect_timeout=pool.connect_timeout_s,
            command_timeout=pool.command_timeout_s,
            statement_cache=pool.statement_cache,
        ) as client:
            try:
                return await call(client)
            except StoreRejectedError:
                # A missing table says little; the command that makes it says more.
                await check_compatible(client.database, schema=settings.schema, version=product_version())
                raise


def instance_id_of(text: str) -> int:
    """The id in an argument: a bare number is one, anything else was probably meant as a key.

    Raises:
        BadParameter: It is no id; exit code 2.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) < 2**63:
        raise click.BadParameter(f"{text!r} is no id; for a correlation key write --key {text}")
    return int(text)


def require_one_target(instance_id: int | None, key: str | None) -> None:
    """Refuse a command line that names no instance, or two.

    Raises:
        UsageError: Exit code 2.
    """
    if (instance_id is None) == (key is None):
        raise click.UsageError("Give an ID or --key KEY, exactly one of them.")
