"""Machines and steps this process does not know: how long it leaves their rows alone [L16]."""

from random import Random

SKIP_S = 30.0
DELAY_FIRST_S = 1.0
DELAY_MAX_S = 60.0
EVENT_INTERVAL_S = 60.0


class UnresolvedMachines:
    """The (machine, version) pairs that failed to resolve lately, and steps of machines that did resolve.

    A step that is unknown here is left to others as well, whether or not its machine has an error handler. During a
    deploy it is most often one that only the newer code has: the older code's handler cannot know what should become of
    such a row, and would end it or send it somewhere else. When it is a step that was taken out of the code, an older
    worker may still have it. When none has, the row waits, unspoilt, and logs and metrics say so: bring the step back,
    or cancel the row.
    """

    def __init__(self, rng: Random) -> None:
        """Everything is thought to be known."""
        self._rng = rng
        self._seen: dict[tuple[str, int, str | None], list[float]] = {}

    def pairs(self, now_s: float) -> list[str]:
        """``machine@version`` of the pairs that failed within the last half minute, for the claim to skip.

        A pair of which only a step is unknown is not among them: the rows at its other steps run here.
        """
        return [
            f"{name}@{version}"
            for (name, version, step), (at_s, _, _) in self._seen.items()
            if step is None and now_s - at_s < SKIP_S
        ]

    def note(self, machine: str, version: int, now_s: float, *, step: str | None = None) -> tuple[int, bool]:
        """Note one row that cannot run here; ``step`` when it is only that which is unknown.

        Returns:
            Milliseconds its row should wait (doubling to a minute, jittered), and whether it is worth an event: one for
            each pair, or step of it, and minute.
        """
        key = (machine, version, step)
        at_s, failures, told_s = self._seen.get(key, [float("-inf"), 0.0, float("-inf")])
        if now_s - at_s > 0.5:
            failures += 1
        is_news = now_s - told_s >= EVENT_INTERVAL_S
        self._seen[key] = [now_s, failures, now_s if is_news else told_s]
        delay_s = min(DELAY_MAX_S, DELAY_FIRST_S * 2 ** (failures - 1)) * self._rng.uniform(0.8, 1.2)
        return int(delay_s * 1000), is_news
