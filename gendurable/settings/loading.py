"""Loading: the strongest source wins for each value, and every problem is reported at once.

Flags beat ``GENDURABLE_*``, which beats ``gendurable.toml``, which beats the defaults; for the DSN, ``DATABASE_URL``
and ``PG*`` come last. A setting of one queue beats the setting for all queues, wherever either stands.
"""

import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gendurable.errors import ConfigurationError
from gendurable.settings.checks import FIELDS, QUEUE_FIELDS, Field, build, check_settings
from gendurable.settings.rules import NO_QUEUES, RefusedError, name_list
from gendurable.settings.sections import QueueSettings, Settings
from gendurable.settings.sources import (
    DEFAULT,
    QUEUES,
    Layer,
    Source,
    read_environment,
    read_flags,
    read_postgres_environment,
    read_toml,
)


class LoadedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with the source of each value."""

    settings: Settings
    sources: Mapping[str, Source]
    """Key to source, only for what is not a default; ``queues`` says where the list of queues came from."""

    def source_of(self, key: str) -> str:
        """Name the source of a value: a flag, a variable, a file or ``default``."""
        return self.sources.get(key, DEFAULT).text


def load_settings(
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    toml_path: Path | None,
    cwd: Path,
    flag_names: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Load and check all settings; nothing but files is touched.

    Args:
        flags: Values by key, such as ``lease.ttl``; None means the flag was not given.
        environ: The environment; only ``GENDURABLE_*``, ``DATABASE_URL`` and ``PG*`` are looked at.
        toml_path: The file named by ``--config``; None looks at ``GENDURABLE_CONFIG`` and then in ``cwd``.
        cwd: The folder that ``gendurable.toml`` is looked for in.
        flag_names: How the flag of a key is written, for messages and sources.

    Raises:
        ConfigurationError: With every problem that was found, of all sources.
    """
    layers = [
        read_flags(flags, flag_names or {}),
        read_environment(environ),
        read_toml(toml_path, environ, cwd),
        read_postgres_environment(environ),
    ]
    return _Loading(layers).run()


def explain(loaded: LoadedSettings) -> list[tuple[str, str, str]]:
    """List every setting for people: key, value without secrets, source; in the order of the documentation."""
    settings = loaded.settings
    rows = [(QUEUES, _shown_queues(settings), loaded.source_of(QUEUES))]
    rows += [(key, field.rule.show(field.of(settings)), loaded.source_of(key)) for key, field in FIELDS.items()]
    for queue, tuned in settings.queues.items():
        for name, field in QUEUE_FIELDS.items():
            key = f"{QUEUES}.{queue}.{name}"
            # What a queue has from the section for all queues is shown there.
            if key in loaded.sources:
                rows.append((key, field.rule.show(field.of(tuned)), loaded.source_of(key)))
    return sorted(rows, key=lambda row: "." in row[0])


def _shown_queues(settings: Settings) -> str:
    if settings.served == ("*",):
        return "those of the loaded machines, and default"
    return ", ".join(settings.served) or NO_QUEUES


class _Loading:
    """One run of `load_settings`."""

    def __init__(self, layers: list[Layer]) -> None:
        self._layers = layers
        self._problems = [problem for layer in layers for problem in layer.problems]
        self._sources: dict[str, Source] = {}
        self._unread: set[str] = set()

    def run(self) -> LoadedSettings:
        self._settle_embedded_or_dsn()
        serve = self._serve()
        values: dict[tuple[str, ...], object] = {("serve",): serve}
        for key, field in FIELDS.items():
            self._parse_into(values, field.path, key, field)
        self._default_node(values)
        queue_values = {path[1:]: value for path, value in values.items() if path[0] == "queue"}
        queue: QueueSettings = build(QueueSettings, queue_values)
        values["queues",] = {name: self._queue(name, queue) for name in self._tuned_queues()}
        settings: Settings = build(Settings, values)
        self._problems += check_settings(settings, describe=self._describe, unread=self._unread, own=self._sources)
        if self._problems:
            raise ConfigurationError(self._problems)
        return LoadedSettings(settings=settings, sources=self._sources)

    def _find(self, key: str) -> tuple[object, Source] | None:
        return next((layer.values[key] for layer in self._layers if key in layer.values), None)

    def _parse_into(self, values: dict[tuple[str, ...], object], path: tuple[str, ...], key: str, field: Field) -> None:
        """Parse the strongest value of a key; a bad one becomes a problem and leaves the default."""
        if (found := self._find(key)) is None:
            return
        raw, self._sources[key] = found
        try:
            values[path] = field.rule.parse(raw)
        except RefusedError as error:
            self._problems.append(f"{self._describe(key)} {error}")
            self._unread.add(key)

    def _settle_embedded_or_dsn(self) -> None:
        """The stronger of the two wins; of equally strong ones neither can be guessed."""
        dsn, embedded = self._find("dsn"), self._find("embedded.enabled")
        if dsn is None or embedded is None:
            return
        try:
            is_embedded = FIELDS["embedded.enabled"].rule.parse(embedded[0])
        except RefusedError:
            return
        if is_embedded and dsn[1].rank == embedded[1].rank:
            self._problems.append(f"dsn (from {dsn[1].text}) and embedded (from {embedded[1].text}) exclude each other")
        elif is_embedded:
            weaker = "dsn" if dsn[1].rank > embedded[1].rank else "embedded.enabled"
            for layer in self._layers:
                layer.values.pop(weaker, None)

    def _serve(self) -> tuple[str, ...] | None:
        """The list of queues to serve; ``name=20`` in it also sets a concurrency, as strong as the list itself."""
        if (found := self._find(QUEUES)) is None:
            # Queues with a table of their own are then the ones to serve.
            for source in (source for layer in self._layers for source in layer.queues.values()):
                self._sources.setdefault(QUEUES, source)
            return None
        raw, source = found
        self._sources[QUEUES] = source
        try:
            items = name_list(raw)
        except RefusedError as error:
            self._problems.append(f"{self._describe(QUEUES)} {error}")
            self._unread.add(QUEUES)
            return None
        if items == [NO_QUEUES]:
            return ()
        if NO_QUEUES in items:
            self._problems.append(f"{self._describe(QUEUES)} names {NO_QUEUES!r} beside others: write it alone")
        layer = next(layer for layer in self._layers if layer.rank == source.rank)
        names: dict[str, None] = {}
        for item in items:
            name, equals, concurrency = (part.strip() for part in item.partition("="))
            names[name] = None
            if equals:
                layer.put(f"{QUEUES}.{name}.concurrency", concurrency, source.text)
                layer.queues[name] = source
        return tuple(names)

    def _default_node(self, values: dict[tuple[str, ...], object]) -> None:
        if ("node",) not in values:
            values["node",] = socket.gethostname() or None
            self._sources.setdefault("node", Source(DEFAULT.rank, "default (host name)"))

    def _tuned_queues(self) -> list[str]:
        return list(dict.fromkeys(name for layer in self._layers for name in layer.queues))

    def _queue(self, name: str, for_all: QueueSettings) -> QueueSettings:
        own: dict[tuple[str, ...], object] = {}
        for key, field in QUEUE_FIELDS.items():
            self._parse_into(own, field.path, f"{QUEUES}.{name}.{key}", field)
        return msgspec.structs.replace(for_all, **{path[0]: value for path, value in own.items()})

    def _describe(self, key: str) -> str:
        source = self._sources.get(key)
        return f"{key} (from {source.text})" if source else key
