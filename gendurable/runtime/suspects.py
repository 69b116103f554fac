"""Rows whose present step has outlived several processes: they run one at a time, so that a crash names its culprit.

A process that dies counts a crash for everything it held, because nobody can tell afterwards which step killed it. So
a poisonous step would take its neighbours along to ``max_crashes``. From the second crash on a row is a suspect, and a
process holds one suspect at a time, from before its step starts until its outcome is durable. Innocent ones pass this
one by one and are done; the culprit is alone among suspects whenever it strikes.

    claim:  A B C are suspects, nobody has the place
    picker: hands B and C back ... their release is committed ... starts A
    A:                                                            kills the process: A alone counts a crash

The rows beside it that are no suspects yet count one as well, at most until they are suspects themselves.
"""

from collections.abc import Sequence
from random import Random

from gendurable.backoff import jittered_s
from gendurable.model.claim import Claim

SUSPECT_CRASHES = 2
"""One crash is a deploy that went wrong or a machine that was lost; a row that was there twice may be the reason."""
TURN_S = 0.05
"""Those that come together come back one after the other, about when the ones before them are done."""
WAIT_MIN_S = 0.25
WAIT_MAX_S = 10.0
"""A step may hold the place for an hour; so often the others are offered to the rest of the fleet meanwhile."""


def suspect_waits_s(count: int, *, taken_for_s: float | None) -> list[float | None]:
    """How long each suspect of a claim must wait; None for the one that runs now.

    Args:
        count: Suspects of the claim, in batch order.
        taken_for_s: Seconds for which another suspect has had the place; None when it is free. They wait as long again,
            so that a row meets a long step only a few times, and is never away for longer than it has to wait anyway.
    """
    if taken_for_s is None:
        return [None if place == 0 else min(WAIT_MAX_S, place * TURN_S) for place in range(count)]
    first_s = max(WAIT_MIN_S, taken_for_s)
    return [min(WAIT_MAX_S, first_s + place * TURN_S) for place in range(count)]


class SuspectPlace:
    """The one place for suspects in this process, whatever their queues."""

    def __init__(self, rng: Random) -> None:
        """The place is free."""
        self._rng = rng
        self._holder: Claim | None = None
        self._since_s = 0.0

    @property
    def holder(self) -> Claim | None:
        """The suspect that runs, or is about to."""
        return self._holder

    def share_out(self, claims: Sequence[Claim], now_s: float) -> tuple[Claim | None, list[tuple[Claim, float]]]:
        """Give the place to one of these suspects if it is free.

        Returns:
            The one that has the place now, if any, and the others with the seconds for which to hand them back.
        """
        taken_for_s = None if self._holder is None else now_s - self._since_s
        chosen, refused = None, []
        for claim, wait_s in zip(claims, suspect_waits_s(len(claims), taken_for_s=taken_for_s), strict=True):
            if wait_s is None:
                chosen = claim
            else:
                refused.append((claim, jittered_s(wait_s, self._rng)))
        if chosen is not None:
            self._holder, self._since_s = chosen, now_s
        return chosen, refused

    def leave(self, claim: Claim) -> None:
        """Free the place if this claim has it."""
        if self._holder is claim:
            self._holder = None
