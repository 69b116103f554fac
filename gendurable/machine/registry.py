"""Which machines, lifespans and middleware this process has."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from gendurable.errors import DiscoveryError
from gendurable.machine.context import Context
from gendurable.machine.contract import Definition, Machine
from gendurable.machine.jobs import Job

Handler: TypeAlias = Callable[[Context[Any]], Awaitable[Any]]
MiddlewareFunction: TypeAlias = Callable[[Context[Any], Handler], Awaitable[Any]]
LifespanFunction: TypeAlias = Callable[[], AsyncIterator[Mapping[str, Any]]]
Registrable: TypeAlias = "type[Machine[Any]] | Job[..., Any] | Lifespan | Middleware"
M = TypeVar("M", bound=MiddlewareFunction)


class Lifespan:
    """Opens what steps need before the process is ready and closes it after the drain."""

    def __init__(self, function: LifespanFunction) -> None:
        """Built by :func:`lifespan`."""
        self.function = function
        self.name = f"{function.__module__}.{getattr(function, '__qualname__', function)}"

    def open(self) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """The context manager around the process's life."""
        return asynccontextmanager(self.function)()


class Middleware:
    """Wraps every step of the process."""

    def __init__(self, function: MiddlewareFunction) -> None:
        """Built by :func:`middleware`."""
        self.function = function
        self.name = f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def lifespan(function: LifespanFunction) -> Lifespan:
    """Decorate an async generator that yields a mapping of resources once; see ``ctx.resources``."""
    return Lifespan(function)


def middleware(function: MiddlewareFunction) -> Middleware:
    """Decorate ``async def (ctx, call_next)``; it returns what ``await call_next(ctx)`` returned, or another answer."""
    return Middleware(function)


class Registry:
    """Machines and jobs by name and version."""

    def __init__(self, items: Iterable[Registrable] = ()) -> None:
        """Register the items given; more may be added until the engine starts."""
        self._definitions: dict[tuple[str, int], Definition] = {}
        self._lifespans: dict[str, Lifespan] = {}
        self._middleware: dict[str, Middleware] = {}
        for item in items:
            self.add(item)

    def add(self, item: Registrable) -> None:
        """Register one machine, job, lifespan or middleware; the same one twice is fine.

        Raises:
            DiscoveryError: Another machine has this name and version, or it is none of these.
        """
        if isinstance(item, Lifespan):
            self._lifespans[item.name] = item
        elif isinstance(item, Middleware):
            self._middleware[item.name] = item
        elif isinstance(item, Job) or is_machine(item):
            self._add_definition(item.definition)
        else:
            raise DiscoveryError(f"{item!r} is not a machine, a job, a lifespan or a middleware")

    def _add_definition(self, definition: Definition) -> None:
        key = (definition.name, definition.version)
        other = self._definitions.setdefault(key, definition)
        if other is not definition and other.where != definition.where:
            raise DiscoveryError(
                f"{definition.name!r} version {definition.version} is registered twice: by {other.where} and by"
                f" {definition.where}; rename one or raise its version"
            )

    def add_module(self, module: ModuleType) -> None:
        """Register everything of ours that a module defines, not what it merely imports."""
        for value in list(vars(module).values()):
            if isinstance(value, (Job, Lifespan, Middleware)) or is_machine(value):
                origin = (
                    value.function.__module__ if isinstance(value, (Job, Lifespan, Middleware)) else value.__module__
                )
                if origin == module.__name__:
                    self.add(value)

    def find(self, name: str, version: int) -> Definition | None:
        """The definition that runs rows of this name and version, or None when another process has it."""
        return self._definitions.get((name, version))

    def definitions(self) -> Iterator[Definition]:
        """Every definition, by name and version."""
        return iter(self._definitions[key] for key in sorted(self._definitions))

    def queues(self) -> list[str]:
        """The queues its machines use, and ``default``."""
        return sorted({definition.queue for definition in self._definitions.values()} | {"default"})

    @property
    def middleware(self) -> list[MiddlewareFunction]:
        """The middleware in the order of registration; the first is the outermost."""
        return [item.function for item in self._middleware.values()]

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[Mapping[str, Any]]:
        """Open every lifespan, in order, and close them in reverse.

        Raises:
            DiscoveryError: Two lifespans offer a resource of the same name.
        """
        opened: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for item in self._lifespans.values():
                offered = await stack.enter_async_context(item.open())
                doubled = opened.keys() & (offered or {}).keys()
                if doubled:
                    raise DiscoveryError(f"{item.name} offers the resource {', '.join(sorted(doubled))} a second time")
                opened.update(offered or {})
            yield opened


def is_machine(value: object) -> bool:
    """True for a class that declares a machine of its own."""
    return isinstance(value, type) and issubclass(value, Machine) and "definition" in vars(value)
