"""The migrations that come with this version: ``sql/migrations/NNNN_name.sql`` and the scripts that take them back.

A file starts with comment lines; three of them are read here::

    -- oldest worker: 0.1.0        the oldest version whose workers still run on the schema after this file
    -- phase: expand               or contract, when it takes away what older versions used
    -- transaction: none           only for CREATE INDEX CONCURRENTLY and its like [L33]

A file without a transaction is sent one statement at a time. A crash can leave it half done, so each of its statements
must be able to run again: drop a perhaps invalid index first, then create it.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable
from typing import Literal, TypeAlias, cast

from gendurable.errors import InvalidValueError, MigrationError
from gendurable.store.sql import sql_directory

Phase: TypeAlias = Literal["expand", "contract"]
Version: TypeAlias = tuple[int, int, int]

_FILE_NAME = re.compile(r"(?P<number>[0-9]{4})_(?P<name>[a-z][a-z0-9_]*?)(?P<down>\.down)?\.sql")
_HEADER_LINE = re.compile(r"-- (?P<key>oldest worker|phase|transaction): *(?P<value>.*)")
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")
_CONCURRENTLY = re.compile(r"\bconcurrently\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """The text of one file, naming the schema ``gendurable.``, and whether it runs in a transaction."""

    text: str
    is_transactional: bool

    def statements(self) -> list[str]:
        """What to send in one message each: the whole file, or its single statements outside a transaction."""
        if self.is_transactional:
            return [self.text]
        code = "\n".join(line for line in self.text.splitlines() if not line.lstrip().startswith("--"))
        return [part.strip() for part in re.split(r";[ \t]*$", code, flags=re.MULTILINE) if part.strip()]

    def text_for_transaction(self) -> str:
        """The text as it can run in a transaction, where nobody else can see the tables anyway."""
        return self.text if self.is_transactional else _CONCURRENTLY.sub("", self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One numbered step of the schema.

    Attributes:
        number: Its place; numbers start at 1 and have no gaps.
        name: What it is about, from the file's name.
        checksum: SHA-256 of the file's text, in hex; the same for every schema.
        oldest_worker: The oldest version whose workers still run after it.
        phase: ``expand`` adds, ``contract`` takes away.
        up: What applies it.
        down: What takes it back; None when nothing can.
    """

    number: int
    name: str
    checksum: str
    oldest_worker: str
    phase: Phase
    up: Script
    down: Script | None

    @property
    def label(self) -> str:
        """The file's name without its ending, for people."""
        return f"{self.number:04d}_{self.name}"


def parse_version(text: str) -> Version:
    """The three numbers of a version; what follows them, such as ``.dev1``, does not count.

    Raises:
        InvalidValueError: The text starts with no such numbers.
    """
    found = _VERSION.match(text)
    if found is None:
        raise InvalidValueError(f"version {text!r} does not start like 1.2.3", path="version")
    major, minor, patch = (int(part) for part in found.groups())
    return major, minor, patch


@lru_cache(maxsize=1)
def shipped_migrations() -> tuple[Migration, ...]:
    """The migrations of this version, in order."""
    return tuple(load_migrations(sql_directory() / "migrations"))


def load_migrations(directory: Traversable) -> Sequence[Migration]:
    """Read a folder of migrations, in order.

    Raises:
        MigrationError: A name, a header, a number or a statement in it cannot be used; nothing was sent anywhere.
    """
    ups: dict[int, tuple[str, str]] = {}
    downs: dict[tuple[int, str], Script] = {}
    for entry in sorted(directory.iterdir(), key=lambda file: file.name):
        if not entry.name.endswith(".sql"):
            continue
        found = _FILE_NAME.fullmatch(entry.name)
        if found is None:
            raise MigrationError(f"{entry.name} is no name of a migration: use 0001_lower_case_words.sql")
        number, name, text = int(found["number"]), found["name"], entry.read_text(encoding="utf-8")
        if found["down"]:
            downs[number, name] = _script(text, entry.name)
        elif number in ups:
            raise MigrationError(f"two migrations have the number {number}: {ups[number][0]} and {name}")
        else:
            ups[number] = name, text
    if [*ups] != [*range(1, len(ups) + 1)]:
        raise MigrationError(f"the numbers of the migrations must be 1, 2, 3 and so on; there are {[*ups]}")
    migrations = [
        _migration(number, name, text, downs.pop((number, name), None)) for number, (name, text) in ups.items()
    ]
    if downs:
        number, name = next(iter(downs))
        raise MigrationError(f"{number:04d}_{name}.down.sql takes back a migration that does not exist")
    return migrations


def _migration(number: int, name: str, text: str, down: Script | None) -> Migration:
    file_name = f"{number:04d}_{name}.sql"
    header = _header(text)
    oldest_worker, phase = header.get("oldest worker", ""), header.get("phase", "")
    if not _VERSION.fullmatch(oldest_worker):
        raise MigrationError(f"{file_name} does not say '-- oldest worker: 1.2.3' in its first lines")
    if phase not in {"expand", "contract"}:
        raise MigrationError(f"{file_name} does not say '-- phase: expand' or '-- phase: contract' in its first lines")
    return Migration(
        number=number,
        name=name,
        checksum=hashlib.sha256(text.encode()).hexdigest(),
        oldest_worker=oldest_worker,
        phase=cast("Phase", phase),
        up=_script(text, file_name),
        down=down,
    )


def _header(text: str) -> dict[str, str]:
    """The keys in the comment lines at the top."""
    header = {}
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        if found := _HEADER_LINE.fullmatch(line):
            header[found["key"]] = found["value"].strip()
    return header


def _script(text: str, file_name: str) -> Script:
    transaction = _header(text).get("transaction")
    if transaction not in {None, "none"}:
        raise MigrationError(f"{file_name} says '-- transaction: {transaction}'; only 'none' means something")
    # Splitting it at the ends of lines is only right where no body of a function has such ends.
    if transaction == "none" and "$$" in text.replace("$function$", "$$"):
        raise MigrationError(f"{file_name} defines a function outside a transaction: put it into a file of its own")
    return Script(text=text, is_transactional=transaction is None)
