"""What a setting may be: how each kind is read from a file, a flag or the environment, checked and shown.

A rule stands in the annotation of its field: ``ttl_s: Annotated[float, Duration()]``. `parse` raises `RefusedError`
with the reason and the remedy; `check` returns the reason why a value, also one made in Python, cannot be used.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from gendurable.errors import InvalidValueError
from gendurable.logs import mask_dsn, mask_text
from gendurable.model.durations import DURATION_MAX_MS, format_duration, parse_duration_s
from gendurable.settings.secret import Secret

NAME_CHARS_MAX: Final = 128
SCHEMA_CHARS_MAX: Final = 40
"""The channel of its wake-ups has the name of the schema in it, and Postgres cuts names at 63 bytes."""
ALL_QUEUES: Final = "*"
"""In a list of queues: the queues of the machines that were loaded, and ``default``."""
NO_QUEUES: Final = "none"

_WORDS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_DSN_START: Final = re.compile(r"^postgres(?:ql)?(?:\+[a-z0-9]+)?://", re.IGNORECASE)
_IDENTIFIER: Final = re.compile(rf"[a-z_][a-z0-9_]{{0,{SCHEMA_CHARS_MAX - 1}}}")


class RefusedError(ValueError):
    """A raw value cannot be read; the message is the reason and the remedy, to stand after the setting's name."""


class Rule(Protocol):
    """How one kind of setting is read, checked and shown."""

    def parse(self, raw: object) -> object:
        """Read the value; raises RefusedError with the reason."""
        ...

    def check(self, value: object) -> str | None:
        """Return why the value cannot be used, or None."""
        ...

    def show(self, value: object) -> str:
        """Return the text for ``config show``, without secrets."""
        ...


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """A whole number; with ``auto``, that word (None in Python) leaves the choice to the engine."""

    minimum: int = 1
    maximum: int
    auto: bool = False

    def parse(self, raw: object) -> object:
        """Read one."""
        if isinstance(raw, str):
            if self.auto and raw.strip().lower() == "auto":
                return None
            if re.fullmatch(r"-?[0-9][0-9_]{0,18}", raw.strip()):
                return int(raw)
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        raise RefusedError(f"is {short(raw)}, which is no whole number: give {self._expected()}")

    def check(self, value: object) -> str | None:
        """Judge one."""
        if value is None and self.auto:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            return f"is {short(value)}: give {self._expected()}"
        return None

    def show(self, value: object) -> str:
        """Show one."""
        return "auto" if value is None else str(value)

    def _expected(self) -> str:
        return f"{self.minimum} to {self.maximum:,}{', or auto' if self.auto else ''}"


class Share(msgspec.Struct, frozen=True):
    """A number from 0 to 1."""

    def parse(self, raw: object) -> object:
        """Read one."""
        try:
            if isinstance(raw, str | int | float) and not isinstance(raw, bool):
                return float(raw)
        except ValueError:
            pass
        raise RefusedError(f"is {short(raw)}, which is no number: give 0 to 1")

    def check(self, value: object) -> str | None:
        """Judge one."""
        is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
        return None if is_share else f"is {short(value)}: give 0 to 1"

    def show(self, value: object) -> str:
        """Show one."""
        return f"{value:g}" if isinstance(value, float) else str(value)


class Duration(msgspec.Struct, frozen=True, kw_only=True):
    """A duration in seconds, written ``30s`` outside Python."""

    allow_zero: bool = False

    def parse(self, raw: object) -> object:
        """Read one."""
        try:
            return parse_duration_s(raw, name="", allow_zero=self.allow_zero)
        except InvalidValueError as error:
            raise RefusedError(str(error).strip()) from error

    def check(self, value: object) -> str | None:
        """Judge one."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and ((value == 0 and self.allow_zero) or 0.001 <= value <= DURATION_MAX_MS / 1000):  # type: ignore[operator]
            return None
        return f"is {short(value)}: give seconds, {'0 or ' if self.allow_zero else ''}from 1 ms to 100 years"

    def show(self, value: object) -> str:
        """Show one."""
        return format_duration(value) if isinstance(value, int | float) else str(value)


class Switch(msgspec.Struct, frozen=True):
    """True or false."""

    def parse(self, raw: object) -> object:
        """Read one."""
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.strip().lower() in _WORDS:
            return _WORDS[raw.strip().lower()]
        raise RefusedError(f"is {short(raw)}: give true or false")

    def check(self, value: object) -> str | None:
        """Judge one."""
        return None if isinstance(value, bool) else f"is {short(value)}: give true or false"

    def show(self, value: object) -> str:
        """Show one."""
        return "true" if value else "false"


class Choice(msgspec.Struct, frozen=True):
    """One word of a closed set, in any case."""

    words: tuple[str, ...]

    def parse(self, raw: object) -> object:
        """Read one."""
        return raw.strip().lower() if isinstance(raw, str) else raw

    def check(self, value: object) -> str | None:
        """Judge one."""
        return None if value in self.words else f"is {short(value)}: give one of {', '.join(self.words)}"

    def show(self, value: object) -> str:
        """Show one."""
        return str(value)


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text of 1 to ``chars_max`` characters; with ``optional``, None in Python means it is not set."""

    chars_max: int = 4096
    forbidden: str = "\0"
    optional: bool = False

    def parse(self, raw: object) -> object:
        """Read one."""
        if not isinstance(raw, str):
            raise RefusedError(f"is {short(raw)}, which is no text: write it in quotes")
        return raw

    def check(self, value: object) -> str | None:
        """Judge one."""
        if value is None and self.optional:
            return None
        if not isinstance(value, str) or not 0 < len(value) <= self.chars_max:
            return f"is {short(value)}: give a text of 1 to {self.chars_max} characters"
        bad = sorted({char for char in value if char in self.forbidden})
        return f"is {short(value)}: leave out {', '.join(map(repr, bad))}" if bad else None

    def show(self, value: object) -> str:
        """Show one."""
        return "not set" if value is None else str(value)


