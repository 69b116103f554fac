"""How the commands for people print: tables on a terminal, plain columns elsewhere, JSON for programs."""

import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import click
import msgspec

_CELL_CHARS_MAX: Final = 60


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, nothing: str) -> None:
    """Print rows below their columns; the sentence ``nothing`` when there are none."""
    cells = [[shown(value) for value in row] for row in rows]
    if not cells:
        click.echo(nothing, err=True)
    elif sys.stdout.isatty():
        _print_rich(columns, cells)
    else:
        titles = [column.upper().replace(" ", "_") for column in columns]
        widths = [max(len(line[place]) for line in [titles, *cells]) for place in range(len(columns))]
        for line in [titles, *cells]:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one thing, a line for each field that says something."""
    told = {name: value for name, value in fields.items() if value not in (None, [], {})}
    width = max((len(name) for name in told), default=0)
    for name, value in told.items():
        lines = shown(value, chars_max=None).splitlines() or [""]
        click.echo(f"{name:<{width}}  " + f"\n{'':<{width}}  ".join(lines))


def shown(value: object, *, chars_max: int | None = _CELL_CHARS_MAX) -> str:
    """One value for people; control characters are escaped, because a stored text must not steer a terminal."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, dt.datetime):
        return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    keep = "" if chars_max is not None else "\n"
    text = "".join(mark if mark.isprintable() or mark in keep else repr(mark)[1:-1] for mark in text)
    return text if chars_max is None or len(text) <= chars_max else text[: chars_max - 1] + "…"


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE  # noqa: PLC0415 (most runs print no table)
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE)
    for place, column in enumerate(columns):
        # The first column says which one it is: a shortened id is worth nothing.
        table.add_column(column, no_wrap=place == 0, overflow="ellipsis" if place == 0 else "fold")
    for row in cells:
        # As plain text: a square bracket in a state is no markup.
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
