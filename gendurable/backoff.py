"""How long to wait before trying again: for steps, for loops and for lost connections.

Chance always comes from the `random.Random` that is handed in, so that a test can repeat it.
"""

import math
from random import Random
from typing import Final

# 2^62 seconds is far above every maximum, and no float overflows on the way there.
_EXPONENT_MAX: Final = 62


def exponential_backoff_s(
    attempt: int,
    *,
    rng: Random,
    base_s: float = 1.0,
    max_s: float = 300.0,
    jitter: tuple[float, float] = (0.8, 1.2),
) -> float:
    """Seconds to wait before the attempt after this one.

    Args:
        attempt: How many attempts failed before the one that failed now: 0 for the first failure.
        rng: Where the jitter is drawn from.
        base_s: Wait after the first failure; it doubles with each further one.
        max_s: The most it grows to before jitter.
        jitter: The wait is multiplied by a number drawn evenly between these two. ``(1, 1)`` means none.

    Returns:
        ``min(base_s * 2 ** attempt, max_s)`` times the jitter: 1, 2, 8 and 300 s for attempts 0, 1, 3 and 20.
    """
    assert attempt >= 0
    assert base_s >= 0
    low, high = jitter
    assert 0 <= low <= high
    return min(math.ldexp(base_s, min(attempt, _EXPONENT_MAX)), max_s) * rng.uniform(low, high)


def jittered_s(interval_s: float, rng: Random, spread: float = 0.2) -> float:
    """The interval, up to ``spread`` of it shorter or longer, so that many processes do not act in step."""
    assert interval_s >= 0
    assert 0 <= spread <= 1
    return interval_s * rng.uniform(1 - spread, 1 + spread)


class ReconnectBackoff:
    """The pace of one loop whose database or connection is gone: short at first, longer each time, reset by success.

    Attributes:
        failures: How many waits were drawn since the last success.
    """

    def __init__(self, rng: Random, *, first_s: float = 0.1, max_s: float = 5.0, spread: float = 0.2) -> None:
        """Start as after a success.

        Args:
            rng: Where the jitter is drawn from.
            first_s: Wait after the first failure, before jitter; it doubles with each further one.
            max_s: The most it grows to before jitter.
            spread: Each wait is up to this share shorter or longer.
        """
        assert 0 < first_s <= max_s
        self._rng = rng
        self._first_s = first_s
        self._max_s = max_s
        self._spread = spread
        self.failures = 0

    def next_s(self) -> float:
        """Count one more failure and return the seconds to wait before trying again."""
        wait_s = min(math.ldexp(self._first_s, min(self.failures, _EXPONENT_MAX)), self._max_s)
        self.failures += 1
        return jittered_s(wait_s, self._rng, self._spread)

    def reset(self) -> None:
        """Note a success: the next failure waits the shortest time again."""
        self.failures = 0
