"""Machines and steps this process does not know: how long it leaves their rows alone [L16]."""

from dataclasses import dataclass
from random import Random

SKIP_S = 30.0
DELAY_FIRST_S = 1.0
DELAY_MAX_S = 60.0
EVENT_INTERVAL_S = 60.0
FORGET_S = 600.0
"""Unknown again after so long is another deploy, and begins with the shortest delay."""


@dataclass(slots=True)
class _Seen:
    """What is known about one thing that failed to resolve; times are local monotonic seconds."""

    first_s: float
    last_s: float = float("-inf")
    told_s: float = float("-inf")
    failures: int = 0


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
        self._seen: dict[tuple[str, int, str | None], _Seen] = {}

    def pairs(self, now_s: float) -> list[str]:
        """``machine@version`` of the pairs that failed within the last half minute, for the claim to skip.

        A pair of which only a step is unknown is not among them: the rows at its other steps run here.
        """
        return [
            f"{name}@{version}"
            for (name, version, step), seen in self._seen.items()
            if step is None and now_s - seen.last_s < SKIP_S
        ]

    def note(self, machine: str, version: int, now_s: float, *, step: str | None = None) -> tuple[int, bool]:
        """Note one row that cannot run here; ``step`` when it is only that which is unknown.

        Returns:
            Milliseconds its row should wait, jittered, and whether it is worth an event: one a minute for each pair, or
            step of it.
        """
        key = (machine, version, step)
        seen = self._seen.get(key)
        if seen is None or now_s - seen.last_s > FORGET_S:
            seen = self._seen[key] = _Seen(first_s=now_s)
        if now_s - seen.last_s > 0.5:
            seen.failures += 1
        seen.last_s = now_s
        is_news = now_s - seen.told_s >= EVENT_INTERVAL_S
        if is_news:
            seen.told_s = now_s
        delay_s = _machine_delay_s(seen) if step is None else _step_delay_s(now_s - seen.first_s)
        return int(delay_s * self._rng.uniform(0.8, 1.2) * 1000), is_news


def _machine_delay_s(seen: _Seen) -> float:
    """Doubles with each claim that met it; meanwhile the claims here skip the machine, so others get its rows."""
    return min(DELAY_MAX_S, DELAY_FIRST_S * 2.0 ** min(seen.failures - 1, 30))


def _step_delay_s(unknown_for_s: float) -> float:
    """Grows with the time for which the step has been unknown, and not with each meeting.

    Claims cannot skip a step, so while a deploy goes on an older worker meets its rows again and again. Each time costs
    the row this delay: a second in the first half minute, ten after five minutes, a minute when nobody has it.
    """
    return min(DELAY_MAX_S, max(DELAY_FIRST_S, unknown_for_s / 30))
