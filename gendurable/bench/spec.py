"""What a process of its own is told to do, and the settings that follow from it."""

from typing import Literal

import msgspec

from gendurable.settings import LeaseSettings, QueueSettings, Secret, Settings
from gendurable.settings.sections import DEFAULT_QUEUE

Role = Literal["worker", "bare", "insert", "insert_raw", "client", "bare_client"]


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do.

    Attributes:
        role: ``worker`` is the engine and ``bare`` its statements alone; ``insert`` writes rows through the client and
            ``insert_raw`` prepared ones through the statement; ``client`` inserts one row at a time, and
            ``bare_client`` claims and ends each by itself.
        dsn: Where Postgres is.
        schema: The bench's schema.
        queues: The queues to serve; empty leaves the default.
        concurrency: Steps at once for each queue; None leaves the default.
        lease_ttl_s: Seconds a claim lasts; None leaves the default.
        steps_total: End after so many durable outcomes; None goes on until the input closes.
        report_every: Report again after each so many durable outcomes; None reports at the start and the end.
        is_stepping: The bare loop moves rows through five steps instead of ending them.
        rows: Rows or samples of a client.
        batch_rows: Rows of one call of ``insert_many``.
        pause_s: Seconds a client waits between two samples; 0 waits for each answer and goes on at once.
        log_level: The lowest level that is shown on standard error.
    """

    role: Role
    dsn: str
    schema: str
    queues: tuple[str, ...] = ()
    concurrency: int | None = None
    lease_ttl_s: float | None = None
    steps_total: int | None = None
    report_every: int | None = None
    is_stepping: bool = False
    rows: int = 0
    batch_rows: int = 10_000
    pause_s: float = 0.0
    log_level: str = "warning"


def child_settings(spec: ChildSpec) -> Settings:
    """The worker's defaults; nothing differs but the address and what the command line asked for."""
    settings = Settings(dsn=Secret(spec.dsn), schema=spec.schema)
    if spec.concurrency is not None:
        settings = msgspec.structs.replace(settings, queue=QueueSettings(concurrency=spec.concurrency))
    if spec.queues and spec.queues != (DEFAULT_QUEUE,):
        settings = msgspec.structs.replace(settings, serve=spec.queues)
    if spec.lease_ttl_s is not None:
        default = LeaseSettings()
        heartbeat_s = min(default.heartbeat_s, spec.lease_ttl_s / 3)
        settings = msgspec.structs.replace(
            settings, lease=LeaseSettings(ttl_s=spec.lease_ttl_s, heartbeat_s=heartbeat_s)
        )
    return settings
