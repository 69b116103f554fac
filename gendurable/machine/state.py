"""The typed state of a machine."""

from typing import Any, Self, TypeVar, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class StateMeta(msgspec.StructMeta):
    """Makes every state frozen and keyword-only, for the interpreter and for type checkers alike."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> type:
        """Build the class; the options of a struct may still be given, except those that would thaw it."""
        return super().__new__(cls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


class State(msgspec.Struct, metaclass=StateMeta):
    """What an instance remembers between steps: frozen, keyword-only, stored as a JSON object."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; types are checked when the outcome is made durable."""
        return msgspec.structs.replace(self, **changes)


StateT = TypeVar("StateT")
