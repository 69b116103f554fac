"""Reading calls of the client: one instance, its end, its result, and pages of instances."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gendurable.calls import check_id, check_target_id, statuses
from gendurable.errors import (
    InstanceCancelledError,
    InstanceFailedError,
    InvalidValueError,
    NotFinishedError,
    NotFoundError,
)
from gendurable.model.answers import StillRunning
from gendurable.model.codec import check_key, check_name, encode_object
from gendurable.model.durations import duration_ms
from gendurable.model.instance import Instance, Status
from gendurable.model.outcome import Duration, check_mapping
from gendurable.store.database import Connection
from gendurable.store.instances import Filter, InstanceStore
from gendurable.watching import InstanceWatcher

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1000
WAIT_S = 60.0


class InstanceReader:
    """The half of :class:`gendurable.Client` that changes nothing."""

    _instances: InstanceStore
    _watcher: InstanceWatcher
    _on_answered: Callable[[], None]

    async def get(
        self, target: int | None = None, *, key: str | None = None, connection: Connection | None = None
    ) -> Instance | None:
        """Read one instance by id or by correlation key, or None when there is none.

        A key that addresses no instance now finds the youngest that carried it.
        """
        instance_id, key = check_target_id(target, key)
        return await self._instances.get(instance_id=instance_id, key=key, connection=connection)

    async def wait(
        self, target: int | None = None, *, key: str | None = None, timeout: Duration = WAIT_S
    ) -> Instance | StillRunning:
        """Wait for an instance to end.

        Args:
            target: Its id.
            key: Or the correlation key that addresses it now.
            timeout: Seconds or a timedelta; nothing happens to the instance when it passes.

        Returns:
            The instance once it has ended, or ``StillRunning`` when the time passed or the client was closed.

        Raises:
            NotFoundError: There is no such instance.
        """
        timeout_s = duration_ms(timeout, name="timeout", allow_zero=True) / 1000
        instance = await self.get(target, key=key)
        if instance is None:
            raise NotFoundError(target, key=key)
        if not instance.is_terminal and not await self._watcher.wait_ended(instance.id, timeout_s=timeout_s):
            return StillRunning(instance.id)
        if not instance.is_terminal:
            instance = await self.get(instance.id)
            if instance is None:
                raise NotFoundError(target, key=key)
        # The caller has seen an answer, so the next insert need not be gathered with this one's.
        self._on_answered()
        return instance

    async def result(self, target: int | None = None, *, key: str | None = None, timeout: Duration = WAIT_S) -> Any:
        """Wait for an instance to end and return its result.

        Raises:
            InstanceFailedError: It failed.
            InstanceCancelledError: It was cancelled.
            NotFinishedError: The time passed; the instance goes on.
            NotFoundError: There is no such instance.
        """
        ended = await self.wait(target, key=key, timeout=timeout)
        if isinstance(ended, StillRunning):
            raise NotFinishedError(ended.id, "running")
        if ended.status is Status.FAILED:
            raise InstanceFailedError(ended.id, ended.last_error)
        if ended.status is Status.CANCELLED:
            raise InstanceCancelledError(ended.id, ended.cancel_reason)
        return ended.result

    async def list(
        self,
        *,
        machine: str | None = None,
        status: Sequence[Status | str] | Status | str | None = None,
        queue: str | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        parent_id: int | None = None,
        key_prefix: str | None = None,
        before_id: int | None = None,
        limit: int = PAGE_ROWS,
        connection: Connection | None = None,
    ) -> Sequence[Instance]:
        """One page of instances, youngest first.

        Args:
            machine: Only this machine's.
            status: Only this status, or any of these.
            queue: Only this queue's.
            tags: Only those with all of these tags.
            metadata: Only those whose metadata contains this.
            parent_id: Only children of this instance.
            key_prefix: Only those whose correlation key starts with this.
            before_id: The last id of the previous page.
            limit: Rows of a page, 1 to 1,000.
            connection: Read on this connection.

        Raises:
            InvalidValueError: A filter cannot be used.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_ROWS_MAX:
            raise InvalidValueError(f"limit is {limit!r}; a page has 1 to {PAGE_ROWS_MAX} rows", path="limit")
        if isinstance(tags, str):
            raise InvalidValueError(f"tags must be a list of names, not {tags!r}", path="tags")
        check_mapping(metadata, name="metadata")
        chosen = Filter(
            machine=None if machine is None else check_name(machine, name="machine"),
            statuses=statuses(status),
            queue=None if queue is None else check_name(queue, name="queue"),
            tags=None if tags is None else tuple(check_name(tag, name="tag") for tag in tags),
            metadata=None if metadata is None else encode_object(metadata, name="metadata"),
            parent_id=None if parent_id is None else check_id(parent_id, name="parent_id"),
            key_prefix=None if key_prefix is None else check_key(key_prefix, name="key_prefix"),
        )
        before = None if before_id is None else check_id(before_id, name="before_id")
        return await self._instances.list_page(chosen, before_id=before, rows_max=limit, connection=connection)
