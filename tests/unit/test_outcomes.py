"""Outcomes: refused where they are made, so that the traceback points at the step."""

import dataclasses
import datetime as dt

import msgspec
import pytest

import gendurable as gd
from gendurable.errors import DefinitionError, InvalidValueError
from gendurable.model.outcome import UNSET


class Walk(gd.Machine[dict]):
    @gd.step
    async def first(self, _ctx: gd.Context[dict]) -> gd.Outcome:
        return gd.Done()

    @gd.step(name="other name")
    async def second(self, _ctx: gd.Context[dict]) -> gd.Outcome:
        return gd.Done()

    async def no_step(self) -> None:
        """Not decorated."""


AT = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gd.Next(""),
        lambda: gd.Next(Walk().no_step),
        lambda: gd.Next(7),
        lambda: gd.Next("a", delay=-1),
        lambda: gd.Next("a", delay="1s"),
        lambda: gd.Next("a", delay=True),
        lambda: gd.Next("a", delay=float("nan")),
        lambda: gd.Next("a", at=AT.replace(tzinfo=None)),
        lambda: gd.Next("a", at=AT.replace(year=1969)),
        lambda: gd.Next("a", at="2030"),
        lambda: gd.Next("a", at=AT, delay=1),
        lambda: gd.Next("a", concurrency_key=""),
        lambda: gd.Next("a", concurrency_key="k" * 513),
        lambda: gd.Next("a", concurrency_key=7),
        lambda: gd.Retry(delay=-0.001),
        lambda: gd.Retry(delay=dt.timedelta(days=-1)),
        lambda: gd.Retry(delay=101 * 366 * 86400),
        lambda: gd.Snooze(0),
        lambda: gd.Snooze(-5),
        lambda: gd.Snooze(0.0001),
        lambda: gd.Done(7),
        lambda: gd.Done([1]),
        lambda: gd.Done("text"),
        lambda: gd.Done(1.5),
        lambda: gd.Stop("a\0"),
        lambda: gd.Stop("\ud800"),
        lambda: gd.Stop("x" * 8193),
        lambda: gd.Stop(7),
        lambda: gd.Cancel("a\0"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_where_it_is_made(make):
    """E28: a wrong outcome that travelled to the flush would be an error nobody can place."""
    with pytest.raises(InvalidValueError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        gd.Next,
        lambda: gd.Next("a", weight=1),
        lambda: gd.Retry(1),
        gd.Snooze,
        gd.Stop,
        lambda: gd.Done(1, 2),
    ],
)
def test_an_option_that_does_not_exist_is_a_type_error(make):
    """E28, E33: Python says it best."""
    with pytest.raises(TypeError):
        make()


def test_steps_are_named_by_method_or_by_name():
    """A renamed method keeps the name its rows are stored under."""
    assert gd.Next(Walk().first).step == "first"
    assert gd.Next(Walk().second).step == "other name"
    assert gd.Next("first").step == "first"


def test_what_is_left_out_means_unchanged():
    """None for the key releases it, so leaving it out must be something else."""
    plain = gd.Next("a")

    assert (plain.state, plain.delay_ms, plain.at, plain.concurrency_key) == (None, None, None, UNSET)
    assert gd.Next("a", concurrency_key=None).concurrency_key is None
    assert gd.Next("a", delay=0).delay_ms == 0
    assert gd.Next("a", delay=dt.timedelta(milliseconds=1500)).delay_ms == 1500
    assert (gd.Retry().delay_ms, gd.Retry(delay=2).delay_ms, gd.Snooze(0.001).delay_ms) == (None, 2000, 1)


class Receipt(msgspec.Struct):
    amount: int = 1


@dataclasses.dataclass
class Ticket:
    seat: int = 1


@pytest.mark.parametrize("result", [None, {}, {"a": 1}, Receipt(), Ticket()])
def test_results_are_mappings_structs_dataclasses_or_nothing(result):
    """E28: whatever has named fields."""
    assert gd.Done(result).result is result


def test_cancel_is_both_an_answer_and_an_exception():
    """It may be returned by a step or raised from a depth."""
    assert isinstance(gd.Cancel(), gd.Outcome)
    assert isinstance(gd.Cancel(), Exception)
    assert (gd.Cancel().reason, gd.Cancel("why").reason, str(gd.Cancel("why"))) == ("cancelled", "why", "why")


def test_a_literal_target_that_does_not_exist_is_found_at_the_import():
    """A misspelt step would otherwise fail the first order that gets there."""
    with pytest.raises(DefinitionError, match="goes to step 'shipp', which does not exist; known: start"):

        class Misspelt(gd.Machine[dict]):
            @gd.step
            async def start(self, _ctx: gd.Context[dict]) -> gd.Outcome:
                return gd.Next("shipp")
