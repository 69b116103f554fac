"""Whether settings make sense: each value alone, then the values together."""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

import msgspec

from gendurable.errors import ConfigurationError
from gendurable.model.durations import format_duration
from gendurable.settings.rules import ALL_QUEUES, Duration, Names, Rule, name_problem, queue_problem
from gendurable.settings.sections import QueueSettings, Settings, uncovered_problem


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its key in files and flags, where it sits in `Settings`, and its rule."""

    key: str
    path: tuple[str, ...]
    rule: Rule

    def of(self, settings: msgspec.Struct) -> object:
        """The value of this setting."""
        value: object = settings
        for name in self.path:
            value = getattr(value, name)
        return value


def fields_of(section: type[msgspec.Struct], prefix: str = "") -> dict[str, Field]:
    """All settings of a section and its subsections by key, in the order they are declared.

    The key of a duration has no unit, because its value has one.
    """
    found: dict[str, Field] = {}
    for name, hint in get_type_hints(section, include_extras=True).items():
        if get_origin(hint) is Annotated:
            rule = cast("Rule", get_args(hint)[1])
            key = prefix + (name.removesuffix("_s") if isinstance(rule, Duration) else name)
            found[key] = Field(key=key, path=(name,), rule=rule)
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            for key, inner in fields_of(hint, f"{prefix}{name}.").items():
                found[key] = Field(key=key, path=(name, *inner.path), rule=inner.rule)
    return found


FIELDS: Final[Mapping[str, Field]] = fields_of(Settings)
QUEUE_FIELDS: Final[Mapping[str, Field]] = fields_of(QueueSettings)
SECTIONS: Final[frozenset[str]] = frozenset(key.partition(".")[0] for key in FIELDS if "." in key)


def check_settings(settings: Settings, *, describe: Callable[[str], str] = str) -> list[str]:
    """Find everything that is wrong with settings, whether they were loaded or made in Python.

    Args:
        settings: The settings to judge.
        describe: Turns a key into the text that names it in a problem, for instance with its source.

    Returns:
        One sentence for each problem; empty when there is none.
    """
    problems = [f"{describe(key)} {problem}" for key, problem in _single_problems(settings)]
    # Two wrong values are not worth comparing.
    if not problems:
        problems = [f"{describe(key)} {problem}" for key, problem in _joint_problems(settings)]
        if settings.flush.routes:
            problems += [
                uncovered_problem(queue)
                for queue in settings.served
                if queue != ALL_QUEUES and settings.flush.flusher_of(queue) is None
            ]
    return problems


def require_valid(settings: Settings) -> Settings:
    """Return the settings when nothing is wrong with them.

    Raises:
        ConfigurationError: With every problem that was found.
    """
    if problems := check_settings(settings):
        raise ConfigurationError(problems)
    return settings


def _single_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    for key, field in FIELDS.items():
        if problem := field.rule.check(field.of(settings)):
            yield key, problem
    for name, queue in settings.queues.items():
        if name == ALL_QUEUES:
            yield f"queues.{name}", 'is no queue: use the section "queue" for all'
        elif problem := name_problem(name):
            yield "queues", f"names a queue that {problem}"
        for key, field in QUEUE_FIELDS.items():
            if problem := field.rule.check(field.of(queue)):
                yield f"queues.{name}.{key}", problem
    if settings.serve is not None and (problem := Names().check(settings.serve)):
        yield "queues", problem
    elif settings.serve is not None:
        yield from (("queues", problem) for name in settings.serve if (problem := queue_problem(name)))


def _joint_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    lease, pool, backoff = settings.lease, settings.pool, settings.backoff
    # In milliseconds, since three times 0.1 is more than 0.3 in binary fractions.
    if round(lease.heartbeat_s * 1000) * 3 > round(lease.ttl_s * 1000):
        beat, ttl = format_duration(lease.heartbeat_s), format_duration(lease.ttl_s)
        remedy = "lengthen the ttl or beat faster, so that a lost beat does not cost the lease"
        yield "lease.heartbeat", f"is {beat}, more than a third of lease.ttl ({ttl}): {remedy}"
    if pool.max < pool.min:
        yield "pool.max", f"is {pool.max}, less than pool.min ({pool.min}): raise it"
    if backoff.max_s < backoff.base_s:
        longest, first = format_duration(backoff.max_s), format_duration(backoff.base_s)
        yield "backoff.max", f"is {longest}, less than backoff.base ({first}): raise it"


def build(section: type[Any], values: Mapping[tuple[str, ...], object], prefix: tuple[str, ...] = ()) -> Any:
    """Make a section and its subsections from values by path; what is not given keeps its default."""
    made: dict[str, object] = {}
    for name, hint in get_type_hints(section, include_extras=True).items():
        path = (*prefix, name)
        if path in values:
            made[name] = values[path]
        elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            made[name] = build(hint, values, path)
    return section(**made)
