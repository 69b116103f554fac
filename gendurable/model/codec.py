"""JSON as Postgres will store it: values are checked where they are made, so that one bad value never reaches a batch.

Encoding is on the hot path, so the checks look at the encoded bytes first and walk the value only when something in
them could be wrong; the walk then finds the exact place.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gendurable.errors import InvalidValueError, StateDecodeError

VALUE_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 64
KEY_BYTES_MAX = 512
NAME_CHARS_MAX = 128
TAGS_MAX = 32

T = TypeVar("T")

_LEAVES = (str, int, float, type(None))


def _plain(value: object) -> object:
    """Let any mapping be stored, such as ``ctx.metadata``; msgspec asks only about types it does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


_encoder = msgspec.json.Encoder(decimal_format="string", uuid_format="canonical", enc_hook=_plain)


def encode_json(value: object, *, name: str) -> str:
    """Encode a value as the JSON text that goes into a ``jsonb`` column.

    Args:
        value: Anything msgspec can encode: built-in values, mappings, structs, dataclasses, dates, decimals, UUIDs.
        name: What the value is, for the error's path, such as ``result``.

    Raises:
        InvalidValueError: It holds something Postgres or JSON cannot: NUL, a lone surrogate, NaN or an infinity, an
            unknown type, more than 1 MiB or more than 64 levels; ``path`` tells where.
    """
    try:
        raw = _encoder.encode(value)
        text = raw.decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        _explain(value, name)
        raise InvalidValueError(f"{name} cannot be stored as JSON: {error}", path=name) from error
    if len(raw) > VALUE_BYTES_MAX:
        raise InvalidValueError(
            f"{name} takes {len(raw):,} bytes as JSON; at most {VALUE_BYTES_MAX:,} can be stored: keep a reference to"
            " it instead",
            path=name,
        )
    # NaN and the infinities are encoded as null, so a text without a null has none of them; the other two checks are
    # necessary conditions of a NUL and of too deep a nesting.
    if b"null" in raw or b"\\u0000" in raw or (len(raw) > DEPTH_MAX and raw.count(b"{") + raw.count(b"[") > DEPTH_MAX):
        _explain(value, name)
    return text


def encode_object(value: object, *, name: str) -> str:
    """Encode a value that must become a JSON object.

    Raises:
        InvalidValueError: As :func:`encode_json`, or it is something else than an object.
    """
    text = encode_json(value, name=name)
    if not text.startswith("{"):
        raise InvalidValueError(f"{name} must be a mapping or a struct, not {type(value).__name__}", path=name)
    return text


def _explain(value: object, name: str) -> None:
    """Walk the value and raise for the first place that cannot be stored."""
    todo: list[tuple[str, object, int]] = [(name, value, 1)]
    while todo:
        path, part, depth = todo.pop()
        if depth > DEPTH_MAX and not isinstance(part, _LEAVES):
            raise InvalidValueError(f"{name} is nested deeper than {DEPTH_MAX} levels", path=path[:200])
        if isinstance(part, str):
            check_text(part, name=path)
        elif isinstance(part, float) and not math.isfinite(part):
            raise InvalidValueError(f"{path} is {part}, which JSON cannot hold; use None or a string", path=path)
        elif isinstance(part, Mapping):
            for key, inner in part.items():
                if isinstance(key, str):
                    check_text(key, name=f"a key of {path}")
                todo.append((f"{path}.{key}", inner, depth + 1))
        elif isinstance(part, (list, tuple, set, frozenset)):
            todo.extend((f"{path}[{i}]", inner, depth + 1) for i, inner in enumerate(part))
        elif isinstance(part, msgspec.Struct):
            todo.extend((f"{path}.{field}", getattr(part, field), depth + 1) for field in part.__struct_fields__)
        elif hasattr(part, "__dataclass_fields__"):
            todo.extend((f"{path}.{field}", getattr(part, field), depth + 1) for field in part.__dataclass_fields__)
        else:
            _explain_leaf(path, part)


def _explain_leaf(path: str, part: object) -> None:
    """Raise when a single value has no JSON form."""
    try:
        _encoder.encode(part)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(
            f"{path} is a {type(part).__name__}, which cannot be stored as JSON ({error}); convert it first", path=path
        ) from error


def check_text(value: str, *, name: str, chars_max: int | None = None, bytes_max: int | None = None) -> str:
    """Return the text if Postgres can store it and it is short enough.

    Raises:
        InvalidValueError: It holds NUL or a lone surrogate, or is too long.
    """
    if not isinstance(value, str):
        raise InvalidValueError(f"{name} must be a string, not {type(value).__name__}", path=name)
    if "\0" in value:
        raise InvalidValueError(f"{name} holds a NUL character, which Postgres cannot store; remove it", path=name)
    if chars_max is not None and len(value) > chars_max:
        raise InvalidValueError(f"{name} has {len(value)} characters; at most {chars_max} are allowed", path=name)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidValueError(
            f"{name} holds a lone surrogate, which is not valid text; remove it", path=name
        ) from error
    if bytes_max is not None and size > bytes_max:
        raise InvalidValueError(f"{name} takes {size} bytes; at most {bytes_max} are allowed", path=name)
    return value


def check_name(value: str, *, name: str) -> str:
    """Return a name of a queue, machine, step or tag if it is usable: 1 to 128 characters."""
    if isinstance(value, str) and not value.strip():
        raise InvalidValueError(f"{name} is empty; give it a name", path=name)
    return check_text(value, name=name, chars_max=NAME_CHARS_MAX)


def check_key(value: str, *, name: str) -> str:
    """Return a correlation or concurrency key if it is usable: 1 to 512 bytes."""
    if isinstance(value, str) and not value:
        raise InvalidValueError(f"{name} is empty; give a key or leave it out", path=name)
    return check_text(value, name=name, bytes_max=KEY_BYTES_MAX)


def decode_json(text: str | None) -> Any:
    """Decode JSON that we stored ourselves; None stays None."""
    return None if text is None else msgspec.json.decode(text)


class TypedDecoder:
    """Decodes stored JSON into one declared type."""

    def __init__(self, target: Any) -> None:
        """Compile the decoder once; ``target`` is a struct, a dataclass, ``dict`` or anything msgspec knows."""
        self.target = target
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(target)

    def decode(self, text: str, *, name: str) -> Any:
        """Decode, or say which stored field does not fit.

        Raises:
            StateDecodeError: The stored value does not fit the type; nothing was changed.
        """
        try:
            return self._decoder.decode(text)
        except (msgspec.DecodeError, ValueError) as error:
            raise StateDecodeError(f"the stored {name} does not fit {self.target!r}: {error}") from error


def convert(value: object, target: type[T], *, name: str) -> T:
    """Check built-in values against a type and build it.

    Raises:
        InvalidValueError: A field is missing, unknown or of another type; the message names it.
    """
    try:
        return msgspec.convert(value, target)
    except msgspec.ValidationError as error:
        raise InvalidValueError(f"{name}: {error}", path=name) from error
