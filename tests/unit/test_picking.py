"""How many rows to claim and when: arithmetic."""

import itertools

import pytest

from gendurable.runtime.picking import Appetite, Pace, prefetch_rows, room_for_claims, room_worth_a_claim
from gendurable.settings import QueueSettings


def appetite(**changes: int) -> Appetite:
    return Appetite(**({"concurrency": 10, "prefetch": 0, "min_demand": 1, "claim_max": 500} | changes))


@pytest.mark.parametrize(
    ("concurrency", "min_demand", "effective"),
    [(100, None, 10), (5, None, 1), (2, 10, 2), (1, 1, 1), (10, 3, 3), (9, None, 1), (1000, 5000, 1000)],
)
def test_min_demand_is_clamped_to_the_slots(concurrency, min_demand, effective):
    """E10: a demand beyond the slots could never be met, and the queue would stand still."""
    assert QueueSettings(concurrency=concurrency, min_demand=min_demand).min_demand_rows == effective


@pytest.mark.parametrize(
    ("in_hand", "unflushed", "room"),
    [(0, 0, 15), (10, 0, 5), (15, 0, 0), (20, 0, 0), (0, 99, 15), (0, 100, 0)],
)
def test_the_room_is_what_slots_and_prefetch_leave(in_hand, unflushed, room):
    """Never negative, and nothing while the flusher is behind."""
    wanted = appetite(prefetch=5)
    assert room_for_claims(appetite=wanted, in_hand=in_hand, unflushed=unflushed, unflushed_max=100) == room


def test_a_claim_has_a_maximum():
    """A statement of any size would hold its locks for any time."""
    assert room_for_claims(appetite=appetite(concurrency=5000), in_hand=0, unflushed=0, unflushed_max=1) == 500


def test_slots_that_run_dry_are_always_worth_a_claim():
    """Whatever the settings: with nothing in hand the room reaches the threshold, or the queue would stand still."""
    for concurrency, prefetch, demand in itertools.product((1, 2, 7, 100), (0, 1, 5, 400), (1, 10, 1000)):
        wanted = appetite(concurrency=concurrency, prefetch=prefetch, min_demand=demand)
        room = room_for_claims(appetite=wanted, in_hand=0, unflushed=0, unflushed_max=1)
        assert room >= min(room_worth_a_claim(wanted), wanted.claim_max)
        assert room_worth_a_claim(wanted) >= 1


@pytest.mark.parametrize(
    ("finished_per_s", "prefetch", "rows"), [(0, None, 0), (100, None, 10), (1e6, None, 400), (1e6, 7, 7), (0, 7, 7)]
)
def test_the_prefetch_is_a_tenth_of_a_second_of_work(finished_per_s, prefetch, rows):
    """Enough to hide a claim, too little to hoard; a configured number stands."""
    assert prefetch_rows(finished_per_s=finished_per_s, prefetch=prefetch, prefetch_max=400) == rows


def test_the_pace_follows_what_is_finished():
    """It rises at once from nothing and halves within its half-life when work stops."""
    pace = Pace(half_life_s=0.5)
    pace.update(0.0)
    for _ in range(100):
        pace.finished()
    assert pace.update(0.1) == pytest.approx(1000)
    assert pace.update(0.102) == pytest.approx(1000)
    assert pace.update(0.6) == pytest.approx(500)
    assert pace.update(10.6) < 1
