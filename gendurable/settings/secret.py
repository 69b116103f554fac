"""A text that no log, traceback or `repr` shows."""

from gendurable.logs import MASK


class Secret:
    """A secret text, such as a DSN with its password; only `reveal` gives it out."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Keep the text out of sight."""
        self._value = value

    def reveal(self) -> str:
        """Return the text itself, for the one place that needs it."""
        return self._value

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a Secret is not pickled: pass what it reveals, knowingly")
