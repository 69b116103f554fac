"""All settings with their defaults; frozen, keyword-only, and the same whether written in Python or loaded.

Durations are seconds here (``ttl_s=30``); in files, flags and the environment the unit is in the value and not in the
name (``lease.ttl = "30s"``).
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from gendurable.errors import ConfigurationError
from gendurable.settings.rules import (
    ALL_QUEUES,
    Choice,
    Dsn,
    Duration,
    Identifier,
    Names,
    Routes,
    Share,
    Switch,
    Text,
    Whole,
)
from gendurable.settings.secret import Secret

DEFAULT_QUEUE = "default"
DEFAULT_FLUSHER = "default"

_Seconds = Annotated[float, Duration()]
_On = Annotated[bool, Switch()]
_Batch = Annotated[int, Whole(maximum=10_000)]


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one process serves one queue."""

    concurrency: Annotated[int, Whole(maximum=100_000)] = 100
    """Steps of this queue that run at once in this process."""
    sync_threads: Annotated[int, Whole(maximum=1000)] = 8
    """Threads for steps that are plain functions."""
    prefetch: Annotated[int | None, Whole(minimum=0, maximum=100_000, auto=True)] = None
    """Rows claimed beyond the running ones; None (``auto``) keeps about 100 ms of work, at most ``prefetch_max``."""
    prefetch_max: Annotated[int, Whole(minimum=0, maximum=100_000)] = 400
    claim_max: _Batch = 500
    """Rows of one claim."""
    min_demand: Annotated[int | None, Whole(maximum=100_000, auto=True)] = None
    """Free slots worth a claim while work is in hand; None (``auto``) is a tenth of the concurrency."""
    poll_interval_s: _Seconds = 2.0
    """The floor under notifications: seconds between two looks, give or take 20 %."""

    @property
    def min_demand_rows(self) -> int:
        """The effective ``min_demand``: at least 1, never more than the concurrency."""
        wanted = self.concurrency // 10 if self.min_demand is None else self.min_demand
        return max(1, min(wanted, self.concurrency))


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How long a claim lasts without a sign of life."""

    ttl_s: _Seconds = 30.0
    heartbeat_s: _Seconds = 5.0
    """Seconds between two renewals; at most a third of the ttl, so that two may be lost."""


class ReaperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Freeing rows whose lease or deadline has passed."""

    enabled: _On = True
    batch_max: _Batch = 500


class CollectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Deleting rows that ended long ago."""

    enabled: _On = True
    interval_s: _Seconds = 60.0
    batch_max: _Batch = 1000
    retention_done_s: _Seconds = 7 * 86_400.0
    retention_cancelled_s: _Seconds = 7 * 86_400.0
    retention_failed_s: _Seconds = 30 * 86_400.0


class ReconcilerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Comparing limit counters with the rows that run."""

    enabled: _On = True
    interval_s: _Seconds = 30.0


class FlushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Committing outcomes in batches."""

    batch_max: _Batch = 500
    delay_max_s: Annotated[float, Duration(allow_zero=True)] = 0.0
    """Seconds an outcome may wait for company; 0 writes at once when idle."""
    queue_max: Annotated[int, Whole(maximum=1_000_000)] = 10_000
    """Outcomes that may wait; beyond, executors wait."""
    routes: Annotated[Mapping[str, tuple[str, ...]], Routes()] = msgspec.field(default_factory=dict)
    """Flusher name to its queues, in order; the first that names the queue, or ``*``, serves it. Empty: one for all."""

    def flusher_of(self, queue: str) -> str | None:
        """The name of the flusher that serves this queue; None when no route covers it."""
        if not self.routes:
            return DEFAULT_FLUSHER
        return next((name for name, queues in self.routes.items() if queue in queues or ALL_QUEUES in queues), None)


class StepSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gets unless its machine says otherwise."""

    timeout_s: _Seconds = 3600.0
    max_attempts: Annotated[int, Whole(maximum=1_000_000)] = 20
    max_crashes: Annotated[int, Whole(maximum=1_000_000)] = 5
    max_snoozes: Annotated[int, Whole(maximum=1_000_000)] = 1000
    inline_max: Annotated[int, Whole(maximum=1_000_000)] = 100
    """Steps that may follow one another inline under one claim."""


class BackoffSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The wait before a retry: ``base * 2 ** attempt``, at most ``max``, times 1 ± jitter."""

    base_s: _Seconds = 1.0
    max_s: _Seconds = 300.0
    jitter: Annotated[float, Share()] = 0.2


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Starting, stopping and the HTTP port of one process."""

    drain_timeout_s: Annotated[float, Duration(allow_zero=True)] = 25.0
    """Seconds that running steps get at shutdown, all together."""
    start_deadline_s: _Seconds = 60.0
    """Seconds until an unreachable database ends the start."""
    http_enabled: _On = True
    http_host: Annotated[str, Text(chars_max=255)] = "127.0.0.1"
    http_port: Annotated[int, Whole(minimum=0, maximum=65_535)] = 9464
    """0 takes any free port."""


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Connections to Postgres, besides those of the heartbeat and of LISTEN."""

    min: Annotated[int, Whole(maximum=1000)] = 2
    max: Annotated[int, Whole(maximum=1000)] = 10
    connect_timeout_s: _Seconds = 10.0
    command_timeout_s: _Seconds = 30.0
    statement_cache: _On = True
    """False for a pooler in transaction mode; nothing then relies on the session."""


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Waking up by NOTIFY; without it, the poll interval is the latency."""

    enabled: _On = True
    dsn: Annotated[Secret | None, Dsn()] = None
    """A direct way to Postgres when the main DSN leads through a pooler; None means the main one."""


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged and how."""

    level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        Choice(("debug", "info", "warning", "error", "critical")),
    ] = "info"
    format: Annotated[Literal["auto", "json", "console"], Choice(("auto", "json", "console"))] = "auto"
    """``auto`` is console on a terminal and json elsewhere."""


class EmbeddedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A Postgres server of our own, for development and tests."""

    enabled: _On = False
    directory: Annotated[str | None, Text(optional=True)] = None
    """Its data folder; None means the default place."""
    binaries: Annotated[str | None, Text(optional=True)] = None
    """The folder with initdb, pg_ctl and postgres; None means the first one found."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be configured; `check_settings` says whether it makes sense."""

    dsn: Annotated[Secret | None, Dsn()] = None
    schema: Annotated[str, Identifier()] = "gendurable"
    """The Postgres schema with all our tables."""
    node: Annotated[str | None, Text(chars_max=128, forbidden="\0/", optional=True)] = None
    """The name of this process's machine; None means its host name."""
    imports: Annotated[tuple[str, ...], Names()] = ()
    """Modules to import besides those that installed packages register."""
    discover: _On = True
    """Load what installed packages register; off, only ``imports`` are loaded."""
    serve: tuple[str, ...] | None = None
    """The queues to serve; ``*`` stands for those of the loaded machines and ``default``; empty means none. None means
    the queues in ``queues``, or ``*`` when there are none."""
    queue: QueueSettings = QueueSettings()
    """For every queue that has nothing of its own in ``queues``."""
    queues: Mapping[str, QueueSettings] = msgspec.field(default_factory=dict)
    lease: LeaseSettings = LeaseSettings()
    reaper: ReaperSettings = ReaperSettings()
    collector: CollectorSettings = CollectorSettings()
    reconciler: ReconcilerSettings = ReconcilerSettings()
    flush: FlushSettings = FlushSettings()
    steps: StepSettings = StepSettings()
    backoff: BackoffSettings = BackoffSettings()
    process: ProcessSettings = ProcessSettings()
    pool: PoolSettings = PoolSettings()
    listen: ListenSettings = ListenSettings()
    log: LogSettings = LogSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()

    @property
    def served(self) -> tuple[str, ...]:
        """The queues to serve as far as they are known before machines are loaded; ``*`` stands for the loaded ones."""
        return (tuple(self.queues) or (ALL_QUEUES,)) if self.serve is None else self.serve

    def queues_for(self, loaded: Iterable[str]) -> dict[str, QueueSettings]:
        """The queues that this process serves, each with its settings.

        Args:
            loaded: The queues of the machines and jobs that were loaded; ``default`` comes in by itself.

        Returns:
            Queue name to settings, in the order they were named; empty when the process serves none.

        Raises:
            ConfigurationError: No flusher is routed to one or more of the queues; all are listed.
        """
        names: dict[str, None] = {}
        for name in self.served:
            names.update(dict.fromkeys([*loaded, DEFAULT_QUEUE] if name == ALL_QUEUES else [name]))
        uncovered = [name for name in names if self.flush.flusher_of(name) is None]
        if uncovered:
            raise ConfigurationError([uncovered_problem(name) for name in uncovered])
        return {name: self.queues.get(name, self.queue) for name in names}

    def require_dsn(self) -> str:
        """Return the DSN with its password.

        Raises:
            ConfigurationError: None is set anywhere.
        """
        if self.dsn is None:
            raise ConfigurationError(
                "no database is configured: give --dsn, set GENDURABLE_DSN or DATABASE_URL, or use --embedded"
            )
        return self.dsn.reveal()


def uncovered_problem(queue: str) -> str:
    """The problem of a queue that no flusher is routed to."""
    return f'flush.routes covers no queue {queue!r}: add it to a flusher, or end with a flusher for ["*"]'
