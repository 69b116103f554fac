"""Where settings come from: flags, the environment, ``gendurable.toml`` and the environment's Postgres variables.

Each reader turns its source into a `Layer`: raw values by key, each with the text that names its source. Keys that
nobody knows, unreadable files and misplaced tables become problems in the layer; values are judged later.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from gendurable.settings.checks import FIELDS, QUEUE_FIELDS, SECTIONS
from gendurable.settings.rules import short

ENV_PREFIX: Final = "GENDURABLE_"
CONFIG_FILE: Final = "gendurable.toml"
SECRET_FILE_BYTES_MAX: Final = 65_536
QUEUES: Final = "queues"

# Keys that are switches by themselves: "reaper = false" means "reaper.enabled = false".
_SHORTHANDS: Final = {name: f"{name}.enabled" for name in sorted(SECTIONS) if f"{name}.enabled" in FIELDS}
_ENV_KEYS: Final = {
    key.replace(".", "_").upper(): target for key, target in [*((key, key) for key in FIELDS), *_SHORTHANDS.items()]
} | {"QUEUES": QUEUES}
_NOT_SETTINGS: Final = frozenset({"GENDURABLE_CONFIG", "GENDURABLE_POSTGRES_BIN", "GENDURABLE_SCXML_IRP"})
# Kubernetes sets these in every container next to a Service whose name starts with "gendurable".
_SERVICE_LINKS: Final = re.compile(
    r"GENDURABLE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Source(msgspec.Struct, frozen=True):
    """Where a value came from: its rank (0 is the strongest) and its name for people."""

    rank: int
    text: str


FLAG: Final = 0
ENVIRONMENT: Final = 1
FILE: Final = 2
POSTGRES_ENVIRONMENT: Final = 3
DEFAULT: Final = Source(4, "default")


class Layer(msgspec.Struct):
    """What one source says."""

    rank: int
    values: dict[str, tuple[object, Source]] = msgspec.field(default_factory=dict)
    queues: dict[str, Source] = msgspec.field(default_factory=dict)
    """The queues with settings of their own, in order."""
    problems: list[str] = msgspec.field(default_factory=list)

    def put(self, key: str, raw: object, source_text: str) -> None:
        """Keep one raw value with the name of its source."""
        self.values[key] = (raw, Source(self.rank, source_text))


def read_flags(flags: Mapping[str, object], names: Mapping[str, str]) -> Layer:
    """Read flags by key; None means the flag was not given."""
    layer = Layer(FLAG)
    for key, raw in flags.items():
        target = _SHORTHANDS.get(key, key)
        if raw is None:
            continue
        if target not in FIELDS and target != QUEUES:
            layer.problems.append(f"flag {key} is unknown{_did_you_mean(key, FIELDS)}")
        layer.put(target, raw, f"flag {names.get(key, key)}")
    return layer


def read_environment(environ: Mapping[str, str]) -> Layer:
    """Read ``GENDURABLE_*``, each also as ``…_FILE``; an empty variable counts as not set."""
    layer = Layer(ENVIRONMENT)
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or name in _NOT_SETTINGS or not environ[name]:
            continue
        short_name = name.removeprefix(ENV_PREFIX).replace("__", "_")
        key = _ENV_KEYS.get(short_name)
        is_file = key is None and short_name.endswith("_FILE")
        if is_file:
            key = _ENV_KEYS.get(short_name.removesuffix("_FILE"))
        if _SERVICE_LINKS.fullmatch(name) and (key is None or "://" in environ[name]):
            continue
        if key is None:
            known = [ENV_PREFIX + each for each in _ENV_KEYS]
            layer.problems.append(f"{name} is unknown{_did_you_mean(name, known)}")
        elif key in layer.values:
            layer.problems.append(f"{name} and {layer.values[key][1].text} set the same thing: remove one")
        elif not is_file:
            layer.put(key, environ[name], name)
        else:
            _put_file_content(layer, key, name, Path(environ[name]))
    return layer


def read_toml(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Layer:
    """Read the configuration file: the given one, that of ``GENDURABLE_CONFIG``, or the one in this folder, if any."""
    layer = Layer(FILE)
    if explicit is None and environ.get("GENDURABLE_CONFIG"):
        explicit = Path(environ["GENDURABLE_CONFIG"])
    path = cwd / (explicit or CONFIG_FILE)
    if explicit is None and not path.is_file():
        return layer
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        layer.problems.append(f"{path} cannot be read: {error.strerror or error}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        layer.problems.append(f"{path} is no TOML: {error}")
    else:
        _put_table(layer, table, "", str(path))
    return layer


def read_postgres_environment(environ: Mapping[str, str]) -> Layer:
    """Read ``DATABASE_URL``, else ``PG*``, as the DSN."""
    layer = Layer(POSTGRES_ENVIRONMENT)
    if environ.get("DATABASE_URL"):
        layer.put("dsn", environ["DATABASE_URL"], "DATABASE_URL")
        return layer
    options = {
        "PGHOST": "host",
        "PGPORT": "port",
        "PGUSER": "user",
        "PGPASSWORD": "password",
        "PGDATABASE": "dbname",
        "PGSSLMODE": "sslmode",
        "PGPASSFILE": "passfile",
    }
    found = {name: environ[name] for name in options if environ.get(name)}
    # A password or an option alone does not say that somebody means a Postgres.
    if found.keys() & {"PGHOST", "PGDATABASE", "PGUSER"}:
        # As a query, a host may also be the folder of a socket or a list.
        query = "&".join(f"{options[name]}={quote(value, safe='/')}" for name, value in found.items())
        layer.put("dsn", f"postgresql://?{query}", ", ".join(found))
    return layer


def _put_file_content(layer: Layer, key: str, name: str, path: Path) -> None:
    try:
        with path.open("rb") as file:
            content = file.read(SECRET_FILE_BYTES_MAX + 1)
        if len(content) > SECRET_FILE_BYTES_MAX:
            layer.problems.append(f"{name}: {path} is larger than {SECRET_FILE_BYTES_MAX:,} bytes")
        else:
            layer.put(key, content.decode().strip("\r\n"), f"{name} ({path})")
    except OSError as error:
        layer.problems.append(f"{name}: {path} cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        layer.problems.append(f"{name}: {path} is no UTF-8 text")


def _put_table(layer: Layer, table: Mapping[str, object], prefix: str, path: str) -> None:
    for name, raw in table.items():
        key = prefix + name
        if key == QUEUES:
            _put_queues(layer, raw, path)
        elif key in FIELDS:
            layer.put(key, raw, path)
        elif not prefix and name in SECTIONS:
            if isinstance(raw, Mapping):
                _put_table(layer, raw, f"{name}.", path)
            elif name in _SHORTHANDS and isinstance(raw, bool):
                layer.put(_SHORTHANDS[name], raw, path)
            else:
                layer.problems.append(f"{name} (from {path}) is {short(raw)}, which is no table: write [{name}]")
        else:
            layer.problems.append(f"{key} (from {path}) is unknown{_did_you_mean(key, [*FIELDS, *SECTIONS, QUEUES])}")


def _put_queues(layer: Layer, raw: object, path: str) -> None:
    """Read ``queues``: a list of names, or a table of queues with their settings or their concurrency."""
    if not isinstance(raw, Mapping):
        layer.put(QUEUES, raw, path)
        return
    for queue, settings in raw.items():
        layer.queues[queue] = Source(layer.rank, path)
        if not isinstance(settings, Mapping):
            layer.put(f"{QUEUES}.{queue}.concurrency", settings, path)
            continue
        for name, value in settings.items():
            if name in QUEUE_FIELDS:
                layer.put(f"{QUEUES}.{queue}.{name}", value, path)
            else:
                layer.problems.append(
                    f"{QUEUES}.{queue}.{name} (from {path}) is unknown{_did_you_mean(name, QUEUE_FIELDS)}"
                )


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name, with the nearest known one if any is near."""
    candidates = list(known)
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    if not near:
        # "heartbeat" alone is a fair guess at "lease.heartbeat".
        near = [each for each in candidates if each.rpartition(".")[2] == name.rpartition(".")[2]][:1]
    return f": did you mean {near[0]}?" if near else ""
