"""What an executor leaves of a claim: rows it did not take, which the picker hands back unstarted."""

from dataclasses import dataclass, field

from gendurable.model.claim import Claim


@dataclass(frozen=True, slots=True)
class Left:
    """Claims that were not taken; false when there are none.

    Attributes:
        unknown_machines: This process does not know their machine or its version.
        unknown_steps: It knows their machine, but not the step they stand at.
        suspects: Another suspect runs before them; each with the seconds it should wait.
    """

    unknown_machines: list[Claim] = field(default_factory=list)
    unknown_steps: list[Claim] = field(default_factory=list)
    suspects: list[tuple[Claim, float]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to hand back."""
        return bool(self.unknown_machines or self.unknown_steps or self.suspects)
