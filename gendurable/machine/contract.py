"""What users write: machines with named steps."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, overload

import msgspec

from gendurable.errors import DefinitionError, InvalidValueError, StateDecodeError
from gendurable.machine.context import Context
from gendurable.machine.state import StateT
from gendurable.machine.targets import literal_targets
from gendurable.model.codec import TypedDecoder, check_name, convert, encode_object
from gendurable.model.durations import duration_ms
from gendurable.model.insert import InsertOptions
from gendurable.model.outcome import STEP_MARK, Duration, Outcome

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOptions:
    """What ``@gd.step`` was told."""

    name: str
    is_initial: bool
    timeout_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDefinition:
    """One step, ready to be called.

    Attributes:
        name: How rows call it.
        call: The step itself, bound to its machine; takes the context.
        is_async: False for a plain function, which runs in a thread.
        timeout_s: Seconds it may run; None for the engine's default.
    """

    name: str
    call: Callable[[Context[Any]], Any]
    is_async: bool
    timeout_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Definition:
    """A machine or a job as the engine runs it; one for each (name, version).

    Attributes:
        name: The registered name, stored with every row.
        version: Rows keep running on the version they started with.
        queue: Where its rows go unless an insert says otherwise.
        initial: The step that starts.
        steps: All steps by name.
        decoder: Decodes the stored state.
        fields: Field names of the stored state that this version knows; None when it takes any.
        handle: The error handler, or None for the default policy.
        is_handle_async: Whether ``handle`` is a coroutine function.
        max_attempts: Tries of one step; None for the engine's default.
        backoff: Seconds to wait after a failed attempt; None for the engine's default.
        is_job: True when a step's answer is a result and not an outcome.
        where: The module and name, for messages.
    """

    name: str
    version: int
    queue: str
    initial: str
    steps: Mapping[str, StepDefinition]
    decoder: TypedDecoder
    fields: frozenset[str] | None
    handle: Callable[..., Any] | None
    is_handle_async: bool
    max_attempts: int | None
    backoff: Callable[[int], float] | None
    is_job: bool
    where: str

    def encode_state(self, state: object) -> str:
        """Encode a new state and check it against the declared type, so that a wrong one fails where it is made.

        Raises:
            InvalidValueError: It cannot be stored, or is not of the declared type.
        """
        text = encode_object(state, name="state")
        try:
            self.decoder.decode(text, name="state")
        except StateDecodeError as error:
            raise InvalidValueError(f"the new state of {self.name} is refused: {error}", path="state") from error
        return text


class Request(msgspec.Struct, frozen=True):
    """What ``insert`` takes: a machine or job with its state, not yet written anywhere.

    Attributes:
        definition: The machine or job.
        state: Its state, JSON text, checked.
        options: Options of this row alone; None for those of the call.
    """

    definition: Definition
    state: str
    options: InsertOptions | None = None

    def with_options(self, **options: Any) -> "Request":
        """The same row with options of its own; see the table of insert options for their names.

        Raises:
            InvalidValueError: An option is unknown or its value cannot be used.
        """
        return Request(self.definition, self.state, InsertOptions.of(options))


@overload
def step(function: F, /) -> F: ...


@overload
def step(*, initial: bool = False, timeout: Duration | None = None, name: str | None = None) -> Callable[[F], F]: ...


def step(
    function: F | None = None, /, *, initial: bool = False, timeout: Duration | None = None, name: str | None = None
) -> F | Callable[[F], F]:
    """Mark a method of a machine as a step.

    Args:
        function: The method: ``async def`` runs on the loop, a plain ``def`` in a thread.
        initial: Start here; otherwise the first declared step starts.
        timeout: Seconds or a timedelta it may run; None for the engine's default of an hour.
        name: How rows call it; None for the method's name. Keep it when you rename the method.

    Raises:
        DefinitionError: It does not decorate a function.
        InvalidValueError: The timeout or the name cannot be used.
    """

    def mark(target: F) -> F:
        if not inspect.isfunction(target):
            raise DefinitionError(f"@gd.step decorates a method, not {target!r}")
        options = StepOptions(
            name=check_name(name or target.__name__, name="step"),
            is_initial=initial,
            timeout_s=None if timeout is None else duration_ms(timeout, name="timeout") / 1000,
        )
        setattr(target, STEP_MARK, options)
        return target

    return mark if function is None else mark(function)


class Machine(Generic[StateT]):
    """A durable state machine: subclass it, name its state, declare its steps.

    Class options: ``queue`` (default ``default``), ``name`` (default the class's name), ``version`` (default 1),
    ``max_attempts`` (default the engine's, 20) and ``backoff``, a function from the attempt to seconds.
    """

    definition: ClassVar[Definition]

    def __init_subclass__(
        cls,
        *,
        queue: str = "default",
        name: str | None = None,
        version: int = 1,
        max_attempts: int | None = None,
        backoff: Callable[[int], float] | None = None,
        **unknown: object,
    ) -> None:
        """Read the declaration and check it, so that mistakes show when the module is imported.

        Raises:
            DefinitionError: An option is unknown, there is no step, or a step names a target that does not exist.
        """
        super().__init_subclass__()
        where = f"{cls.__module__}.{cls.__qualname__}"
        if unknown:
            raise DefinitionError(
                f"{where} has unknown options {', '.join(sorted(unknown))}; known are queue, name, version,"
                " max_attempts and backoff"
            )
        cls.definition = _define(
            cls, where, queue=queue, name=name, version=version, max_attempts=max_attempts, backoff=backoff
        )

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: an attribute would be shared by every instance in this process and lost with it."""
        raise AttributeError(
            f"{type(self).__name__}.{name} cannot be set: a machine holds nothing between steps; return a new state"
            " instead"
        )

    @classmethod
    def with_state(cls, state: StateT | Mapping[str, Any] | None = None, /, **fields: Any) -> Request:
        """A new instance's state, for ``insert``.

        Args:
            state: A whole state, or a mapping for machines with a plain ``dict``.
            **fields: Its fields, instead.

        Raises:
            InvalidValueError: A field is missing, unknown or of another type, or the value cannot be stored.
        """
        definition = cls.definition
        given: Any = fields if state is None else state
        if state is not None and fields:
            raise InvalidValueError("with_state takes a state or its fields, not both", path="state")
        # A plain dict is looked at first, because asking an abstract class costs as much as the conversion.
        if type(given) is dict or isinstance(given, Mapping):
            if definition.fields is not None and not given.keys() <= definition.fields:
                unknown = given.keys() - definition.fields
                raise InvalidValueError(
                    f"the state of {definition.name} has no fields {', '.join(sorted(map(str, unknown)))}; it has"
                    f" {', '.join(sorted(definition.fields or ()))}",
                    path="state",
                )
            checked = convert(given, definition.decoder.target, name=definition.name)
            return Request(definition, encode_object(checked, name="state"))
        return Request(definition, definition.encode_state(given))


def _define(
    cls: type[Machine[Any]],
    where: str,
    *,
    queue: str,
    name: str | None,
    version: int,
    max_attempts: int | None,
    backoff: Callable[[int], float] | None,
) -> Definition:
    machine = cls()
    steps, initial = _collect_steps(cls, machine, where)
    for source, target in literal_targets(cls):
        if target not in steps:
            raise DefinitionError(
                f"{where}.{source} goes to step {target!r}, which does not exist; known: {', '.join(steps)}"
            )
    state_type = _state_type(cls)
    handle = getattr(machine, "handle", None)
    return Definition(
        name=check_name(name or cls.__name__, name="machine"),
        version=check_version(version, where),
        queue=check_name(queue, name="queue"),
        initial=initial,
        steps=steps,
        decoder=TypedDecoder(state_type),
        fields=struct_fields(state_type),
        handle=handle,
        is_handle_async=inspect.iscoroutinefunction(handle),
        max_attempts=check_attempts(max_attempts, where),
        backoff=backoff,
        is_job=False,
        where=where,
    )


def _collect_steps(cls: type[Machine[Any]], machine: Machine[Any], where: str) -> tuple[dict[str, StepDefinition], str]:
    """Find the steps in the order of their declaration, base classes first."""
    found: dict[str, tuple[StepOptions, str]] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            options = getattr(value, STEP_MARK, None)
            if isinstance(options, StepOptions):
                other = found.get(options.name)
                if other is not None and other[1] != attribute:
                    raise DefinitionError(f"{where} has two steps called {options.name!r}: {other[1]} and {attribute}")
                found[options.name] = (options, attribute)
    if not found:
        raise DefinitionError(f"{where} has no step; decorate a method with @gd.step")
    starts = [options.name for options, _ in found.values() if options.is_initial]
    if len(starts) > 1:
        raise DefinitionError(f"{where} has {len(starts)} initial steps ({', '.join(starts)}); only one can start")
    steps = {}
    for step_name, (options, attribute) in found.items():
        call = getattr(machine, attribute)
        steps[step_name] = StepDefinition(
            name=step_name, call=call, is_async=inspect.iscoroutinefunction(call), timeout_s=options.timeout_s
        )
    return steps, starts[0] if starts else next(iter(found))


def _state_type(cls: type[Machine[Any]]) -> Any:
    """The argument of ``Machine[...]``, looked up along the bases; a plain dict when there is none."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            if typing.get_origin(generic) is Machine:
                argument = typing.get_args(generic)[0]
                if not isinstance(argument, TypeVar):
                    return argument
    return dict


def struct_fields(target: Any) -> frozenset[str] | None:
    """The stored names of a struct's fields; None for types that take any."""
    if isinstance(target, type) and issubclass(target, msgspec.Struct):
        return frozenset(target.__struct_encode_fields__)
    return None


def check_version(version: int, where: str) -> int:
    """Return a version that is a positive whole number, or raise DefinitionError."""
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**31:
        raise DefinitionError(f"{where} has version {version!r}; use a whole number from 1")
    return version


def check_attempts(max_attempts: int | None, where: str) -> int | None:
    """Return a number of attempts that is positive, or None; else raise DefinitionError."""
    if max_attempts is not None and (
        isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or max_attempts < 1
    ):
        raise DefinitionError(f"{where} has max_attempts {max_attempts!r}; use a whole number from 1")
    return max_attempts


ErrorHandler = Callable[[Exception, Context[Any]], Outcome]
