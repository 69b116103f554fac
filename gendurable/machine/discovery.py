"""Finds machines: through the entry-point group ``gendurable.machines``, or by module name for development."""

import importlib
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gendurable.errors import DiscoveryError
from gendurable.machine.jobs import Job
from gendurable.machine.registry import Lifespan, Middleware, Registry, is_machine

GROUP = "gendurable.machines"


def discover(imports: Iterable[str] = (), *, use_entry_points: bool = True) -> Registry:
    """Import every machine package of this environment.

    Args:
        imports: Modules to import as well; everything they define is registered.
        use_entry_points: False to take only ``imports``.

    Raises:
        DiscoveryError: A package is broken or doubled; all problems are listed, each with its package.
    """
    registry = Registry()
    problems: list[str] = []
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)) if use_entry_points else []
    for point in points:
        try:
            _add_entry_point(registry, point)
        except DiscoveryError as error:
            problems.extend(f"{_package(point)}: {problem}" for problem in error.problems)
    for name in imports:
        try:
            registry.add_module(_import(name))
        except DiscoveryError as error:
            problems.extend(f"--import {name}: {problem}" for problem in error.problems)
    if problems:
        raise DiscoveryError(problems)
    return registry


def _package(point: EntryPoint) -> str:
    owner = point.dist.name if point.dist is not None else "an unknown package"
    return f"package {owner}, entry point {point.name} = {point.value}"


def _add_entry_point(registry: Registry, point: EntryPoint) -> None:
    item = _load(point)
    if isinstance(item, (Lifespan, Middleware)):
        registry.add(item)
        return
    if not (isinstance(item, Job) or is_machine(item)):
        raise DiscoveryError(f"it leads to {item!r}, which is not a machine, a job, a lifespan or a middleware")
    definition = item.definition
    if point.name not in {definition.name, f"{definition.name}@{definition.version}"}:
        raise DiscoveryError(
            f"the entry point is called {point.name!r} but the machine {definition.name!r}; the two must be equal,"
            " because rows are stored under that name"
        )
    registry.add(item)
    module = sys.modules[item.function.__module__ if isinstance(item, Job) else item.__module__]
    for value in list(vars(module).values()):
        if isinstance(value, (Lifespan, Middleware)):
            registry.add(value)


def _load(point: EntryPoint) -> Any:
    """Import what an entry point names; whatever its module raises is the package's fault, not ours."""
    try:
        return point.load()
    except Exception as error:
        raise DiscoveryError(f"it cannot be imported: {type(error).__name__}: {error}") from error


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise DiscoveryError(f"it cannot be imported: {type(error).__name__}: {error}") from error
