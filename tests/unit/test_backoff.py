"""Waiting longer after each failure, and the clock that does the waiting."""

import asyncio
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gendurable.backoff import ReconnectBackoff, exponential_backoff_s, jittered_s
from gendurable.clock import SystemClock


@pytest.mark.parametrize(("attempt", "expected_s"), [(0, 1), (1, 2), (3, 8), (8, 256), (9, 300), (20, 300)])
def test_the_wait_doubles_up_to_five_minutes(attempt, expected_s):
    """The documented series, before jitter."""
    assert exponential_backoff_s(attempt, rng=Random(1), jitter=(1, 1)) == expected_s


@given(st.integers(min_value=0, max_value=10**12), st.integers())
def test_jitter_stays_within_a_fifth_and_no_attempt_overflows(attempt, seed):
    """max_attempts may be large, and a float power would overflow after 1,023."""
    wait_s = exponential_backoff_s(attempt, rng=Random(seed))

    unjittered_s = min(2.0 ** min(attempt, 20), 300)
    assert 0.8 * unjittered_s <= wait_s <= 1.2 * unjittered_s


def test_the_series_can_be_scaled():
    """A machine may want to try again sooner, or wait longer."""
    waits = [exponential_backoff_s(n, base_s=0.5, max_s=3, jitter=(1, 1), rng=Random(1)) for n in range(5)]

    assert waits == [0.5, 1, 2, 3, 3]


def test_the_same_chance_gives_the_same_wait():
    """Chance comes from the generator that is handed in, so a test can repeat a run."""
    assert exponential_backoff_s(4, rng=Random(7)) == exponential_backoff_s(4, rng=Random(7))
    assert exponential_backoff_s(4, rng=Random(7)) != exponential_backoff_s(4, rng=Random(8))


@given(st.floats(min_value=0, max_value=1e6), st.integers())
def test_an_interval_is_jittered_both_ways_within_its_spread(interval_s, seed):
    """Processes that started together do not stay in step."""
    wait_s = jittered_s(interval_s, Random(seed), spread=0.1)

    slack = 1e-9 * interval_s
    assert 0.9 * interval_s - slack <= wait_s <= 1.1 * interval_s + slack


def test_jitter_reaches_both_sides():
    """A jitter that only lengthens would slow every loop down."""
    rng = Random(3)
    waits = [jittered_s(1.0, rng) for _ in range(200)]

    assert min(waits) < 0.85
    assert max(waits) > 1.15


def test_reconnecting_starts_fast_grows_to_five_seconds_and_starts_over_after_a_success():
    """A short outage costs little, a long one does not hammer the database."""
    backoff = ReconnectBackoff(Random(1), spread=0)
    waits = [backoff.next_s() for _ in range(8)]
    failures = backoff.failures
    backoff.reset()

    assert [round(wait, 6) for wait in waits] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert failures == 8
    assert backoff.failures == 0
    assert math.isclose(backoff.next_s(), 0.1)


def test_an_endless_outage_does_not_overflow():
    """A loop may fail for weeks."""
    backoff = ReconnectBackoff(Random(1))
    backoff.failures = 10**9

    assert 4 <= backoff.next_s() <= 6


async def test_a_sleep_of_nothing_lets_other_tasks_run():
    """A loop whose next pass is overdue must not starve the others."""
    clock = SystemClock()
    seen: list[str] = []
    task = asyncio.get_running_loop().create_task(_note(seen))
    await clock.sleep(-1)
    await task

    assert seen == ["ran"]
    assert clock.monotonic() <= clock.monotonic()
    assert clock.time() > 1_700_000_000


async def _note(seen: list[str]) -> None:
    await asyncio.sleep(0)
    seen.append("ran")
