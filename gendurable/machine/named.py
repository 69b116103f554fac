"""Rows for machines that this process has not loaded, by their registered name; checked as far as that goes."""

from typing import Any

from gendurable.errors import InvalidValueError
from gendurable.machine.contract import Definition, Request
from gendurable.machine.jobs import JOB_STEP
from gendurable.model.codec import TypedDecoder, check_name, encode_object

VERSION_MAX = 2**31 - 1


def named_request(
    name: str, state: object, *, version: int = 1, step: str = JOB_STEP, queue: str = "default"
) -> Request:
    """What ``insert`` takes, without the code of the machine.

    Args:
        name: The registered name of the job or machine.
        state: The arguments of the job or the state of the machine; must become a JSON object. Its fields are checked
            only when the row runs.
        version: The version that runs it.
        step: Where it starts; ``run`` is the only step of a job.
        queue: Where it waits; the queue that the class names is not known here.

    Raises:
        InvalidValueError: Something cannot be stored; nothing was written.
    """
    if isinstance(version, bool) or not 1 <= version <= VERSION_MAX:
        raise InvalidValueError(f"version is {version!r}; use a whole number from 1", path="version")
    definition = Definition(
        name=check_name(name, name="name"),
        version=version,
        queue=check_name(queue, name="queue"),
        initial=check_name(step, name="step"),
        steps={},
        decoder=TypedDecoder(dict[str, Any]),
        fields=None,
        handle=None,
        is_handle_async=False,
        max_attempts=None,
        backoff=None,
        is_job=step == JOB_STEP,
        where="by name",
    )
    return Request(definition, encode_object(state, name="args"))
