"""Which of the rows that may kill their process runs now, and how long the others wait."""

from random import Random

import pytest

from gendurable.runtime.reaper import first_due_s
from gendurable.runtime.suspects import TURN_S, WAIT_MAX_S, WAIT_MIN_S, SuspectPlace, suspect_waits_s
from gendurable.store.leases import Reaped
from tests.unit.test_deciding import claim


def test_one_runs_and_the_others_come_back_one_after_the_other():
    """Were they due together, each round would claim them all and hand all but one back."""
    assert suspect_waits_s(4, taken_for_s=None) == [None, TURN_S, 2 * TURN_S, 3 * TURN_S]
    assert suspect_waits_s(1, taken_for_s=None) == [None]
    assert suspect_waits_s(0, taken_for_s=None) == []


@pytest.mark.parametrize(
    ("taken_for_s", "first_s"), [(0.0, WAIT_MIN_S), (0.1, WAIT_MIN_S), (2.0, 2.0), (9.0, 9.0), (3600.0, WAIT_MAX_S)]
)
def test_while_the_place_is_taken_they_wait_as_long_again(taken_for_s, first_s):
    """A step of an hour must not circle its neighbours at full speed, nor keep them from other processes."""
    waits_s = suspect_waits_s(300, taken_for_s=taken_for_s)

    assert waits_s[0] == first_s
    assert waits_s[1] == min(WAIT_MAX_S, first_s + TURN_S)
    assert max(waits_s) == WAIT_MAX_S


def test_a_place_is_held_from_the_choice_until_it_is_left():
    """Whatever the queue: two suspects in one process would count each other's crash."""
    place = SuspectPlace(Random(1))
    first, second, third = (claim(id=n, crashes=2) for n in (1, 2, 3))

    chosen, refused = place.share_out([first, second], 100.0)
    assert chosen is first
    assert [one for one, _ in refused] == [second]
    assert 0.8 * TURN_S <= refused[0][1] <= 1.2 * TURN_S
    chosen, refused = place.share_out([third], 104.0)
    assert (chosen, [one for one, _ in refused]) == (None, [third])
    assert 0.8 * 4 <= refused[0][1] <= 1.2 * 4
    place.leave(third)
    assert place.holder is first
    place.leave(first)
    assert place.share_out([third], 105.0) == (third, [])


def test_a_claim_of_the_same_row_does_not_free_the_place_of_a_later_one():
    """A late answer about a claim that was lost must not let a second suspect in."""
    place = SuspectPlace(Random(1))
    old, new = claim(id=1, claim=3, crashes=2), claim(id=1, claim=5, crashes=3)
    place.share_out([new], 0.0)

    place.leave(old)

    assert place.holder is new


def test_the_poke_after_a_reap_names_the_first_row_that_may_run():
    """L25: a poke for now would claim nothing, and none would leave the row to the poll."""

    def reaped(queue, status, due_in_s):
        return Reaped(
            id=1, queue=queue, status=status, concurrency_key=None, worker="gone", machine="M", step="s", crashes=2,
            due_in_s=due_in_s,
        )  # fmt: skip

    rows = [reaped("a", "runnable", 3.0), reaped("a", "runnable", 1.5), reaped("a", "failed", 0.0)]
    assert first_due_s([*rows, reaped("b", "runnable", 0.0), reaped("c", "failed", 0.0)]) == {"a": 1.5, "b": 0.0}
