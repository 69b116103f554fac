"""Where a queue's next claim starts its scan [L15]: an optimisation against dead entries, and never more than that."""

from gendurable.store.claims import SCAN_START, ScanPosition

FULL_SCAN_INTERVAL_S = 0.1
FULL_SCAN_CLAIMS = 20
FULL_SCAN_PAUSE = 3.0
"""Under a held snapshot a full scan walks every dead entry; a pause of some times its length keeps most claims cheap.
Rows that are announced do not wait for it: a poke, a release and a freed key drop the position."""


class ScanHint:
    """The position a queue last reached in this process, dropped by anything that could put a row before it.

    Attributes:
        position: Where the next claim starts, exclusive.
    """

    def __init__(self) -> None:
        """Start from the beginning."""
        self.position: ScanPosition = SCAN_START
        self._full_scan_at_s = 0.0
        self._claims_since_full_scan = 0
        self._dropped = 0
        self._dropped_before = 0

    def drop(self) -> None:
        """A row may lie before the position: the next claim looks from the beginning."""
        self.position = SCAN_START
        self._dropped += 1

    def begin(self, now_s: float) -> bool:
        """Before a claim: True when it is to look from the beginning, which also happens at a pace of its own."""
        is_full_scan = (
            now_s >= self._full_scan_at_s
            or self._claims_since_full_scan >= FULL_SCAN_CLAIMS
            or self.position is SCAN_START
        )
        if is_full_scan:
            self.position = SCAN_START
            self._claims_since_full_scan = 0
        self._claims_since_full_scan += 1
        self._dropped_before = self._dropped
        return is_full_scan

    def full_scan_took(self, seconds: float, now_s: float) -> None:
        """After a full scan: pause for its length, some times over."""
        self._full_scan_at_s = now_s + max(FULL_SCAN_INTERVAL_S, FULL_SCAN_PAUSE * seconds)

    def reached(self, position: ScanPosition) -> None:
        """After a full batch: go on behind it, unless a row was announced while the claim ran."""
        if self._dropped == self._dropped_before:
            self.position = position