class Identifier(Text, frozen=True, kw_only=True):
    """The name of a Postgres schema that needs no quotes."""

    def check(self, value: object) -> str | None:
        """Judge one."""
        if isinstance(value, str) and _IDENTIFIER.fullmatch(value) and not value.startswith("pg_"):
            return None
        return (
            f"is {short(value)}: give 1 to {SCHEMA_CHARS_MAX} of a-z, 0-9 and _, not starting with a digit or with pg_"
        )


class Dsn(msgspec.Struct, frozen=True):
    """Where Postgres is: a URL, kept secret; None means it is not set."""

    def parse(self, raw: object) -> object:
        """Read one."""
        if isinstance(raw, Secret):
            return raw
        if not isinstance(raw, str):
            raise RefusedError("is no text: write it in quotes")
        text = raw.strip()
        if not _DSN_START.match(text):
            shown = repr(mask_dsn(text)) if "://" in text or "=" in text else "no URL"
            raise RefusedError(f"is {shown}: give a URL such as postgresql://user:password@host:5432/database")
        # "postgresql+asyncpg://" is how SQLAlchemy spells the same place.
        return Secret(_DSN_START.sub("postgresql://", text))

    def check(self, value: object) -> str | None:
        """Judge one."""
        return None if value is None or isinstance(value, Secret) else "is no Secret: wrap the DSN in Secret(...)"

    def show(self, value: object) -> str:
        """Show one."""
        return mask_dsn(value.reveal()) if isinstance(value, Secret) else "not set"


class Names(msgspec.Struct, frozen=True):
    """A list of names; outside TOML, one text with commas."""

    def parse(self, raw: object) -> object:
        """Read one."""
        return tuple(name_list(raw))

    def check(self, value: object) -> str | None:
        """Judge one."""
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return None if is_list and all(isinstance(name, str) and name for name in value) else "is no list of names"  # type: ignore[attr-defined]

    def show(self, value: object) -> str:
        """Show one."""
        return ", ".join(value) if isinstance(value, Sequence) and value else "none"


class Routes(msgspec.Struct, frozen=True):
    """Which flusher serves which queues, in order; as one text, ``fast=mail,sms;rest=*``."""

    def parse(self, raw: object) -> object:
        """Read one."""
        if isinstance(raw, str):
            pairs = [part.partition("=") for part in raw.split(";") if part.strip()]
            if not all(equals for _, equals, _ in pairs):
                raise RefusedError(f"is {short(raw)}: write flusher=queue,queue;flusher=*")
            raw = {name.strip(): queues for name, _, queues in pairs}
        if not isinstance(raw, Mapping):
            raise RefusedError(f'is {short(raw)}, which is no table: write flusher = ["queue", "*"]')
        return {str(name): tuple(name_list(queues)) for name, queues in raw.items()}

    def check(self, value: object) -> str | None:
        """Judge one."""
        if not isinstance(value, Mapping):
            return f"is {short(value)}: give a mapping from flusher names to lists of queues"
        for flusher, queues in value.items():
            problem = name_problem(flusher) or Names().check(queues) or ("has no queues" if not queues else None)
            problem = problem or next((text for queue in queues if (text := queue_problem(queue))), None)
            if problem:
                return f"names flusher {short(flusher)}, which {problem}"
        return None

    def show(self, value: object) -> str:
        """Show one."""
        if not isinstance(value, Mapping) or not value:
            return "one flusher for all queues"
        return "; ".join(f"{name}={','.join(queues)}" for name, queues in value.items())


def name_list(raw: object) -> list[str]:
    """Read a list of names, from a list or from one text with commas; raises RefusedError."""
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise RefusedError(f"is {short(raw)}, which is no list of names")
    return [part.strip() for part in parts if part.strip()]


def name_problem(name: object) -> str | None:
    """Why this cannot name a queue or a flusher, or None."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
        return f"is {short(name)}: a name has 1 to {NAME_CHARS_MAX} characters"
    if name != name.strip() or any(char in name for char in "\0,=;"):
        return f"is {short(name)}: a name has no comma, semicolon, equals sign, NUL or space at its ends"
    return None


def queue_problem(name: object) -> str | None:
    """Why this cannot stand in a list of queues, or None; ``*`` can."""
    return f"names a queue that {problem}" if (problem := name_problem(name)) else None


def short(value: object) -> str:
    """The value for a message: short whatever it is, and without a password that was put in the wrong place."""
    text = mask_text(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
