"""The shape of the code: sizes, names, and what may stand where."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]
_MODULE_LINES_MAX = 400
_FUNCTION_LINES_MAX = 60
_EMPTY_NAMES = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
_EMPTY_CLASS_NAME = re.compile(r"(Helper|Manager|Utils?)s?$")

# Where user code or third-party code is called, and nothing is known about what it may raise. Each place turns the
# error into an outcome or counts it; any other exception is a bug and must end the process.
_MAY_CATCH_EVERYTHING = {
    "gendurable/runtime/stepping.py",  # around user code: steps, error handlers and middleware
    "gendurable/runtime/flusher.py",  # around side effects of a commit, which can no longer change its answers
}

_SQL = re.compile(
    r"""\s*(
        select\b.*(\bfrom\b|\w\() | with\s+(recursive\s+)?\w+\s*(\([^)]*\)\s*)?as\b | insert\s+into\b
        | update\s+\S+(\s+as\s+\w+)?\s+set\b | delete\s+from\b | merge\s+into\b | truncate\s+\w | copy\s+\w+.*\bfrom\b
        | (create|alter|drop)\s+(or\s+replace\s+)?(unique\s+)?
          (database|extension|function|index|role|schema|sequence|table|trigger|type|view)\b
        | lock\s+table\b | savepoint\s+\w | set\s+(local|session)\s+\w | set_config\( | (listen|notify)\s+\w+\s*(,|;|$)
    )""",
    re.VERBOSE | re.DOTALL,
)


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package with its path from the top of the checkout."""
    for path in sorted((_CHECKOUT / "gendurable").rglob("*.py")):
        yield str(path.relative_to(_CHECKOUT)), ast.parse(path.read_text(encoding="utf-8"))


def docstrings(tree: ast.Module) -> set[int]:
    """The ids of the nodes that are docstrings, or texts below an attribute that are read as such."""
    return {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def looks_like_sql(text: str) -> bool:
    """Whether a text starts like a statement; prose starts with a capital, SQL is lower or upper case throughout."""
    first_word = text.split(maxsplit=1)[0] if text.split() else ""
    return (first_word.islower() or first_word.isupper()) and _SQL.match(text.lower()) is not None


def test_modules_are_short():
    """What does not fit on a few screens is two things."""
    lengths = {
        str(path.relative_to(_CHECKOUT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (_CHECKOUT / "gendurable").rglob("*.py")
    }

    assert {path: lines for path, lines in lengths.items() if lines > _MODULE_LINES_MAX} == {}


def test_functions_are_short():
    """A function that needs scrolling hides its own decisions."""
    long = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > _FUNCTION_LINES_MAX
    ]

    assert long == []


def test_nothing_has_a_name_that_says_nothing():
    """Everything ends up in a module called utils, and nobody finds it there."""
    files = [
        str(path.relative_to(_CHECKOUT))
        for path in (_CHECKOUT / "gendurable").rglob("*")
        if path.stem.strip("_") in _EMPTY_NAMES
    ]
    classes = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _EMPTY_CLASS_NAME.search(node.name)
    ]

    assert files + classes == []


def test_sql_stands_in_sql_files_only():
    """A statement that is put together in Python has no header, no test of its plan and no place in a review."""
    found = []
    for path, tree in modules():
        documentation = docstrings(tree)
        found += [
            f"{path}:{node.lineno} {node.value[:60]!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
            and looks_like_sql(node.value)
        ]

    assert found == []


@pytest.mark.parametrize(
    ("text", "is_sql"),
    [
        ("select id from gendurable.nodes", True),
        ("SELECT now()", True),
        ("\n    with mine as (select 1) update t set a = 1", True),
        ("update gendurable.queues as q set paused = true", True),
        ("drop schema gendurable cascade", True),
        ("set local lock_timeout = '1s'", True),
        ("Select a queue from the list", False),
        ("select the queues to serve", False),
        ("with mine, as agreed", False),
        ("update the database", False),
        ("set session", False),
        ("", False),
    ],
)
def test_the_search_for_sql_knows_it_from_prose(text, is_sql):
    """A check that finds nothing because it sees nothing would look the same."""
    assert looks_like_sql(text) is is_sql


def test_everything_is_caught_only_around_code_that_is_not_ours():
    """Any other exception in a loop is a bug, and a bug that is caught goes on corrupting."""
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {""}
            is_raised_on = isinstance(node.body[-1], ast.Raise)
            if caught & {"", "Exception", "BaseException"} and not is_raised_on and path not in _MAY_CATCH_EVERYTHING:
                found.append(f"{path}:{node.lineno}")

    assert found == []


def test_nothing_is_left_for_later():
    """A method that only says that it is missing is found by a user."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]

    assert found == []


def test_every_test_says_why_it_matters():
    """When it fails in a year, its docstring is all that the reader has."""
    silent = []
    for path in sorted((_CHECKOUT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        silent += [
            f"{path.relative_to(_CHECKOUT)}:{node.lineno} {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and ast.get_docstring(node) is None
        ]

    assert silent == []
