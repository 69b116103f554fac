"""Durable execution for Python on PostgreSQL: state machines and jobs whose every step is committed before going on."""

from gendurable.client import Client
from gendurable.machine.context import Context
from gendurable.machine.contract import Machine, Request, step
from gendurable.machine.jobs import Job, job
from gendurable.machine.registry import Handler, Registry, lifespan, middleware
from gendurable.machine.state import State
from gendurable.model.answers import (
    Cancelled,
    CancelRequested,
    Conflict,
    NotCancelled,
    NotRetried,
    Retried,
    StillRunning,
)
from gendurable.model.insert import Duplicate, Inserted
from gendurable.model.instance import Instance, Scope, Status
from gendurable.model.outcome import Cancel, Done, Next, Outcome, Retry, Snooze, Stop
from gendurable.sync_client import SyncClient

__all__ = [
    "Cancel",
    "CancelRequested",
    "Cancelled",
    "Client",
    "Conflict",
    "Context",
    "Done",
    "Duplicate",
    "Handler",
    "Inserted",
    "Instance",
    "Job",
    "Machine",
    "Next",
    "NotCancelled",
    "NotRetried",
    "Outcome",
    "Registry",
    "Request",
    "Retried",
    "Retry",
    "Scope",
    "Snooze",
    "State",
    "Status",
    "StillRunning",
    "Stop",
    "SyncClient",
    "job",
    "lifespan",
    "middleware",
    "step",
]
