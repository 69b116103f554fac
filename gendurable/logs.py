"""Logging: one line per event, in one format, with the ids of the running step and without secrets.

Every event, ours or the user's, passes through stdlib logging: `get_logger` hands an `_Event` to the stdlib logger of
that name. In the daemon `configure_logging` puts one handler on the root logger that adds the step's ids, masks
secrets and renders JSON or text. In someone else's process nothing is configured, and their formatter shows the event
as ``lease lost instance_id=7``.
"""

import logging
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TextIO, cast

import structlog


class LogFields(Protocol):
    """Fields for a log line: a mapping, or something that makes them only when a line is written."""

    def items(self) -> Iterable[tuple[str, object]]:
        """The names and values."""
        ...


step_context: ContextVar[LogFields | None] = ContextVar("gendurable_step_context", default=None)
"""Fields of the step that runs in this context (ids, machine, step, attempt, queue, tags); the executor sets it once
per step, and every event logged inside the step carries them. A field the event itself has wins."""

MASK: Final = "***"

_DEPTH_MAX: Final = 8
_SECRET_KEY: Final = re.compile(
    r"(?:^|[_.-])(?:password|passwd|passphrase|pwd|secret|token|api_?key|private_?key|authorization|cookie|credential)s?(?:$|[_.-])",
    re.IGNORECASE,
)
_DSN_KEY: Final = re.compile(r"(?:^|[_.-])(?:dsn|database_url|conninfo)(?:$|[_.-])", re.IGNORECASE)
# People put raw "@", "/" and "?" into passwords, so the password of a Postgres URL reaches to the last "@" of the word:
# masking too much of a broken URL is better than showing half a password. All repeats are bounded, so that no text,
# however it is made, takes long.
_POSTGRES_URL: Final = re.compile(r"(\bpostgres(?:ql)?(?:\+\w+)?://[^\s:@/?#]*):(\S{0,512})@", re.IGNORECASE)
_ANY_URL: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s:@/?#'\"]*):([^\s@/'\"]*)@", re.IGNORECASE)
_QUERY: Final = re.compile(r"\?[\w.]+=[^&?]*(?:&[\w.]+=[^&?]*)*$")
_ASSIGNMENT: Final = re.compile(
    r"(\b\w*(?:password|passwd|pwd|secret|token|api_key)\s*=\s*)('(?:[^'\\]|\\.){0,512}'|\"(?:[^\"\\]|\\.){0,512}\"|['\"]?[^\s&,;)'\"]+)",
    re.IGNORECASE,
)
_CLOSED_FIELDS: Final = frozenset({"event", "level", "timestamp", "logger"})


def mask_dsn(dsn: str) -> str:
    """Show a DSN with its password, also one in the query string or a key=value DSN, as ``***``.

    Args:
        dsn: The whole DSN, well formed or not.

    Returns:
        The same text without any password; the user, hosts, database and other options stay readable.
    """
    query = _QUERY.search(dsn)
    head, tail = (dsn[: query.start()], dsn[query.start() :]) if query else (dsn, "")
    head = re.sub(r"^([\w+.-]+://[^:@/?#]*):(.*)@", rf"\1:{MASK}@", head, flags=re.DOTALL)
    return _ASSIGNMENT.sub(rf"\1{MASK}", head + tail)


def mask_text(text: str) -> str:
    """Mask what looks like a secret inside any text: passwords in URLs and ``password=…`` or ``token=…`` pairs."""
    if "://" in text:
        text = _ANY_URL.sub(rf"\1:{MASK}@", _POSTGRES_URL.sub(rf"\1:{MASK}@", text))
    return _ASSIGNMENT.sub(rf"\1{MASK}", text) if "=" in text else text


