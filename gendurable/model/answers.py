"""What client calls answer: values, so that a business answer never rolls a caller's transaction back by accident."""

import msgspec

from gendurable.model.instance import Status


class StillRunning(msgspec.Struct, frozen=True):
    """The instance has not ended; wait again whenever you like."""

    id: int


class Cancelled(msgspec.Struct, frozen=True):
    """The instance waited and has ended as cancelled."""

    id: int


class CancelRequested(msgspec.Struct, frozen=True):
    """The instance executes; it is interrupted and ends as cancelled at its next commit."""

    id: int


class NotCancelled(msgspec.Struct, frozen=True):
    """The instance had ended before; nothing changed."""

    id: int
    status: Status


class Retried(msgspec.Struct, frozen=True):
    """The instance is runnable again."""

    id: int


class Conflict(msgspec.Struct, frozen=True):
    """Its correlation key belongs to ``holder`` now; nothing changed."""

    id: int
    holder: int


class NotRetried(msgspec.Struct, frozen=True):
    """The instance has not ended or is done; nothing changed."""

    id: int
    status: Status
