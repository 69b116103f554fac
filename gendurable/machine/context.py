"""What a step sees: its instance, its state and the resources of the process."""

import datetime as dt
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic

from gendurable.machine.state import StateT
from gendurable.model.claim import Claim
from gendurable.model.codec import decode_json

_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Context(Generic[StateT]):
    """The instance a step runs for.

    Attributes:
        state: The decoded state, or None while an error handler looks at a state that no longer decodes.
        resources: What the lifespan handlers opened, by name.
    """

    __slots__ = ("_claim", "_metadata", "_run", "resources", "state")

    def __init__(self, claim: Claim, state: StateT, resources: Mapping[str, Any], *, run: object = None) -> None:
        """Built by the engine, once for each run of a step; ``run`` is the engine's own."""
        self._claim = claim
        self._run = run
        self._metadata: Mapping[str, Any] | None = None
        self.state = state
        self.resources = resources

    @property
    def id(self) -> int:
        """The instance's id."""
        return self._claim.id

    @property
    def machine(self) -> str:
        """The registered name of the machine or job."""
        return self._claim.machine

    @property
    def version(self) -> int:
        """The version the instance runs on."""
        return self._claim.version

    @property
    def step(self) -> str:
        """The step that runs."""
        return self._claim.step

    @property
    def attempt(self) -> int:
        """How often this step has failed before: 0 at first."""
        return self._claim.attempt

    @property
    def crashes(self) -> int:
        """How many processes died while this step was theirs: 0 when it starts for the first time."""
        return self._claim.crashes

    @property
    def queue(self) -> str:
        """The queue it was claimed from."""
        return self._claim.queue

    @property
    def priority(self) -> int:
        """Lower runs first."""
        return self._claim.priority

    @property
    def correlation_key(self) -> str | None:
        """The business key it was inserted with."""
        return self._claim.correlation_key

    @property
    def concurrency_key(self) -> str | None:
        """The key it holds while this step runs."""
        return self._claim.concurrency_key

    @property
    def parent_id(self) -> int | None:
        """The instance that scheduled it."""
        return self._claim.parent_id

    @property
    def inserted_at(self) -> dt.datetime:
        """When it was inserted, by the database's clock."""
        return self._claim.inserted_at  # type: ignore[no-any-return]

    @property
    def tags(self) -> tuple[str, ...]:
        """Its labels."""
        return tuple(self._claim.tags or ())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The mapping it was inserted with; read-only."""
        if self._metadata is None:
            decoded = decode_json(self._claim.metadata)
            self._metadata = MappingProxyType(decoded) if decoded else _EMPTY
        return self._metadata
