"""Jobs: a function with typed arguments is a machine with one step."""

import inspect
import typing
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from gendurable.errors import DefinitionError, InvalidValueError
from gendurable.machine.context import Context
from gendurable.machine.contract import (
    Definition,
    Request,
    StepDefinition,
    check_attempts,
    check_version,
    struct_fields,
)
from gendurable.model.codec import TypedDecoder, check_name, convert, encode_object
from gendurable.model.durations import duration_ms
from gendurable.model.outcome import Duration

P = ParamSpec("P")
R = TypeVar("R")

JOB_STEP = "run"


class Job(Generic[P, R]):
    """A function that workers run; calling it runs it here and now, as plain code for tests.

    Attributes:
        definition: What the engine runs.
    """

    def __init__(self, function: Callable[P, R], definition: Definition) -> None:
        """Built by :func:`job`."""
        self.function = function
        self.definition = definition
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself; nothing durable happens."""
        return self.function(*args, **kwargs)

    def with_args(self, **arguments: Any) -> Request:
        """The arguments of a new job, checked against the function's signature, for ``insert``.

        Raises:
            InvalidValueError: One is missing, unknown or of another type, or cannot be stored.
        """
        target = self.definition.decoder.target
        known = self.definition.fields or frozenset()
        if not arguments.keys() <= known:
            unknown = arguments.keys() - known
            raise InvalidValueError(
                f"{self.definition.name} has no arguments {', '.join(sorted(unknown))}; it takes"
                f" {', '.join(target.__struct_fields__) or 'none'}",
                path="args",
            )
        args = convert(arguments, target, name=self.definition.name)
        return Request(self.definition, encode_object(args, name="args"))


def job(
    *,
    queue: str = "default",
    name: str | None = None,
    version: int = 1,
    max_attempts: int | None = None,
    timeout: Duration | None = None,
    backoff: Callable[[int], float] | None = None,
) -> Callable[[Callable[P, R]], Job[P, R]]:
    """Turn a function ``(ctx, **arguments)`` into a job.

    Args:
        queue: Where its rows go unless an insert says otherwise.
        name: The registered name; None for the function's.
        version: Rows run on the version they were inserted with while it is registered.
        max_attempts: Tries before it fails; None for the engine's default, 20.
        timeout: Seconds or a timedelta it may run; None for the engine's default, an hour.
        backoff: Seconds to wait after a failed attempt, from the attempt; None for the engine's.

    Raises:
        DefinitionError: The function cannot be a job: no context parameter, ``*args`` or positional-only arguments.
    """

    def build(function: Callable[P, R]) -> Job[P, R]:
        where = f"{function.__module__}.{function.__qualname__}"
        arguments = _argument_struct(function, where)
        step = StepDefinition(
            name=JOB_STEP,
            call=_caller(function, arguments),
            is_async=inspect.iscoroutinefunction(function),
            timeout_s=None if timeout is None else duration_ms(timeout, name="timeout") / 1000,
        )
        definition = Definition(
            name=check_name(name or function.__name__, name="job"),
            version=check_version(version, where),
            queue=check_name(queue, name="queue"),
            initial=JOB_STEP,
            steps={JOB_STEP: step},
            decoder=TypedDecoder(arguments),
            fields=struct_fields(arguments),
            handle=None,
            is_handle_async=False,
            max_attempts=check_attempts(max_attempts, where),
            backoff=backoff,
            is_job=True,
            where=where,
        )
        return Job(function, definition)

    return build


def _argument_struct(function: Callable[..., Any], where: str) -> type[msgspec.Struct]:
    """A struct with one field for each argument after the context."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise DefinitionError(f"{where} takes no context; write it as (ctx, ...)")
    hints = typing.get_type_hints(function)
    fields: list[Any] = []
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise DefinitionError(f"{where} has the argument {parameter}; jobs take named arguments only")
        kind = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, parameter.default))
    return msgspec.defstruct(
        f"{function.__name__}_arguments", fields, kw_only=True, frozen=True, module=function.__module__
    )


def _caller(function: Callable[..., Any], arguments: type[msgspec.Struct]) -> Callable[[Context[Any]], Any]:
    """A step that spreads the decoded arguments over the function's parameters."""
    names = arguments.__struct_fields__
    if not names:
        return function

    def call(ctx: Context[Any]) -> Any:
        state = ctx.state
        return function(ctx, **{name: getattr(state, name) for name in names})

    return call
