"""What a notification says, and the channel it travels on."""

import msgspec

from gendurable.errors import InvalidValueError


class PokeMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One notification.

    Attributes:
        q: Queue to milliseconds until its earliest new row is due; 0 is now.
        by: Who sent it, so that the sender's own process can ignore it.
        cancel: Instances whose cancellation was asked for while they execute.
    """

    q: dict[str, int] = {}
    by: str = ""
    cancel: list[int] = []


def channel_of(schema: str) -> str:
    """The channel of a schema, never cut off: that has at most 40 bytes, and names of queues are in the payload."""
    return f"{schema}_poke"


def encode_message(message: PokeMessage) -> str:
    """The payload; the sender keeps it below the 8,000 bytes Postgres allows."""
    return msgspec.json.encode(message).decode()


def decode_message(payload: str) -> PokeMessage:
    """Read a payload.

    Raises:
        InvalidValueError: It is not one of ours.
    """
    try:
        return msgspec.json.decode(payload, type=PokeMessage)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidValueError(f"a notification cannot be read: {error}") from error
