"""Where the next claim starts its scan, decided without a database."""

import datetime as dt

from gendurable.runtime.scanning import FULL_SCAN_CLAIMS, ScanHint
from gendurable.store.claims import SCAN_START, ScanPosition

FAR = ScanPosition(priority=0, eligible_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), id=500)


def reached(now_s: float = 10.0) -> ScanHint:
    """A hint after one full scan that took 10 ms and brought a full batch."""
    hint = ScanHint()
    assert hint.begin(now_s)
    hint.full_scan_took(0.01, now_s)
    hint.reached(FAR)
    return hint


def test_a_full_batch_lets_the_next_claim_start_behind_it():
    """Dead entries of a drained backlog need not be walked by every claim."""
    hint = reached()

    assert not hint.begin(10.01)
    assert hint.position == FAR


def test_a_row_announced_while_a_claim_ran_keeps_the_next_one_at_the_beginning():
    """The announced row may lie before the position that the claim has just learnt."""
    hint = reached()

    hint.begin(10.01)
    hint.drop()
    hint.reached(FAR)

    assert hint.position is SCAN_START


def test_the_beginning_is_looked_at_after_a_tenth_of_a_second():
    """Rows that nobody announced are found at a pace of their own."""
    hint = reached()

    assert hint.begin(10.11)
    assert hint.position is SCAN_START


def test_the_beginning_is_looked_at_by_every_twentieth_claim():
    """Also when claims are so fast that no time passes."""
    hint = reached()

    full = [hint.begin(10.01) for _ in range(FULL_SCAN_CLAIMS)]

    assert full == [False] * (FULL_SCAN_CLAIMS - 1) + [True]


def test_a_slow_full_scan_is_followed_by_a_longer_pause():
    """Under a held snapshot a look at the beginning takes long, and must not become every second claim."""
    hint = ScanHint()
    hint.begin(10.0)
    hint.full_scan_took(0.1, 10.1)
    hint.reached(FAR)

    assert not hint.begin(10.3)
    assert hint.begin(10.41)
