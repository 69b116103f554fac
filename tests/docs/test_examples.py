"""Every example of the documentation runs, and passes the same type checks as the product."""

import asyncio
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gendurable as gd
from gendurable.settings import Secret, Settings
from gendurable.wiring import build_engine
from tests.docs.examples import PAGES, ROOT, examples_of, write_all


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest):
    """The examples of one page, written as modules and imported in order."""
    examples = examples_of(request.param)
    write_all(examples, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = [importlib.import_module(example.module) for example in examples]
    yield modules
    for module in modules:
        sys.modules.pop(module.__name__, None)


def _functions(modules: list[ModuleType]):
    for module in modules:
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                yield name, function


def test_there_are_examples_in_every_guide():
    """A pattern that finds nothing would make the tests below pass for ever."""
    assert all(examples_of(page) for page in PAGES if page.stem != "operations")


@pytest.mark.parametrize("imported", PAGES, indirect=True, ids=lambda page: page.stem)
async def test_the_examples_of_a_page_run(imported, dsn):
    """A newcomer copies them: they are run here as they stand, on a real worker."""
    registry = gd.Registry()
    for module in imported:
        registry.add_module(module)
    ran = 0
    async with build_engine(Settings(dsn=Secret(dsn)), registry).running() as engine:
        for name, function in _functions(imported):
            parameters = list(inspect.signature(function).parameters)
            known = {"client": engine.client, "dsn": dsn, "name": "dora"}
            if inspect.iscoroutinefunction(function) and parameters and set(parameters) <= known.keys():
                await asyncio.wait_for(function(*(known[parameter] for parameter in parameters)), 30)
                ran += 1
            elif name == "main" or name.startswith("test_"):
                await asyncio.to_thread(function)
                ran += 1

    assert ran > 0 or not imported


def test_the_examples_pass_the_type_checks_of_the_product(tmp_path):
    """People copy the annotations too."""
    for page in PAGES:
        write_all(examples_of(page), tmp_path)

    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(ROOT / "pyproject.toml"),
            "--no-error-summary",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert checked.stdout == ""
    assert checked.returncode == 0, checked.stderr
