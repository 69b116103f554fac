"""Which process this is, in a way that another process of the same machine can check [L17]."""

import os
import socket
import uuid
from pathlib import Path

from gendurable.store.leases import NodeIdentity

# Places in /proc/PID/stat behind the command's name, and the states of a process that runs no more: zombie and dead.
STATE, STARTED = 0, 19
ENDED_STATES = frozenset("ZX")


def identify(*, node: str | None, version: str) -> NodeIdentity:
    """Describe this process; outside Linux, what cannot be known makes nothing provable and the lease decides."""
    host = socket.gethostname()
    name = node or host
    return NodeIdentity(
        boot=f"{name}/{uuid.uuid4().hex}",
        node=name,
        host=host,
        host_boot=_read("/proc/sys/kernel/random/boot_id") or uuid.uuid4().hex,
        pid_namespace=_link("/proc/self/ns/pid") or uuid.uuid4().hex,
        pid=os.getpid(),
        pid_started=pid_started(os.getpid()) or "unknown",
        version=version,
    )


def proves_dead(pid: int, started: str) -> bool:
    """Whether the process that had this pid, started then, is certainly gone.

    Ask only about processes of the same machine boot and the same pid namespace. A pid that is gone, or that started at
    another time, proves it, and so does a process that has ended and that its parent has not asked about yet; not being
    allowed to look proves nothing.
    """
    if not Path("/proc/self/stat").exists() or started == "unknown":
        return False
    fields = _stat_fields(pid)
    if not fields:
        return not Path(f"/proc/{pid}").exists()
    return fields[STATE] in ENDED_STATES or fields[STARTED] != started


def pid_started(pid: int) -> str | None:
    """When a process started, in clock ticks since the machine's boot; None when it cannot be read."""
    fields = _stat_fields(pid)
    return fields[STARTED] if fields else None


def _stat_fields(pid: int) -> list[str]:
    """What the kernel says about a process from its state on; empty when it cannot be read."""
    stat = _read(f"/proc/{pid}/stat")
    # The command in parentheses may hold spaces and parentheses itself, so fields are counted behind the last one.
    fields = stat.rpartition(")")[2].split() if stat else []
    return fields if len(fields) > STARTED else []


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _link(path: str) -> str | None:
    try:
        return str(Path(path).readlink())
    except OSError:
        return None
