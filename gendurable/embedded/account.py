"""Which unprivileged account runs the server when we are root, and what may be given to it."""

import os
import shutil
import subprocess
import warnings
from pathlib import Path
from pwd import getpwnam, getpwuid, struct_passwd

from gendurable.errors import EmbeddedPostgresError

_OURS = "gendurable"
_CREATE = (
    ("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _OURS),
    ("adduser", "-S", "-D", "-H", _OURS),  # busybox
)


def chosen_account(*, data: Path | None, is_temporary: bool) -> struct_passwd | None:
    """Choose the account that the server runs as; None means our own, because PostgreSQL refuses only root.

    The owner of existing data comes first, then ``postgres``, then ``gendurable``, which is created.

    Raises:
        EmbeddedPostgresError: No account could be created, and ``nobody`` is only good enough for temporary data.
    """
    if os.geteuid() != 0:
        return None
    if data is not None and data.exists() and (owner := data.stat().st_uid) != 0:
        return _named(owner)
    for name in ("postgres", _OURS):
        if account := _found(name):
            return account
    for command in _CREATE:
        if shutil.which(command[0]) and subprocess.run(command, check=False, capture_output=True).returncode == 0:  # noqa: S603
            return getpwnam(_OURS)
    if is_temporary and (nobody := _found("nobody")):
        warnings.warn("no account could be created; the server runs as nobody, like other services may", stacklevel=2)
        return nobody
    raise EmbeddedPostgresError(
        f"PostgreSQL refuses to run as root and the account {_OURS!r} could not be created; create it, or one called "
        "'postgres', or run as another user"
    )


def hand_over(path: Path, account: struct_passwd | None) -> None:
    """Give one file or folder to the account, for it alone; ancestors and contents are not touched."""
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    path.chmod(0o700 if path.is_dir() else 0o600)


def require_reachable(directory: Path, account: struct_passwd | None) -> None:
    """Check that the account can get to a directory.

    Raises:
        EmbeddedPostgresError: An ancestor is closed to it; the message says which. Nothing was opened for it.
    """
    if account is None or _can_enter(directory.parent, account):
        return
    closed = next(folder for folder in reversed(directory.parents) if not _can_enter(folder, account))
    raise EmbeddedPostgresError(
        f"the server runs as {account.pw_name}, which may not enter {closed}; choose a directory outside it, such as "
        f"/var/lib/{_OURS}, or run as the owner of {closed}"
    )


def _can_enter(folder: Path, account: struct_passwd) -> bool:
    """Ask the kernel, because access lists and capabilities do not show in the mode."""
    done = subprocess.run(  # noqa: S603
        ("/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)),
        check=False,
        capture_output=True,
        cwd="/",
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
    )
    return done.returncode == 0


def _found(name: str) -> struct_passwd | None:
    try:
        return getpwnam(name)
    except KeyError:
        return None


def _named(uid: int) -> struct_passwd:
    try:
        return getpwuid(uid)
    except KeyError:
        raise EmbeddedPostgresError(f"the data belongs to user {uid}, who has no account; create one") from None
