"""Runs one step's code: decode, call, error handler; answers with the change of the row.

This is the one place around user code, so it is the one place that catches everything user code may raise.
"""

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from typing import Any

from gendurable.errors import StateDecodeError, StepTimeoutError
from gendurable.logs import get_logger, step_context
from gendurable.machine.context import Context
from gendurable.machine.contract import Definition, StepDefinition
from gendurable.machine.jobs import JOB_STEP
from gendurable.machine.registry import Handler, MiddlewareFunction
from gendurable.model.claim import Claim
from gendurable.model.outcome import Cancel, Outcome
from gendurable.model.transition import Transition
from gendurable.runtime.deciding import (
    Policy,
    cancelled,
    check_target,
    decide,
    default_outcome,
    failed,
    outcome_of_answer,
)

log = get_logger(__name__)


class Interruption(IntEnum):
    """Why a running step was interrupted from outside; a later one wins over those before it."""

    TIMEOUT = 1
    CANCELLED = 2
    CUT = 3


def knows_step(definition: Definition, step: str) -> bool:
    """Whether rows at this step can run here; a row inserted without the machine's code stands at ``JOB_STEP``."""
    return step in definition.steps or step == JOB_STEP


class Run:
    """One run of one step.

    Attributes:
        claim: The row.
        definition: Its machine.
        step: The step that runs.
        timeout_s: Seconds it may run.
        deadline_s: Local monotonic time at which it has run too long.
        interruption: Why it was interrupted, if it was.
        task: The task it runs in.
    """

    __slots__ = ("claim", "deadline_s", "definition", "interruption", "started_s", "step", "task", "timeout_s")

    def __init__(self, claim: Claim, definition: Definition, *, timeout_s: float, now_s: float) -> None:
        """Start the clock; the step is known, see :func:`knows_step`."""
        if claim.step == JOB_STEP and JOB_STEP not in definition.steps:
            # Inserted without the machine's code, by SQL or from the command line, where only its name was known.
            claim.step = definition.initial
        self.claim = claim
        self.definition = definition
        self.step: StepDefinition = definition.steps[claim.step]
        if self.step.timeout_s is not None:
            timeout_s = self.step.timeout_s
        if claim.deadline_in_ms is not None:
            # Counted from the claim: the row may have waited here for a slot.
            timeout_s = min(timeout_s, claim.deadline_in_ms / 1000 - (now_s - claim.claimed_at))
        self.timeout_s = timeout_s
        self.started_s = now_s
        self.deadline_s = now_s + timeout_s
        self.interruption: Interruption | None = None
        self.task: asyncio.Task[None] | None = None

    def interrupt(self, why: Interruption) -> None:
        """Cancel the task, once for each reason: a step may swallow its time limit, but not the end of the process."""
        if self.task is not None and (self.interruption is None or why > self.interruption):
            self.interruption = why
            self.task.cancel()


