"""The registry: one definition for each name and version."""

import sys
import types

import pytest

import gendurable as gd
from gendurable.errors import DiscoveryError


def job(name: str = "work", *, version: int = 1, queue: str = "default", where: str = "here") -> gd.Job:
    async def function(_ctx: gd.Context) -> None:
        """Do nothing."""

    function.__qualname__ = where
    return gd.job(name=name, version=version, queue=queue)(function)


def test_versions_of_one_name_live_side_by_side():
    """A deploy needs both."""
    one, two = job(version=1), job(version=2)
    registry = gd.Registry([two, one])

    assert registry.find("work", 1) is one.definition
    assert registry.find("work", 2) is two.definition
    assert registry.find("work", 3) is None
    assert registry.find("other", 1) is None
    assert list(registry.definitions()) == [one.definition, two.definition]


def test_a_name_and_version_twice_is_refused_with_both_places():
    """One would silently win, depending on the order of imports."""
    with pytest.raises(DiscoveryError, match=r"registered twice: by .*here and by .*there"):
        gd.Registry([job(where="here"), job(where="there")])


def test_the_same_twice_is_fine():
    """An entry point and --import may name the same module."""
    one = job()

    assert len(list(gd.Registry([one, one]).definitions())) == 1


@pytest.mark.parametrize("item", [7, "work", object(), gd.Machine, lambda: None])
def test_anything_else_is_refused(item):
    """A function that was not decorated is the usual mistake."""
    with pytest.raises(DiscoveryError, match="is not a machine"):
        gd.Registry([item])


def test_the_queues_are_those_of_the_machines_and_default():
    """A worker serves what it has loaded, unless told."""
    assert gd.Registry([job(queue="b"), job("other", queue="a")]).queues() == ["a", "b", "default"]
    assert gd.Registry().queues() == ["default"]


def test_a_module_registers_what_it_defines_and_not_what_it_imports():
    """An import of another package's job must not make this worker run it."""
    module = types.ModuleType("somewhere")
    sys.modules["somewhere"] = module
    exec(
        "import gendurable as gd\n"
        "@gd.job()\nasync def mine(ctx): ...\n"
        "@gd.middleware\nasync def wrap(ctx, call_next): return await call_next(ctx)\n"
        "@gd.lifespan\nasync def open_it():\n    yield {}\n"
        "class Mine(gd.Machine[dict]):\n    @gd.step\n    async def only(self, ctx): return gd.Done()\n",
        vars(module),
    )
    module.borrowed = job("borrowed")
    registry = gd.Registry()
    try:
        registry.add_module(module)
    finally:
        del sys.modules["somewhere"]

    assert [definition.name for definition in registry.definitions()] == ["Mine", "mine"]
    assert len(registry.middleware) == 1