class _Event:
    """An event on its way through a stdlib log record; any formatter can print it."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Mapping[str, object]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        shown = _masked_fields(self.fields)
        return " ".join([mask_text(self.name), *(f"{key}={value}" for key, value in shown.items())])


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module; events are ``log.info("lease lost", instance_id=7)``.

    Args:
        name: The module's ``__name__``; levels are set on the stdlib logger of this name.
    """
    return cast(
        "structlog.stdlib.BoundLogger",
        structlog.wrap_logger(
            logging.getLogger(name),
            processors=[structlog.stdlib.filter_by_level, *_TO_STDLIB],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
            cache_logger_on_first_use=True,
        ),
    )


def configure_logging(
    level: str = "info",
    format: Literal["auto", "json", "console"] = "auto",  # noqa: A002 - the setting has this name
    stream: TextIO | None = None,
) -> None:
    """Send every event of this process, from structlog and from stdlib loggers, to one handler in one format.

    Calling it again replaces what the last call set up. Handlers that others put on the root logger stay, except
    those that would print everything a second time on stderr.

    Args:
        level: The lowest level shown: debug, info, warning, error or critical.
        format: ``json`` is one object per line, ``console`` is for people; ``auto`` is console on a terminal.
        stream: Where the lines go; None means stderr.
    """
    target = sys.stderr if stream is None else stream
    is_console = format == "console" or (format == "auto" and target.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(
            colors=target.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=30
        )
        if is_console
        else structlog.processors.JSONRenderer()
    )
    handler = _Handler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.stdlib.ExtraAdder(),
                _unpack_event,
                structlog.contextvars.merge_contextvars,
                _add_step_context,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                # The traceback becomes text before it is masked; it never shows local variables.
                structlog.processors.format_exc_info,
                _mask_event,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    for other in root.handlers[:]:
        prints_twice = type(other) is logging.StreamHandler and other.stream in (sys.stderr, sys.__stderr__)
        if isinstance(other, _Handler) or (prints_twice and stream is None):
            root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *_TO_STDLIB],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        context_class=dict,
        cache_logger_on_first_use=False,
    )


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second call of `configure_logging` finds it."""


def _pack_event(
    _logger: object, _method: str, event_dict: MutableMapping[str, Any]
) -> tuple[tuple[_Event], dict[str, Any]]:
    """Hand the event to stdlib logging; only what logging itself understands travels as keywords."""
    kwargs = {key: event_dict.pop(key) for key in ("exc_info", "stack_info") if key in event_dict}
    name = str(event_dict.pop("event", ""))
    return (_Event(name, event_dict),), kwargs


_TO_STDLIB: Final[list[Any]] = [structlog.stdlib.PositionalArgumentsFormatter(), _pack_event]


def _unpack_event(_logger: object, _method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Take an event apart again that came through `_pack_event`."""
    record: logging.LogRecord = event_dict["_record"]
    # Another handler's formatter may have left these on the record; nobody's extras can have these names.
    for key in ("message", "asctime"):
        event_dict.pop(key, None)
    if isinstance(record.msg, _Event):
        event_dict["event"] = record.msg.name
        for key, value in record.msg.fields.items():
            event_dict[f"{key}_" if key in _CLOSED_FIELDS else key] = value
    return event_dict


def _add_step_context(_logger: object, _method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    fields = step_context.get()
    for key, value in fields.items() if fields is not None else ():
        event_dict.setdefault(key, value)
    return event_dict


def _mask_event(_logger: object, _method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return _masked_fields(event_dict)


def _masked_fields(fields: Mapping[str, object]) -> dict[str, Any]:
    return {key: _masked(key, value, 0) for key, value in fields.items()}


def _masked(key: str, value: object, depth: int) -> object:
    """The value as plain JSON-able data without secrets; objects become their text, since it may hold some."""
    # Numbers under a secret's name are counts, such as token_count.
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET_KEY.search(key):
        return MASK
    if isinstance(value, Mapping) and depth < _DEPTH_MAX:
        return {str(name): _masked(str(name), item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEPTH_MAX:
        return [_masked(key, item, depth + 1) for item in value]
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    return mask_dsn(text) if _DSN_KEY.search(key) else mask_text(text)
