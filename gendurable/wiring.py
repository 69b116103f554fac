"""The composition root: the one place that names concrete classes and puts an engine together."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from random import Random

from gendurable.backoff import exponential_backoff_s
from gendurable.client import Client
from gendurable.engine import Engine, Parts
from gendurable.machine.registry import Registry
from gendurable.metrics import Metrics, Observed
from gendurable.model.claim import Claim
from gendurable.ops.gauges import add_gauges
from gendurable.poke.emitter import PokeEmitter
from gendurable.poke.hub import PokeHub
from gendurable.poke.listener import PokeListener
from gendurable.runtime.collector import Collector
from gendurable.runtime.deciding import Policy
from gendurable.runtime.executor import Executor, ExecutorOptions
from gendurable.runtime.flusher import Flusher
from gendurable.runtime.heartbeat import Heartbeat
from gendurable.runtime.holdings import Holdings
from gendurable.runtime.identity import identify, proves_dead
from gendurable.runtime.owed import Owed
from gendurable.runtime.picker import Picker
from gendurable.runtime.reaper import Reaper
from gendurable.runtime.reconciler import Reconciler
from gendurable.runtime.service import Service
from gendurable.runtime.suspects import SuspectPlace
from gendurable.settings import QueueSettings, Settings, require_valid
from gendurable.store.claims import ClaimStore
from gendurable.store.database import ConnectOptions, Database
from gendurable.store.leases import LeaseStore
from gendurable.store.notifications import NotificationStore
from gendurable.store.outcomes import OutcomeStore
from gendurable.store.retention import RetentionStore

UNFLUSHED_BATCHES = 3
"""Batches of outcomes that may wait for the flusher before a queue stops claiming: two keep it busy, one is slack."""


def product_version() -> str:
    """The installed version of gendurable."""
    try:
        return version("gendurable")
    except PackageNotFoundError:
        return "0.0.0"


def connect_options(
    settings: Settings, *, dsn: str | None = None, application_name: str = "gendurable"
) -> ConnectOptions:
    """How these settings reach Postgres."""
    pool = settings.pool
    return ConnectOptions(
        dsn=settings.require_dsn() if dsn is None else dsn,
        schema=settings.schema,
        pool_min=pool.min,
        pool_max=pool.max,
        connect_timeout_s=pool.connect_timeout_s,
        command_timeout_s=pool.command_timeout_s,
        statement_cache=pool.statement_cache,
        application_name=application_name,
    )


def build_engine(settings: Settings, registry: Registry, *, seed: int | None = None) -> Engine:
    """Put an engine together; nothing is connected and nothing runs yet.

    Args:
        settings: Checked here.
        registry: The machines it can run.
        seed: For jitter; None draws one.

    Raises:
        ConfigurationError: All problems of the settings, and queues no flusher is routed to.
    """
    require_valid(settings)
    return Engine(_Wiring(settings, registry, Random(seed)).parts())


class _Wiring:
    """One engine in the making: what everything shares, and one method for each part."""

    def __init__(self, settings: Settings, registry: Registry, rng: Random) -> None:
        self.settings, self.registry, self.rng = settings, registry, rng
        self.queues = settings.queues_for(registry.queues())
        self.identity = identify(node=settings.node, version=product_version())
        self.lease_ttl_ms = int(settings.lease.ttl_s * 1000)
        self.database = Database(connect_options(settings, application_name=f"gendurable {self.identity.node}"))
        self.listen_database = None
        if settings.listen.dsn is not None:
            self.listen_database = Database(connect_options(settings, dsn=settings.listen.dsn.reveal()))
        self.metrics, self.hub, self.holdings = Metrics(), PokeHub(), Holdings()
        self.notifications = NotificationStore(self.database, listen_database=self.listen_database)
        self.emitter = PokeEmitter(
            self.notifications, schema=self.database.schema, sender=self.identity.boot, metrics=self.metrics
        )
        self.client = Client.over(self.database, hub=self.hub, emitter=self.emitter)
        self.claims = ClaimStore(self.database, boot=self.identity.boot)
        self.leases = LeaseStore(self.database, self.identity)
        self.cut: list[Claim] = []
        self.suspects = SuspectPlace(self.rng)
        self.flushers = {name: self._flusher(name) for name in sorted(self._flusher_names())}
        self.executors = {queue: self._executor(queue, one) for queue, one in self.queues.items()}
        self.heartbeat = self._heartbeat()
        self.owed = self._owed()
        self.pickers = {queue: self._picker(queue, one) for queue, one in self.queues.items()}

    def parts(self) -> Parts:
        parts = Parts(
            settings=self.settings,
            database=self.database,
            registry=self.registry,
            metrics=self.metrics,
            hub=self.hub,
            holdings=self.holdings,
            client=self.client,
            leases=self.leases,
            emitter=self.emitter,
            listener=self._listener() if self.settings.listen.enabled else None,
            heartbeat=self.heartbeat,
            flushers=list(self.flushers.values()),
            executors=self.executors,
            owed=self.owed,
            pickers=self.pickers,
            upkeep=self._upkeep(),
            cut=self.cut,
            observed=Observed(),
        )
        add_gauges(parts, version=product_version())
        return parts

    def _announce(self, queue: str, due_in_s: float = 0.0) -> None:
        """A row became runnable, or will in so many seconds, that any process may run."""
        self.hub.poke(queue, due_in_s)
        self.emitter.poke(queue, due_in_s)

    def _interrupt(self, instance_ids: Sequence[int]) -> None:
        """Somebody cancelled these instances; those that execute here are interrupted."""
        for executor in self.executors.values():
            executor.cancel(instance_ids)

    def _after_beat(self, lost: Mapping[int, int]) -> None:
        for executor in self.executors.values():
            executor.after_beat(lost)

    def _may_start(self) -> bool:
        return self.heartbeat.age_s < self.settings.lease.ttl_s

    def _flusher_names(self) -> set[str]:
        return {str(self.settings.flush.flusher_of(queue)) for queue in self.queues}

    def _flusher(self, name: str) -> Flusher:
        return Flusher(
            OutcomeStore(self.database, boot=self.identity.boot),
            name=name,
            batch_max=self.settings.flush.batch_max,
            delay_max_s=self.settings.flush.delay_max_s,
            metrics=self.metrics,
            rng=self.rng,
            on_unheld=self._announce,
        )

    def _executor(self, queue: str, one: QueueSettings) -> Executor:
        steps = self.settings.steps
        return Executor(
            ExecutorOptions(
                queue=queue, concurrency=one.concurrency, sync_threads=one.sync_threads, timeout_s=steps.timeout_s
            ),
            registry=self.registry,
            policy=Policy(max_attempts=steps.max_attempts, max_snoozes=steps.max_snoozes, backoff_s=self._backoff_s),
            holdings=self.holdings,
            suspects=self.suspects,
            sink=self.flushers[str(self.settings.flush.flusher_of(queue))],
            metrics=self.metrics,
            may_start=self._may_start,
            on_release=self.cut.append,
            on_continue=self.hub.poke,
            on_ended=self.client.note_ended,
        )

    def _backoff_s(self, attempt: int) -> float:
        backoff = self.settings.backoff
        return exponential_backoff_s(
            attempt,
            rng=self.rng,
            base_s=backoff.base_s,
            max_s=backoff.max_s,
            jitter=(1 - backoff.jitter, 1 + backoff.jitter),
        )

    def _picker(self, queue: str, one: QueueSettings) -> Picker:
        flush = self.settings.flush
        return Picker(
            queue=queue,
            settings=one,
            lease_ttl_ms=self.lease_ttl_ms,
            store=self.claims,
            executor=self.executors[queue],
            holdings=self.holdings,
            owed=self.owed,
            metrics=self.metrics,
            rng=self.rng,
            unflushed_max=min(flush.queue_max, flush.batch_max * UNFLUSHED_BATCHES),
            on_runnable=self._announce,
        )

    def _owed(self) -> Owed:
        return Owed(
            claims=self.claims,
            leases=self.leases,
            retry_max_s=self.settings.lease.heartbeat_s,
            metrics=self.metrics,
            rng=self.rng,
            on_runnable=self._announce,
        )

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            database=self.database,
            leases=self.leases,
            holdings=self.holdings,
            queues=list(self.queues),
            interval_s=self.settings.lease.heartbeat_s,
            lease_ttl_ms=self.lease_ttl_ms,
            metrics=self.metrics,
            rng=self.rng,
            on_cancelled=self._interrupt,
            on_beat=self._after_beat,
        )

    def _listener(self) -> PokeListener:
        return PokeListener(
            self.notifications,
            self.hub,
            schema=self.database.schema,
            sender=self.identity.boot,
            metrics=self.metrics,
            rng=self.rng,
            on_cancelled=self._interrupt,
        )

    def _upkeep(self) -> list[Service]:
        """The loops that look after the whole database, as far as this process takes part in that."""
        settings, services = self.settings, list[Service]()
        if settings.reaper.enabled:
            services.append(
                Reaper(
                    leases=self.leases,
                    rows_max=settings.reaper.batch_max,
                    crashes_max=settings.steps.max_crashes,
                    lease_ttl_s=settings.lease.ttl_s,
                    heartbeat_s=settings.lease.heartbeat_s,
                    metrics=self.metrics,
                    rng=self.rng,
                    proves_dead=proves_dead,
                    on_runnable=self._announce,
                )
            )
        if settings.collector.enabled:
            store = RetentionStore(self.database)
            services.append(Collector(settings=settings.collector, store=store, metrics=self.metrics, rng=self.rng))
        if settings.reconciler.enabled:
            services.append(
                Reconciler(
                    store=self.claims,
                    interval_s=settings.reconciler.interval_s,
                    metrics=self.metrics,
                    rng=self.rng,
                    on_unheld=self._announce,
                )
            )
        return services
