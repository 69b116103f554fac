"""Turns what a step answered into the change of its row: pure, so that every case is a unit test."""

import dataclasses
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gendurable.errors import InvalidValueError, MissingOutcomeError, StateDecodeError, UnknownStepError
from gendurable.machine.contract import Definition
from gendurable.model.claim import Claim
from gendurable.model.codec import decode_json, encode_json, encode_object
from gendurable.model.durations import DURATION_MAX_MS
from gendurable.model.outcome import Cancel, Done, Next, Outcome, Retry, Snooze, Stop, Unset
from gendurable.model.transition import Transition

ERROR_CHARS_MAX = 8192


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The engine's defaults for steps.

    Attributes:
        max_attempts: Tries of one step.
        max_snoozes: Snoozes of one step in a row.
        backoff_s: Seconds to wait after a failed attempt.
    """

    max_attempts: int
    max_snoozes: int
    backoff_s: Callable[[int], float]


def error_text(error: BaseException) -> str:
    """An error as rows keep it: kind, message, and where it was raised; storable whatever the message holds."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    return storable(f"{type(error).__name__}: {error}{where}")


def storable(text: str) -> str:
    """The text without what Postgres cannot hold, cut to a length."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]


def default_outcome(error: Exception, claim: Claim, definition: Definition, policy: Policy) -> Outcome:
    """What happens to an error nobody handles: again after the backoff while attempts are left, else the end.

    A state that does not fit its type, and a step that does not exist, are the same in every attempt: retrying them
    twenty times would only hide for a day that somebody has to act. The instance keeps its state and can be retried
    when the code is mended.
    """
    if isinstance(error, StateDecodeError | UnknownStepError):
        return Stop(error_text(error))
    allowed = definition.max_attempts or policy.max_attempts
    if claim.attempt + 1 < allowed:
        return Retry()
    return Stop(error_text(error))


def outcome_of_answer(answer: object, definition: Definition, claim: Claim) -> Outcome:
    """Read what a step or a job returned.

    Raises:
        MissingOutcomeError: A step returned something that is not an outcome.
        InvalidValueError: A job returned something that cannot be a result.
    """
    if isinstance(answer, Outcome):
        return answer
    if definition.is_job:
        return Done(answer)
    hint = "did you forget `return`?" if answer is None else "return gd.Next, gd.Done or another outcome"
    raise MissingOutcomeError(f"{definition.name}.{claim.step} returned {answer!r:.200}: {hint}")


def check_target(outcome: Outcome, definition: Definition) -> None:
    """Raise UnknownStepError when an outcome goes to a step that does not exist."""
    if isinstance(outcome, Next) and outcome.step not in definition.steps:
        raise UnknownStepError(definition.name, outcome.step, list(definition.steps))


def decide(
    outcome: Outcome, claim: Claim, definition: Definition, policy: Policy, *, error: BaseException | None = None
) -> Transition:
    """The change of the row; a value that cannot be stored fails the instance at once, because it never will be.

    Args:
        outcome: What the step, its handler or the default policy answered.
        claim: The row.
        definition: Its machine.
        policy: The engine's defaults.
        error: What went wrong before this outcome, if anything; it is kept with the row.
    """
    try:
        transition = _transition(outcome, claim, definition, policy)
    except InvalidValueError as refused:
        transition = _stop(claim, storable(f"InvalidValueError: {refused}"), "invalid_value")
        error = None
    if error is not None and transition.error is None:
        transition.error = error_text(error)
        transition.error_kind = type(error).__name__
    transition.held_key = claim.concurrency_key
    return transition


def _transition(outcome: Outcome, claim: Claim, definition: Definition, policy: Policy) -> Transition:
    match outcome:
        case Done():
            result = None if outcome.result is None else encode_object(outcome.result, name="result")
            return Transition(
                id=claim.id, claim=claim.claim, outcome="done", status="done", attempt=claim.attempt, result=result
            )
        case Next():
            return _next(outcome, claim, definition)
        case Retry():
            return _retry(outcome, claim, definition, policy)
        case Snooze():
            if claim.snoozes + 1 > policy.max_snoozes:
                return _stop(
                    claim, f"snoozed {claim.snoozes} times in a row; max_snoozes is {policy.max_snoozes}", "snooze"
                )
            return Transition(
                id=claim.id,
                claim=claim.claim,
                outcome="snooze",
                status="runnable",
                attempt=claim.attempt,
                snoozes=claim.snoozes + 1,
                delay_ms=outcome.delay_ms,
            )
        case Cancel():
            return cancelled(claim, outcome.reason)
        case Stop():
            return _stop(claim, storable(outcome.reason or "stopped"), "stop")
        case _:
            raise InvalidValueError(f"{outcome!r} is not an outcome the engine knows")


def _next(outcome: Next, claim: Claim, definition: Definition) -> Transition:
    return Transition(
        id=claim.id,
        claim=claim.claim,
        outcome="next",
        status="runnable",
        step=outcome.step,
        state=new_state(outcome.state, claim, definition),
        delay_ms=0 if outcome.delay_ms is None else outcome.delay_ms,
        at=outcome.at,
        is_key_changed=not isinstance(outcome.concurrency_key, Unset),
        concurrency_key=None if isinstance(outcome.concurrency_key, Unset) else outcome.concurrency_key,
    )


def _retry(outcome: Retry, claim: Claim, definition: Definition, policy: Policy) -> Transition:
    delay_ms = outcome.delay_ms
    if delay_ms is None:
        backoff_s = (definition.backoff or policy.backoff_s)(claim.attempt)
        # Written so that NaN is refused as well.
        if not backoff_s * 1000 <= DURATION_MAX_MS:
            raise InvalidValueError(f"the backoff of attempt {claim.attempt} is {backoff_s!r} s; at most 100 years")
        delay_ms = max(0, int(backoff_s * 1000))
    return Transition(
        id=claim.id,
        claim=claim.claim,
        outcome="retry",
        status="runnable",
        state=new_state(outcome.state, claim, definition),
        attempt=claim.attempt + 1,
        snoozes=claim.snoozes,
        delay_ms=delay_ms,
    )


def _stop(claim: Claim, text: str, kind: str) -> Transition:
    return Transition(
        id=claim.id,
        claim=claim.claim,
        outcome="stop",
        status="failed",
        attempt=claim.attempt,
        error=text,
        error_kind=kind,
        held_key=claim.concurrency_key,
    )


def cancelled(claim: Claim, reason: str) -> Transition:
    """End a row as cancelled."""
    return Transition(
        id=claim.id,
        claim=claim.claim,
        outcome="cancel",
        status="cancelled",
        attempt=claim.attempt,
        cancel_reason=storable(reason),
        held_key=claim.concurrency_key,
    )


def failed(claim: Claim, text: str, kind: str) -> Transition:
    """End a row as failed without asking its machine."""
    return _stop(claim, storable(text), kind)


def new_state(state: Any, claim: Claim, definition: Definition) -> str | None:
    """Encode a new state and keep stored fields this version of the machine does not know.

    A newer version may have added a field; an older worker that runs the row must not drop it.
    """
    if state is None:
        return None
    text = definition.encode_state(state)
    if definition.fields is None:
        return text
    stored: Mapping[str, Any] = decode_json(claim.state)
    unknown = {key: value for key, value in stored.items() if key not in definition.fields}
    if not unknown:
        return text
    return encode_json({**unknown, **msgspec.json.decode(text)}, name="state")
