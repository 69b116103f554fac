"""Whether this process is alive, started and ready: decided from what it knows already, without a statement."""

import time
from typing import Final

from gendurable.engine import Engine

TICK_S: Final = 0.25
TICK_AGE_MAX_S: Final = 10.0
"""A loop that has not come round for this long is stuck in somebody's blocking call."""
BEAT_SLACK_S: Final = 1.0


class Health:
    """The state of one worker process as the probes see it.

    Attributes:
        is_connected: The database has answered once.
        is_schema_checked: The schema fits this version.
        is_stopping: Somebody asked the process to end.
    """

    def __init__(self, engine: Engine) -> None:
        """Everything is still to come; the handlers are loaded, because the engine was built from them."""
        self._engine = engine
        self._has_started = False
        self._ticked_at_s = time.monotonic()
        self.is_connected = False
        self.is_schema_checked = False
        self.is_stopping = False

    def tick(self) -> None:
        """The event loop has come round."""
        self._ticked_at_s = time.monotonic()

    def why_not_alive(self) -> list[str]:
        """Reasons to restart the process; empty when it is alive."""
        age_s = time.monotonic() - self._ticked_at_s
        return [f"the event loop has not ticked for {age_s:.1f} s"] if age_s > TICK_AGE_MAX_S else []

    def why_not_started(self) -> list[str]:
        """What the start still waits for; empty for good once the process has been ready."""
        self._has_started = self._has_started or self._engine.is_ready
        return [] if self._has_started else self._missing() or ["the engine is starting"]

    def why_not_ready(self) -> list[str]:
        """Reasons not to count on this process now; empty while it claims work."""
        reasons = self.why_not_started()
        if self._engine.is_draining or self.is_stopping:
            reasons.append("draining")
        parts = self._engine.parts
        beat_age_s, interval_s = parts.heartbeat.age_s, parts.settings.lease.heartbeat_s
        if self._engine.is_ready and beat_age_s > 2 * interval_s + BEAT_SLACK_S:
            reasons.append(f"the database has not answered for {beat_age_s:.1f} s")
        return reasons

    def _missing(self) -> list[str]:
        if not self.is_connected:
            return ["the database is not connected"]
        return [] if self.is_schema_checked else ["the schema is not checked"]
