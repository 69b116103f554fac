"""Machines this process does not know: how long it leaves their rows alone."""

from random import Random

import pytest

from gendurable.runtime.unresolved import DELAY_MAX_S, FORGET_S, SKIP_S, UnresolvedMachines


def test_a_pair_is_skipped_for_half_a_minute():
    """L16: then it is looked at again, because a deploy may have brought it."""
    unresolved = UnresolvedMachines(Random(1))
    unresolved.note("Pay", 2, 100.0)

    assert unresolved.pairs(100.0 + SKIP_S - 0.1) == ["Pay@2"]
    assert unresolved.pairs(100.0 + SKIP_S) == []
    assert unresolved.pairs(100.0) == ["Pay@2"]


def test_the_delay_doubles_to_a_minute_with_jitter():
    """Rows nobody can run must not circle at full speed, nor all come back at once."""
    unresolved = UnresolvedMachines(Random(1))
    delays = [unresolved.note("Pay", 2, 100.0 * n)[0] / 1000 for n in range(1, 12)]

    for n, delay_s in enumerate(delays):
        expected = min(DELAY_MAX_S, 2.0**n)
        assert 0.8 * expected <= delay_s <= 1.2 * expected


def test_rows_of_one_claim_count_as_one_failure():
    """Five hundred rows of one claim are one observation, or the first claim would reach the minute."""
    unresolved = UnresolvedMachines(Random(1))
    delays = [unresolved.note("Pay", 2, 100.0 + n / 1000)[0] for n in range(400)]

    assert max(delays) <= 1200


def test_one_event_for_each_pair_and_minute():
    """A log full of the same line hides the others."""
    unresolved = UnresolvedMachines(Random(1))
    news = [unresolved.note("Pay", 2, 100.0 + n)[1] for n in range(130)]

    assert [n for n, is_news in enumerate(news) if is_news] == [0, 60, 120]
    assert unresolved.note("Pay", 3, 100.0)[1]


def test_an_unknown_step_is_noted_apart_and_its_machine_is_not_skipped():
    """During a deploy the older workers still run its other steps; skipping it would leave all of them to the newer."""
    unresolved = UnresolvedMachines(Random(1))
    _, is_news = unresolved.note("Pay", 2, 100.0, step="new")

    assert (is_news, unresolved.pairs(100.0)) == (True, [])
    assert not unresolved.note("Pay", 2, 101.0, step="new")[1]
    assert unresolved.note("Pay", 2, 101.0, step="newer")[1]
    assert unresolved.note("Pay", 2, 101.0)[1]
    assert unresolved.pairs(101.0) == ["Pay@2"]


@pytest.mark.parametrize(("after_s", "delay_s"), [(0, 1), (30, 1), (300, 10), (1800, 60), (7200, 60)])
def test_rows_at_an_unknown_step_wait_longer_the_longer_it_is_unknown(after_s, delay_s):
    """Each older worker that claims such a row during a deploy costs it the delay, so meetings must not double it."""
    unresolved = UnresolvedMachines(Random(1))
    for second in range(after_s):
        unresolved.note("Pay", 2, 100.0 + second, step="new")

    assert 0.8 * delay_s <= unresolved.note("Pay", 2, 100.0 + after_s, step="new")[0] / 1000 <= 1.2 * delay_s


@pytest.mark.parametrize("step", [None, "new"])
def test_unknown_again_much_later_is_another_deploy(step):
    """Its rows begin with the shortest delay, whatever the one before had come to."""
    unresolved = UnresolvedMachines(Random(1))
    for second in range(2000):
        unresolved.note("Pay", 2, 100.0 + second, step=step)

    assert unresolved.note("Pay", 2, 2099.0 + FORGET_S + 1, step=step)[0] <= 1200
