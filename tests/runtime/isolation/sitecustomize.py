"""Hides the machines of installed packages from a process under test: only those in its own folder are found."""

import importlib.metadata
from pathlib import Path
from typing import Any

_all = importlib.metadata.entry_points


def _own(**wanted: Any) -> Any:
    found = _all(**wanted)
    if wanted.get("group") != "gendurable.machines":
        return found
    here = Path.cwd()
    return [point for point in found if point.dist and Path(str(point.dist.locate_file(""))).resolve() == here]


importlib.metadata.entry_points = _own
