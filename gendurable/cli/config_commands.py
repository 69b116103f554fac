"""``gendurable config``: what is configured, and where each value comes from."""

import json

import click

from gendurable.cli.options import SettingOptions, worker_options
from gendurable.settings import explain


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object: key to value and source.")
@worker_options
def show(*, options: SettingOptions, as_json: bool) -> None:
    """Print every setting with its source; secrets are shown as ***.

    Takes the worker's options, to show what a worker started with them would do. Exits with 3 when the configuration
    is wrong.
    """
    rows = explain(options.load())
    if as_json:
        click.echo(json.dumps({key: {"value": value, "source": source} for key, value, source in rows}, indent=2))
        return
    key_width = max(len(key) for key, _, _ in rows)
    value_width = min(max(len(value) for _, value, _ in rows), 40)
    for key, value, source in rows:
        click.echo(f"{key:<{key_width}}  {value:<{value_width}}  {source}")
