"""The claims this process holds: what the heartbeat keeps alive."""

from gendurable.model.claim import Claim


class Holdings:
    """Every claim from the moment it is taken until its outcome is durable or the claim is known to be lost."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._claims: dict[int, Claim] = {}

    def __len__(self) -> int:
        """How many claims are held."""
        return len(self._claims)

    def add(self, claim: Claim) -> None:
        """Hold a claim; a newer claim of the same row replaces the older one, whose outcome will be refused."""
        self._claims[claim.id] = claim

    def remove(self, instance_id: int, claim: int) -> None:
        """Let go of a claim; one that was replaced by a newer one is left alone."""
        held = self._claims.get(instance_id)
        if held is not None and held.claim == claim:
            del self._claims[instance_id]

    def fences(self, *, claimed_before_s: float = float("inf")) -> dict[int, int]:
        """Instance id to claim, of what is held now and was claimed before a local monotonic time, in seconds."""
        return {claim.id: claim.claim for claim in self._claims.values() if claim.claimed_at < claimed_before_s}

    def claims(self) -> list[Claim]:
        """Everything held now."""
        return list(self._claims.values())
