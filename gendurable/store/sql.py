"""Named SQL statements, read once from ``sql/queries/*.sql`` and rewritten for the configured schema.

A statement starts with ``-- name: its_name``, goes on with comment lines that say what it promises, and ends with a
semicolon. The text names the schema ``gendurable.``; :meth:`SqlCatalog.text` puts the configured one in its place, so
that the same file can be pasted into psql.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from gendurable.errors import ConfigurationError

DEFAULT_SCHEMA = "gendurable"
SCHEMA_NAME_BYTES_MAX = 40

_NAME_LINE = re.compile(r"^-- name: (?P<name>[a-z][a-z0-9_]*)$", re.MULTILINE)
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_QUALIFIER = re.compile(r"\bgendurable\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One named statement with the comment that documents it."""

    name: str
    comment: str
    text: str


def sql_directory() -> Traversable:
    """The folder with ``queries`` and ``migrations``: inside an installed package, or beside it in a checkout."""
    packaged = resources.files("gendurable") / "sql"
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2] / "sql"


def parse_statements(source: str) -> Iterator[Statement]:
    """Split a query file into its statements."""
    starts = list(_NAME_LINE.finditer(source))
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        block = source[start.end() : following.start() if following else len(source)].strip()
        lines = block.splitlines()
        first_code = next(i for i, line in enumerate(lines) if not line.startswith("--"))
        comment = "\n".join(line.removeprefix("--").strip() for line in lines[:first_code])
        yield Statement(name=start["name"], comment=comment, text="\n".join(lines[first_code:]).strip().rstrip(";"))


def _read_statements() -> dict[str, Statement]:
    found: dict[str, Statement] = {}
    for file in sorted((sql_directory() / "queries").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql"):
            for statement in parse_statements(file.read_text(encoding="utf-8")):
                assert statement.name not in found, f"two statements are called {statement.name}"
                found[statement.name] = statement
    return found


STATEMENTS: Mapping[str, Statement] = _read_statements()


def check_schema_name(schema: str) -> str:
    """Return the name when it can stand unquoted in SQL.

    Raises:
        ConfigurationError: It is not a plain lower-case identifier of at most 40 bytes.
    """
    if not _SCHEMA_NAME.fullmatch(schema) or len(schema) > SCHEMA_NAME_BYTES_MAX:
        raise ConfigurationError(
            f"schema {schema!r} cannot be used: write lower-case letters, digits and underscores, not starting with"
            f" a digit, at most {SCHEMA_NAME_BYTES_MAX} characters"
        )
    return schema


def in_schema(text: str, schema: str) -> str:
    """The same SQL with ``gendurable.`` replaced by the configured schema."""
    return text if schema == DEFAULT_SCHEMA else _QUALIFIER.sub(f"{schema}.", text)


class SqlCatalog:
    """The statements as one schema sees them."""

    def __init__(self, schema: str = DEFAULT_SCHEMA) -> None:
        """Rewrite every statement once; ``schema`` has been checked by then or is checked now."""
        self.schema = check_schema_name(schema)
        self._texts = {name: in_schema(s.text, schema) for name, s in STATEMENTS.items()}

    def text(self, name: str) -> str:
        """The text of one statement; an unknown name is a mistake of ours."""
        return self._texts[name]


@lru_cache(maxsize=64)
def catalog(schema: str = DEFAULT_SCHEMA) -> SqlCatalog:
    """The catalog of a schema, shared by everything in the process."""
    return SqlCatalog(schema)
