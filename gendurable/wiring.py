"""The composition root: the one place that names concrete classes and puts an engine together."""

from collections.abc import Callable, Sequence
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
from gendurable.runtime.picker import Picker
from gendurable.runtime.reaper import Reaper
from gendurable.runtime.reconciler import Reconciler
from gendurable.runtime.service import Service
from gendurable.settings import QueueSettings, Settings, require_valid
from gendurable.store.claims import ClaimStore
from gendurable.store.database import ConnectOptions, Database
from gendurable.store.leases import LeaseStore
from gendurable.store.notifications import NotificationStore
from gendurable.store.outcomes import OutcomeStore
from gendurable.store.retention import RetentionStore

UNFLUSHED_CLAIMS = 3
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
    queues = settings.queues_for(registry.queues())
    identity = identify(node=settings.node, version=product_version())
    database = Database(connect_options(settings, application_name=f"gendurable {identity.node}"))
    metrics, hub, holdings, rng = Metrics(), PokeHub(), Holdings(), Random(seed)
    listen_database = None
    if settings.listen.dsn is not None:
        listen_database = Database(connect_options(settings, dsn=settings.listen.dsn.reveal()))
    notifications = NotificationStore(database, listen_database=listen_database)
    emitter = PokeEmitter(notifications, schema=database.schema, sender=identity.boot, metrics=metrics)
    claims = ClaimStore(database, boot=identity.boot)
    leases = LeaseStore(database, identity)

    def announce(queue: str) -> None:
        hub.poke(queue)
        emitter.poke(queue)

    flushers = _flushers(settings, queues, OutcomeStore(database, boot=identity.boot), metrics, rng, announce)
    cut: list[Claim] = []
    executors = {
        queue: _executor(
            queue,
            one,
            settings,
            registry,
            holdings,
            flushers[str(settings.flush.flusher_of(queue))],
            metrics,
            hub,
            cut,
            rng,
        )
        for queue, one in queues.items()
    }
    pickers = {
        queue: Picker(
            queue=queue,
            settings=one,
            lease_ttl_ms=int(settings.lease.ttl_s * 1000),
            store=claims,
            executor=executors[queue],
            holdings=holdings,
            metrics=metrics,
            rng=rng,
            unflushed_max=min(settings.flush.queue_max, settings.flush.batch_max * UNFLUSHED_CLAIMS),
            on_unheld=announce,
        )
        for queue, one in queues.items()
    }

    def interrupt(instance_ids: Sequence[int]) -> None:
        for executor in executors.values():
            executor.cancel(instance_ids)

    heartbeat = Heartbeat(
        database=database,
        leases=leases,
        holdings=holdings,
        queues=list(queues),
        interval_s=settings.lease.heartbeat_s,
        lease_ttl_ms=int(settings.lease.ttl_s * 1000),
        metrics=metrics,
        rng=rng,
        on_cancelled=interrupt,
    )
    listener = None
    if settings.listen.enabled:
        listener = PokeListener(
            notifications,
            hub,
            schema=database.schema,
            sender=identity.boot,
            metrics=metrics,
            rng=rng,
            on_cancelled=interrupt,
        )
    parts = Parts(
        settings=settings,
        database=database,
        listen_database=listen_database,
        registry=registry,
        metrics=metrics,
        hub=hub,
        holdings=holdings,
        client=Client.over(database, hub=hub, metrics=metrics),
        claims=claims,
        leases=leases,
        emitter=emitter,
        listener=listener,
        heartbeat=heartbeat,
        flushers=list(flushers.values()),
        executors=executors,
        pickers=pickers,
        upkeep=_upkeep(settings, database, claims, leases, metrics, rng, announce),
        cut=cut,
        observed=Observed(),
    )
    add_gauges(parts, version=product_version())
    return Engine(parts)


def _flushers(
    settings: Settings,
    queues: dict[str, QueueSettings],
    store: OutcomeStore,
    metrics: Metrics,
    rng: Random,
    announce: Callable[[str], None],
) -> dict[str, Flusher]:
    """One flusher for each route that serves a queue."""
    names = {str(settings.flush.flusher_of(queue)) for queue in queues}
    return {
        name: Flusher(
            store,
            name=name,
            batch_max=settings.flush.batch_max,
            delay_max_s=settings.flush.delay_max_s,
            metrics=metrics,
            rng=rng,
            on_unheld=announce,
        )
        for name in sorted(names)
    }


def _executor(
    queue: str,
    one: QueueSettings,
    settings: Settings,
    registry: Registry,
    holdings: Holdings,
    flusher: Flusher,
    metrics: Metrics,
    hub: PokeHub,
    cut: list[Claim],
    rng: Random,
) -> Executor:
    steps, backoff = settings.steps, settings.backoff

    def backoff_s(attempt: int) -> float:
        return exponential_backoff_s(
            attempt,
            rng=rng,
            base_s=backoff.base_s,
            max_s=backoff.max_s,
            jitter=(1 - backoff.jitter, 1 + backoff.jitter),
        )

    return Executor(
        ExecutorOptions(
            queue=queue, concurrency=one.concurrency, sync_threads=one.sync_threads, timeout_s=steps.timeout_s
        ),
        registry=registry,
        policy=Policy(max_attempts=steps.max_attempts, max_snoozes=steps.max_snoozes, backoff_s=backoff_s),
        holdings=holdings,
        sink=flusher,
        metrics=metrics,
        on_release=cut.append,
        on_continue=hub.poke,
    )


def _upkeep(
    settings: Settings,
    database: Database,
    claims: ClaimStore,
    leases: LeaseStore,
    metrics: Metrics,
    rng: Random,
    announce: Callable[[str], None],
) -> list[Service]:
    """The loops that look after the whole database, as far as this process takes part in that."""
    services: list[Service] = []
    if settings.reaper.enabled:
        services.append(
            Reaper(
                leases=leases,
                rows_max=settings.reaper.batch_max,
                crashes_max=settings.steps.max_crashes,
                lease_ttl_s=settings.lease.ttl_s,
                heartbeat_s=settings.lease.heartbeat_s,
                metrics=metrics,
                rng=rng,
                proves_dead=proves_dead,
                on_runnable=announce,
            )
        )
    if settings.collector.enabled:
        services.append(
            Collector(settings=settings.collector, store=RetentionStore(database), metrics=metrics, rng=rng)
        )
    if settings.reconciler.enabled:
        services.append(
            Reconciler(
                store=claims, interval_s=settings.reconciler.interval_s, metrics=metrics, rng=rng, on_unheld=announce
            )
        )
    return services
