"""Configuration: what can be set, its defaults, and loading it from flags, environment and file."""

from gendurable.logs import mask_dsn
from gendurable.settings.checks import check_settings, require_valid
from gendurable.settings.loading import LoadedSettings, explain, load_settings
from gendurable.settings.secret import Secret
from gendurable.settings.sections import (
    BackoffSettings,
    CollectorSettings,
    EmbeddedSettings,
    FlushSettings,
    LeaseSettings,
    ListenSettings,
    LogSettings,
    PoolSettings,
    ProcessSettings,
    QueueSettings,
    ReaperSettings,
    ReconcilerSettings,
    Settings,
    StepSettings,
)

__all__ = [
    "BackoffSettings",
    "CollectorSettings",
    "EmbeddedSettings",
    "FlushSettings",
    "LeaseSettings",
    "ListenSettings",
    "LoadedSettings",
    "LogSettings",
    "PoolSettings",
    "ProcessSettings",
    "QueueSettings",
    "ReaperSettings",
    "ReconcilerSettings",
    "Secret",
    "Settings",
    "StepSettings",
    "check_settings",
    "explain",
    "load_settings",
    "mask_dsn",
    "require_valid",
]
