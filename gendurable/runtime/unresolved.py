"""Machines this process does not know: how long it leaves their rows alone [L16]."""

from random import Random

SKIP_S = 30.0
DELAY_FIRST_S = 1.0
DELAY_MAX_S = 60.0
EVENT_INTERVAL_S = 60.0


class UnresolvedMachines:
    """The (machine, version) pairs that failed to resolve lately."""

    def __init__(self, rng: Random) -> None:
        """Everything is thought to be known."""
        self._rng = rng
        self._seen: dict[tuple[str, int], list[float]] = {}

    def pairs(self, now_s: float) -> list[str]:
        """``machine@version`` of the pairs that failed within the last half minute, for the claim to skip."""
        return [f"{name}@{version}" for (name, version), (at_s, _, _) in self._seen.items() if now_s - at_s < SKIP_S]

    def note(self, machine: str, version: int, now_s: float) -> tuple[int, bool]:
        """Note one row that cannot run here.

        Returns:
            Milliseconds its row should wait (doubling to a minute, jittered), and whether it is worth an event: one for
            each pair and minute.
        """
        at_s, failures, told_s = self._seen.get((machine, version), [float("-inf"), 0.0, float("-inf")])
        if now_s - at_s > 0.5:
            failures += 1
        is_news = now_s - told_s >= EVENT_INTERVAL_S
        self._seen[(machine, version)] = [now_s, failures, now_s if is_news else told_s]
        delay_s = min(DELAY_MAX_S, DELAY_FIRST_S * 2 ** (failures - 1)) * self._rng.uniform(0.8, 1.2)
        return int(delay_s * 1000), is_news
