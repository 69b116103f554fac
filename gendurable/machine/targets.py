"""Finds the literal targets of outcomes in a machine's source, so that a misspelt step fails at import."""

import ast
import inspect
import textwrap
from collections.abc import Iterator

_NAMES = frozenset({"Next", "WaitFor", "ScheduleChildren"})
_KEYWORDS = frozenset({"step", "then"})


def literal_targets(cls: type) -> Iterator[tuple[str, str]]:
    """Yield (method, target) for every ``Next("x")`` and ``then="x"`` written literally; nothing without source."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError, SystemError):
        # The last one is CPython's when a finaliser that parses as well runs in between; this check is a courtesy.
        return
    body = tree.body[0]
    if not isinstance(body, ast.ClassDef):
        return
    for method in body.body:
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for call in ast.walk(method):
                if isinstance(call, ast.Call) and _called_name(call) in _NAMES:
                    yield from ((method.name, target) for target in _literals(call))


def _called_name(call: ast.Call) -> str:
    """The last part of what is called: ``Next`` for both ``Next()`` and ``gd.Next()``."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _literals(call: ast.Call) -> Iterator[str]:
    candidates: list[ast.expr] = [keyword.value for keyword in call.keywords if keyword.arg in _KEYWORDS]
    if call.args and _called_name(call) == "Next":
        candidates.append(call.args[0])
    for candidate in candidates:
        if isinstance(candidate, ast.Constant) and isinstance(candidate.value, str):
            yield candidate.value
