"""File locks that the kernel gives back when their owner dies, however it dies."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gendurable.errors import EmbeddedPostgresError

_RETRY_S = 0.02


@contextlib.contextmanager
def held(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold a lock file exclusively.

    Raises:
        EmbeddedPostgresError: Somebody else held it all the time.
    """
    lock = opened(path)
    try:
        deadline_s = time.monotonic() + timeout_s
        while not taken(lock):
            if time.monotonic() > deadline_s:
                raise EmbeddedPostgresError(f"another process held {path} for more than {timeout_s} s")
            time.sleep(_RETRY_S)
        yield
    finally:
        os.close(lock)


def opened(path: Path) -> int:
    """Open a lock file; no child inherits it, and a link planted in its place is refused."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def shared(path: Path) -> int:
    """Open a lock file and take it shared; only called where nobody holds it exclusively for longer than a moment."""
    lock = opened(path)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def taken(lock: int) -> bool:
    """Take a lock exclusively if nobody else holds it in any way; a shared hold of our own is turned into it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
