"""Finding machines: by entry point and by module, with every problem told at once."""

import importlib.metadata
import sys

import pytest

from gendurable.errors import DiscoveryError
from gendurable.machine import discovery

GOOD = """
import gendurable as gd

@gd.job()
async def {name}(ctx): ...

@gd.middleware
async def wrap(ctx, call_next):
    return await call_next(ctx)

class Order(gd.Machine[dict], version=2):
    @gd.step
    async def only(self, ctx):
        return gd.Done()

value = 7
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes modules that can be imported during one test, and entry points that lead to them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    points: list[importlib.metadata.EntryPoint] = []
    monkeypatch.setattr(discovery, "entry_points", lambda group: points if group == "gendurable.machines" else [])

    def make(module: str, source: str, **entries: str) -> None:
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        points.extend(
            importlib.metadata.EntryPoint(name.replace("__", "@"), f"{module}:{value}", "gendurable.machines")
            for name, value in entries.items()
        )

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_machines_are_found_through_entry_points_with_their_middleware(package):
    """Installing a package is all that is needed."""
    package("shop_good", GOOD.format(name="ship"), ship="ship", Order="Order")
    registry = discovery.discover()

    assert [(one.name, one.version) for one in registry.definitions()] == [("Order", 2), ("ship", 1)]
    assert len(registry.middleware) == 1


def test_an_entry_may_name_the_version(package):
    """Two versions need two entries, and entry names are unique."""
    package("shop_version", GOOD.format(name="ship"), Order__2="Order")

    assert [(one.name, one.version) for one in discovery.discover().definitions()] == [("Order", 2)]


def test_modules_are_imported_by_name_for_development(package):
    """Everything a module defines, without packaging it."""
    package("shop_dev", GOOD.format(name="ship"))
    registry = discovery.discover(["shop_dev"], use_entry_points=False)

    assert [one.name for one in registry.definitions()] == ["Order", "ship"]


def test_every_problem_is_listed_with_its_package(package):
    """One run shows everything there is to mend; a broken package must not be skipped in silence."""
    package("shop_broken", "raise ZeroDivisionError('in the module')", ship="ship")
    package("shop_value", GOOD.format(name="give"), number="value", wrong="give")
    package("shop_missing", GOOD.format(name="take"), absent="absent")

    with pytest.raises(DiscoveryError) as refused:
        discovery.discover(["no_such_module", "shop_broken"])

    text = "\n".join(refused.value.problems)
    assert len(refused.value.problems) == 6
    for part in (
        "entry point ship = shop_broken:ship: it cannot be imported: ZeroDivisionError: in the module",
        "entry point number = shop_value:value: it leads to 7",
        "the entry point is called 'wrong' but the machine 'give'",
        "entry point absent = shop_missing:absent: it cannot be imported: AttributeError",
        "--import no_such_module: it cannot be imported: ModuleNotFoundError",
        "--import shop_broken: it cannot be imported: ZeroDivisionError",
    ):
        assert part in text


def test_a_machine_of_two_packages_is_a_problem_of_the_second(package):
    """Which of the two runs a row must not depend on the order of the alphabet."""
    package("shop_one", GOOD.format(name="ship"), ship="ship")
    package("shop_two", GOOD.format(name="ship"), ship="ship")

    with pytest.raises(DiscoveryError, match=r"shop_two:ship: .*registered twice: by shop_one"):
        discovery.discover()


def test_without_entry_points_there_is_nothing():
    """No guess is made about what might be a machine."""
    assert list(discovery.discover(use_entry_points=False).definitions()) == []
