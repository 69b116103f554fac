"""The typed state of a machine."""

from typing import Any, Self, TypeVar

import msgspec


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance remembers between steps: frozen, keyword-only, stored as a JSON object."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; types are checked when the outcome is made durable."""
        return msgspec.structs.replace(self, **changes)


StateT = TypeVar("StateT")