class StepCaller:
    """Calls steps, their error handlers and the middleware around them."""

    def __init__(
        self,
        *,
        policy: Policy,
        resources: Mapping[str, Any],
        middleware: Sequence[MiddlewareFunction],
        threads: ThreadPoolExecutor,
        on_thread: Callable[[int], None],
        on_deadline: Callable[[float], None],
    ) -> None:
        """Everything one queue's steps share.

        Args:
            policy: Defaults for retries.
            resources: What the lifespans opened.
            middleware: From the outermost to the innermost.
            threads: Where plain functions run.
            on_thread: Told +1 when a thread outlives its step and -1 when it returns at last.
            on_deadline: Told the new deadline, local monotonic seconds, when an error handler starts.
        """
        self._policy = policy
        self._resources = resources
        self._threads = threads
        self._on_thread = on_thread
        self._on_deadline = on_deadline
        self._call: Handler = self._call_step
        for function in reversed(middleware):
            self._call = partial(_wrapped, function, self._call)

    async def run(self, run: Run) -> Transition | None:
        """Run the step to the change of its row; None when it was cut off and is to be handed back."""
        claim = run.claim
        if claim.is_expired:
            return cancelled(claim, "expired before it started")
        if run.timeout_s <= 0:
            return failed(claim, "the deadline has passed", "deadline")
        step_context.set(StepFields(claim))
        ctx: Context[Any] = Context(claim, None, self._resources, run=run)
        try:
            ctx.state = run.definition.decoder.decode(claim.state, name="state")
        except StateDecodeError as error:
            return await self._handle_error(error, ctx, run)
        try:
            outcome = outcome_of_answer(await self._call(ctx), run.definition, claim)
            check_target(outcome, run.definition)
            return decide(outcome, claim, run.definition, self._policy)
        except Cancel as cancel:
            return decide(cancel, claim, run.definition, self._policy)
        except asyncio.CancelledError:
            interrupted = _interrupted(run)
            if interrupted is None:
                return None
            if isinstance(interrupted, Transition):
                return interrupted
            return await self._handle_error(interrupted, ctx, run)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return await self._handle_error(_as_exception(error), ctx, run)

    def _call_step(self, ctx: Context[Any]) -> Awaitable[Any]:
        """Start the step; not a coroutine itself, because every frame between task and step is paid for each step."""
        run = ctx._run  # noqa: SLF001 - the engine put it there; users have no use for it
        assert isinstance(run, Run)
        step = run.step
        if step.is_async:
            return step.call(ctx)  # type: ignore[no-any-return]
        return self._call_in_thread(step, ctx)

    async def _call_in_thread(self, step: StepDefinition, ctx: Context[Any]) -> Any:
        """Run a plain function in a thread; a thread cannot be killed, so an interrupted one keeps its slot."""
        call = self._threads.submit(contextvars.copy_context().run, step.call, ctx)
        future = asyncio.wrap_future(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # One that still waits for a thread is taken back: its row may run elsewhere before a thread is free.
            if not call.cancel() and not future.done():
                self._on_thread(1)
                future.add_done_callback(self._thread_returned)
            raise

    def _thread_returned(self, future: asyncio.Future[Any]) -> None:
        """A thread came back after its outcome had been decided; whatever it brought is ignored, but looked at."""
        self._on_thread(-1)
        if not future.cancelled():
            future.exception()

    async def _handle_error(self, error: Exception, ctx: Context[Any], run: Run) -> Transition | None:
        """Turn an error into the change of the row, whatever else of the user's code is broken besides."""
        try:
            return await self._ask_handler(error, ctx, run)
        except Exception as broken:
            # A backoff or the text of an error: without an outcome the row would hang in this process for ever.
            log.warning("an error could not be handled", error_type=type(error).__name__, exc_info=broken)
            kinds = f"{type(error).__name__}, and handling it raised {type(broken).__name__}"
            return failed(run.claim, kinds, type(error).__name__)

    async def _ask_handler(self, error: Exception, ctx: Context[Any], run: Run) -> Transition | None:
        """Ask the machine's error handler, or the default policy when it has none or fails itself."""
        claim, definition = run.claim, run.definition
        outcome: Outcome = default_outcome(error, claim, definition, self._policy)
        if definition.handle is not None:
            run.interruption = None
            run.deadline_s = time.monotonic() + run.timeout_s
            self._on_deadline(run.deadline_s)
            try:
                answer = definition.handle(error, ctx)
                if definition.is_handle_async:
                    answer = await answer
                outcome = outcome_of_answer(answer, definition, claim)
                check_target(outcome, definition)
            except Cancel as cancel:
                outcome = cancel
            except asyncio.CancelledError:
                interrupted = _interrupted(run)
                if interrupted is None or isinstance(interrupted, Transition):
                    return interrupted
                error = interrupted
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as second:
                log.warning("error handler failed", error_type=type(error).__name__, exc_info=second)
                error = _as_exception(second)
                outcome = default_outcome(error, claim, definition, self._policy)
        return decide(outcome, claim, definition, self._policy, error=error)


def _as_exception(error: BaseException) -> Exception:
    """An error that a handler can take; sys.exit() in a step must end the step and not the worker."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"the step raised {type(error).__name__}({', '.join(map(repr, error.args))})")
    wrapped.__cause__ = error
    return wrapped.with_traceback(error.__traceback__)


def _interrupted(run: Run) -> Transition | Exception | None:
    """What a cancellation means: a change of the row, an error for the handler, or None to hand the row back."""
    task = run.task
    if task is not None and run.interruption in (None, Interruption.TIMEOUT):
        # The step is over and its handler may still wait for something.
        while task.uncancel():
            pass
    match run.interruption:
        case Interruption.CUT:
            return None
        case Interruption.CANCELLED:
            return cancelled(run.claim, "cancelled while it ran")
        case Interruption.TIMEOUT:
            return StepTimeoutError(run.definition.name, run.claim.step, run.timeout_s)
    # Nobody of ours asked. Were this passed on, the row would stay claimed, and the heartbeat would keep it so.
    return RuntimeError("the step's own code cancelled its task, or it awaited something that was cancelled")


async def _wrapped(function: MiddlewareFunction, inner: Handler, ctx: Context[Any]) -> Any:
    """One layer of middleware."""
    return await function(ctx, inner)


class StepFields:
    """What every log line of a step carries; made when a line is written, because most steps write none."""

    __slots__ = ("_claim",)

    def __init__(self, claim: Claim) -> None:
        """Keep the claim."""
        self._claim = claim

    def items(self) -> list[tuple[str, object]]:
        """The fields."""
        claim = self._claim
        fields: list[tuple[str, object]] = [
            ("instance_id", claim.id),
            ("machine", claim.machine),
            ("step", claim.step),
            ("attempt", claim.attempt),
            ("queue", claim.queue),
        ]
        if claim.correlation_key is not None:
            fields.append(("correlation_key", claim.correlation_key))
        if claim.tags:
            fields.append(("tags", list(claim.tags)))
        return fields
