"""Whether settings make sense: each value alone, then the values together."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

import msgspec

from gendurable.errors import ConfigurationError
from gendurable.model.durations import format_duration
from gendurable.settings.rules import ALL_QUEUES, Duration, Names, Rule, name_problem, queue_problem, short
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
SECTION_TYPES: Final[Mapping[str, type[msgspec.Struct]]] = {
    name: hint
    for name, hint in get_type_hints(Settings).items()
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct)
}
SECTIONS: Final[frozenset[str]] = frozenset(SECTION_TYPES)


def check_settings(
    settings: Settings,
    *,
    describe: Callable[[str], str] = str,
    unread: Collection[str] = (),
    own: Collection[str] | None = None,
) -> list[str]:
    """Find everything that is wrong with settings, whether they were loaded or made in Python.

    Args:
        settings: The settings to judge.
        describe: Turns a key into the text that names it in a problem, for instance with its source.
        unread: Keys whose value could not be read: the default that stands there was not meant and is not compared.
        own: The keys that were given. What a queue has from the section for all queues is judged there and only there;
            None judges every queue by itself.

    Returns:
        One sentence for each problem; empty when there is none.
    """
    single = list(_single_problems(settings, own))
    # A wrong value is not worth comparing, but that is no reason to be silent about the others.
    wrong = {*unread, *(key for key, _ in single)}
    problems = [f"{describe(key)} {problem}" for key, problem in [*single, *_joint_problems(settings, wrong)]]
    if wrong.isdisjoint({"queues", "flush", "flush.routes"}) and settings.flush.routes:
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


def _single_problems(settings: Settings, own: Collection[str] | None) -> Iterator[tuple[str, str]]:
    for key, field in FIELDS.items():
        if len(field.path) == 1 and (problem := field.rule.check(field.of(settings))):
            yield key, problem
    for name, section in SECTION_TYPES.items():
        yield from _section_problems(name, section, getattr(settings, name))
    queues: object = settings.queues
    if not isinstance(queues, Mapping):
        yield "queues", f"is {short(queues)}: give a mapping from names to QueueSettings(...)"
    else:
        for name, queue in queues.items():
            if name == ALL_QUEUES:
                yield f"queues.{name}", 'is no queue: use the section "queue" for all'
            elif problem := name_problem(name):
                yield "queues", f"names a queue that {problem}"
            for key, problem in _section_problems(f"queues.{name}", QueueSettings, queue):
                if own is None or key in own:
                    yield key, problem
    if settings.serve is not None and (problem := Names().check(settings.serve)):
        yield "queues", problem
    elif settings.serve is not None:
        yield from (("queues", problem) for name in settings.serve if (problem := queue_problem(name)))


def _section_problems(name: str, section: type[msgspec.Struct], value: object) -> Iterator[tuple[str, str]]:
    if not isinstance(value, section):
        yield name, f"is {short(value)}: give {section.__name__}(...)"
        return
    for key, field in fields_of(section).items():
        if problem := field.rule.check(field.of(value)):
            yield f"{name}.{key}", problem


def _joint_problems(settings: Settings, wrong: Collection[str]) -> Iterator[tuple[str, str]]:
    """What does not fit together, as far as none of the values compared is ``wrong`` by itself."""

    def are_fine(section: str, *names: str) -> bool:
        return not any(key in wrong for key in (section, *(f"{section}.{name}" for name in names)))

    lease, pool, backoff = settings.lease, settings.pool, settings.backoff
    # In milliseconds, since three times 0.1 is more than 0.3 in binary fractions.
    if are_fine("lease", "heartbeat", "ttl") and round(lease.heartbeat_s * 1000) * 3 > round(lease.ttl_s * 1000):
        beat, ttl = format_duration(lease.heartbeat_s), format_duration(lease.ttl_s)
        remedy = "lengthen the ttl or beat faster, so that a lost beat does not cost the lease"
        yield "lease.heartbeat", f"is {beat}, more than a third of lease.ttl ({ttl}): {remedy}"
    if are_fine("pool", "min", "max") and pool.max < pool.min:
        yield "pool.max", f"is {pool.max}, less than pool.min ({pool.min}): raise it"
    if are_fine("backoff", "base", "max") and backoff.max_s < backoff.base_s:
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
