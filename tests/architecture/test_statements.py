"""The statement files: every statement is named, explained, and written one way."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_QUERIES = Path(__file__).parents[2] / "sql" / "queries"
_NAME = re.compile(r"-- name: ([a-z][a-z0-9_]*)$")
_PARAMETER = re.compile(r"\$\d+")
_SHOUTED = re.compile(r"\b(SELECT|FROM|WHERE|INSERT|UPDATE|DELETE|WITH|ORDER BY|LIMIT|RETURNING|JOIN|CASE|AND|OR)\b")


def statements() -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Every statement: where it stands, its name, the lines of its header, the lines of its text."""
    for path in sorted(_QUERIES.glob("*.sql")):
        blocks = re.split(r"^(?=-- name:)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for block in blocks[1:]:
            first, *lines = block.splitlines()
            header_length = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
            text = [line.split("--")[0].rstrip() for line in lines[header_length:]]
            named = _NAME.match(first)
            yield f"{path.name}: {first}", named[1] if named else "", lines[:header_length], [t for t in text if t]


def test_there_are_statements():
    """Checks over an empty list hold for the wrong reason."""
    assert len(list(statements())) > 0


def test_every_statement_has_a_name_of_its_own():
    """The store asks for statements by name."""
    names = Counter(name for _, name, _, _ in statements())

    assert [place for place, name, _, _ in statements() if not name] == []
    assert [name for name, count in names.items() if count > 1] == []


def test_nothing_stands_before_the_first_name():
    """A statement without a name would be shipped and never run."""
    stray = [
        f"{path.name}: {line}"
        for path in sorted(_QUERIES.glob("*.sql"))
        for line in path.read_text(encoding="utf-8").split("-- name:", 1)[0].splitlines()
        if line and not line.startswith("--")
    ]

    assert stray == []


def test_every_statement_says_what_it_promises():
    """The name alone says neither the lock order nor the index it relies on."""
    assert [place for place, _, header, _ in statements() if not header or header[0].strip() == "--"] == []


def test_every_parameter_is_explained():
    """A number has neither a type nor a unit."""
    unexplained = [
        f"{place}: {sorted(missing)}"
        for place, _, header, text in statements()
        if (missing := set(_PARAMETER.findall(" ".join(text))) - set(_PARAMETER.findall(" ".join(header))))
    ]

    assert unexplained == []


def test_every_block_is_one_statement():
    """One Execute message each is what the budgets count; a prepared statement can hold no more."""
    wrong = []
    for place, _, _, text in statements():
        body = re.sub(r"'[^']*'", "''", "\n".join(text))
        if body.count(";") != 1 or not body.endswith(";"):
            wrong.append(place)

    assert wrong == []


def test_columns_are_listed_and_keywords_are_quiet():
    """A star returns columns that a later migration adds; one style of writing is enough."""
    wrong = [
        f"{place}: {line}"
        for place, _, _, text in statements()
        for line in text
        if re.search(r"\bselect\s+(\w+\.)?\*|\breturning\s+(\w+\.)?\*", line) or _SHOUTED.search(line)
    ]

    assert wrong == []
