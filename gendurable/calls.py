"""What client calls decide before they talk to the database: plain functions."""

import time
from collections.abc import Mapping, Sequence

from gendurable.errors import InvalidValueError
from gendurable.machine.contract import Request
from gendurable.model.codec import check_key, check_text
from gendurable.model.insert import Duplicate, InsertAnswer, InsertOptions
from gendurable.model.instance import Status
from gendurable.model.outcome import REASON_CHARS_MAX
from gendurable.store.inserts import NewRow


class AfterCommit:
    """What is to be sent once a transaction of the client has committed.

    Attributes:
        due_in_s: Queue to the seconds until its earliest new row is due.
        cancels: Executing instances whose cancellation was asked for.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self.due_in_s: dict[str, float] = {}
        self.cancels: list[int] = []

    def add(self, due_in_s: Mapping[str, float]) -> None:
        """Add wake-ups; the earliest of a queue wins."""
        for queue, seconds in due_in_s.items():
            self.due_in_s[queue] = min(seconds, self.due_in_s.get(queue, seconds))


def check_target_id(target: int | None, key: str | None) -> tuple[int | None, str | None]:
    """Return exactly one of an id and a key, or raise InvalidValueError."""
    if (target is None) == (key is None):
        raise InvalidValueError("give an id or key=, exactly one of them", path="target")
    if target is not None:
        check_id(target, name="target", remedy="; for a correlation key write key=")
    return target, None if key is None else check_key(key, name="key")


def check_id(value: int, *, name: str, remedy: str = "") -> int:
    """Return a value that can be an instance's id, or raise InvalidValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise InvalidValueError(f"{name} is an id, a whole number below 2**63, not {value!r}{remedy}", path=name)
    return value


def check_reason(reason: str) -> str:
    """Return a reason that can be stored, or raise InvalidValueError."""
    return check_text(reason, name="reason", chars_max=REASON_CHARS_MAX)


def statuses(status: Sequence[Status | str] | Status | str | None) -> tuple[str, ...] | None:
    """Return the statuses of a filter, or raise InvalidValueError for one that does not exist."""
    if status is None:
        return None
    wanted = [status] if isinstance(status, str) else list(status)
    try:
        return tuple(Status(item).value for item in wanted)
    except ValueError as error:
        known = ", ".join(item.value for item in Status)
        raise InvalidValueError(f"{error}; statuses are {known}", path="status") from error


def check_step(request: Request, options: InsertOptions) -> None:
    """Raise InvalidValueError when a row is to start at a step its machine does not have."""
    definition = request.definition
    if options.step is not None and options.step not in definition.steps:
        raise InvalidValueError(
            f"{definition.name} has no step {options.step!r}; it has {', '.join(definition.steps)}", path="step"
        )


def rows_of(requests: Sequence[Request], shared: InsertOptions) -> tuple[list[str], list[NewRow]]:
    """The distinct common parts, and each row with the number of its own."""
    commons: dict[str, int] = {}
    rows = []
    for request in requests:
        options = request.options or shared
        check_step(request, options)
        definition = request.definition
        common = options.common(
            fsm=definition.name, version=definition.version, step=definition.initial, queue=definition.queue
        )
        rows.append(
            NewRow(
                common=commons.setdefault(common, len(commons) + 1),
                state=request.state,
                correlation_key=options.correlation_key,
                scope=options.scope.value,
                unique_ms=options.unique_ms,
            )
        )
    return list(commons), rows


def due_by_queue(
    requests: Sequence[Request], shared: InsertOptions, answers: Sequence[InsertAnswer]
) -> dict[str, float]:
    """Queues that got rows, with the seconds until the earliest is due; the local clock only sets a timer."""
    due_in_s: dict[str, float] = {}
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(answer, Duplicate):
            continue
        options = request.options or shared
        queue = options.queue or request.definition.queue
        seconds = (options.delay_ms or 0) / 1000
        if options.at is not None:
            seconds = max(0.0, options.at.timestamp() - time.time())
        known = due_in_s.get(queue)
        if known is None or seconds < known:
            due_in_s[queue] = seconds
    return due_in_s
