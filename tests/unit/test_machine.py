"""Declaring machines: mistakes show when the module is imported."""

import datetime as dt

import pytest

import gendurable as gd
from gendurable.errors import DefinitionError, InvalidValueError


class PayState(gd.State):
    amount: int
    note: str = ""


class Pay(gd.Machine[PayState], queue="pay", version=3, max_attempts=4):
    @gd.step
    async def start(self, _ctx: gd.Context[PayState]) -> gd.Outcome:
        return gd.Next(self.end)

    @gd.step(timeout=dt.timedelta(seconds=5), name="the end")
    def end(self, _ctx: gd.Context[PayState]) -> gd.Outcome:
        return gd.Done()


def test_a_declaration_becomes_a_definition():
    """What the engine runs is what the class says."""
    definition = Pay.definition

    assert (definition.name, definition.version, definition.queue, definition.initial) == ("Pay", 3, "pay", "start")
    assert list(definition.steps) == ["start", "the end"]
    assert [(step.is_async, step.timeout_s) for step in definition.steps.values()] == [(True, None), (False, 5.0)]
    assert (definition.max_attempts, definition.fields, definition.is_job) == (4, {"amount", "note"}, False)


def test_another_step_than_the_first_may_start():
    """The order of methods need not be the order of steps."""

    class Late(gd.Machine[dict]):
        @gd.step
        async def a(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done()

        @gd.step(initial=True)
        async def b(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done()

    assert Late.definition.initial == "b"


def test_steps_are_inherited_and_may_be_replaced():
    """A family of machines shares its steps."""

    class Refund(Pay, name="Refund"):
        @gd.step(name="the end")
        async def end(self, _ctx: gd.Context[PayState]) -> gd.Outcome:
            return gd.Done({"refunded": True})

    definition = Refund.definition
    assert (definition.name, definition.initial, list(definition.steps)) == ("Refund", "start", ["start", "the end"])
    assert definition.steps["the end"].is_async
    assert definition.decoder.target is PayState


def declare(**options):
    class Declared(gd.Machine[dict], **options):
        @gd.step
        async def only(self, _ctx: gd.Context[dict]) -> gd.Outcome:
            return gd.Done()

    return Declared


@pytest.mark.parametrize(
    "options",
    [
        {"retries": 3},
        {"version": 0},
        {"version": True},
        {"version": "1"},
        {"version": 2**31},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"queue": ""},
        {"name": "n" * 129},
        {"name": "a\0"},
    ],
)
def test_an_option_that_cannot_be_used_is_refused_at_the_definition(options):
    """E33: at the import, not at the first insert."""
    with pytest.raises((DefinitionError, InvalidValueError)):
        declare(**options)


def test_a_machine_needs_a_step():
    """It could never run."""
    with pytest.raises(DefinitionError, match="has no step"):

        class Empty(gd.Machine[dict]):
            pass


def test_two_initial_steps_are_refused():
    """Which one starts would depend on their order."""
    with pytest.raises(DefinitionError, match="2 initial steps"):

        class Two(gd.Machine[dict]):
            @gd.step(initial=True)
            async def a(self, _ctx: gd.Context[dict]) -> gd.Outcome:
                return gd.Done()

            @gd.step(initial=True)
            async def b(self, _ctx: gd.Context[dict]) -> gd.Outcome:
                return gd.Done()


def test_two_steps_of_one_name_are_refused():
    """Rows could not tell them apart."""
    with pytest.raises(DefinitionError, match="two steps called 'a'"):

        class Two(gd.Machine[dict]):
            @gd.step
            async def a(self, _ctx: gd.Context[dict]) -> gd.Outcome:
                return gd.Done()

            @gd.step(name="a")
            async def b(self, _ctx: gd.Context[dict]) -> gd.Outcome:
                return gd.Done()


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"timeout": "5s"}, {"name": "n" * 129}])
def test_a_step_option_that_cannot_be_used_is_refused(options):
    """E33: a step that could never finish in time is a mistake of the author."""
    with pytest.raises(InvalidValueError):

        @gd.step(**options)
        async def step(self, ctx):
            """Never declared."""


def test_only_methods_are_steps():
    """A decorated property or class would be called with the wrong arguments."""
    with pytest.raises(DefinitionError, match="decorates a method"):
        gd.step(7)


def test_attributes_of_a_machine_cannot_be_set():
    """One object serves every instance of the process: a value set on it would leak from one to the next."""
    with pytest.raises(AttributeError, match="return a new state"):
        Pay().total = 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "amount"),
        ({"amount": "many"}, r"\$\.amount"),
        ({"amount": 1, "colour": "red"}, "colour"),
        ({"amount": 1.5}, "amount"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_with_state(fields, message):
    """E33: at the insert, with the field's name."""
    with pytest.raises(InvalidValueError, match=message):
        Pay.with_state(**fields)


def test_a_state_may_be_given_whole_or_by_fields():
    """Both are the same row."""
    assert Pay.with_state(PayState(amount=1, note="x")).state == Pay.with_state(amount=1, note="x").state
    assert Pay.with_state({"amount": 1}).state == '{"amount":1,"note":""}'
    with pytest.raises(InvalidValueError, match="not both"):
        Pay.with_state(PayState(amount=1), note="x")
    with pytest.raises(InvalidValueError):
        Pay.with_state(7)


def test_a_state_is_frozen_and_replaced():
    """A step that changed its state in place would believe that it was stored."""
    state = PayState(amount=1)

    assert state.replace(note="x") == PayState(amount=1, note="x")
    with pytest.raises(AttributeError):
        state.amount = 2
