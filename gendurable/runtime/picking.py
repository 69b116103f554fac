"""How many rows to claim and when: plain arithmetic, without a database or a clock."""

from dataclasses import dataclass

PREFETCH_HORIZON_S = 0.1
"""Prefetched rows should be worth about this much work: enough to hide a claim, too little to hoard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Appetite:
    """What a queue may take in this process.

    Attributes:
        concurrency: Steps that may run at once.
        prefetch: Rows that may wait here beyond the running ones.
        min_demand: Free places worth a claim while work is in hand.
        claim_max: Rows of one claim.
    """

    concurrency: int
    prefetch: int
    min_demand: int
    claim_max: int


def prefetch_rows(*, finished_per_s: float, prefetch: int | None, prefetch_max: int) -> int:
    """Rows to keep waiting: the configured number, or what a horizon of work takes at the present pace."""
    if prefetch is not None:
        return prefetch
    return min(prefetch_max, int(finished_per_s * PREFETCH_HORIZON_S))


def room_worth_a_claim(appetite: Appetite) -> int:
    """Free places from which on a claim is worth its statement.

    Half a prefetch, because below that rows still wait here and there is no hurry; a tenth of the slots at least, so
    that a stream of single steps does not cost a claim each. When nothing waits, the whole prefetch is free, so slots
    that run dry always reach it.
    """
    return max(1, min(max(appetite.min_demand, appetite.prefetch // 2), appetite.concurrency + appetite.prefetch))


def room_for_claims(*, appetite: Appetite, in_hand: int, unflushed: int, unflushed_max: int) -> int:
    """Rows that could be taken now; 0 while too many outcomes wait to become durable.

    Args:
        appetite: The queue's limits.
        in_hand: Steps that run (threads that outlived theirs included) and rows that wait for a slot.
        unflushed: Outcomes of this queue that are not durable yet.
        unflushed_max: Back-pressure: from here on nothing is claimed until the flusher has caught up.
    """
    if unflushed >= unflushed_max:
        return 0
    return max(0, min(appetite.concurrency + appetite.prefetch - in_hand, appetite.claim_max))


class Pace:
    """How many steps a queue finishes per second, smoothed; feeds the adaptive prefetch."""

    def __init__(self, *, half_life_s: float = 0.5) -> None:
        """Start at zero, so that an idle process hoards nothing."""
        self._half_life_s = half_life_s
        self._finished = 0
        self._since_s: float | None = None
        self.per_s = 0.0

    def finished(self) -> None:
        """Count one step."""
        self._finished += 1

    def update(self, now_s: float) -> float:
        """Fold what was counted since the last call into the pace and return it."""
        if self._since_s is None:
            self._since_s = now_s
            return self.per_s
        elapsed_s = now_s - self._since_s
        if elapsed_s < 0.005:
            return self.per_s
        weight = 1 - 0.5 ** (elapsed_s / self._half_life_s) if self.per_s else 1.0
        self.per_s += weight * (self._finished / elapsed_s - self.per_s)
        self._finished = 0
        self._since_s = now_s
        return self.per_s
