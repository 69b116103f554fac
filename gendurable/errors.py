"""Every error a caller can meet, in one tree.

GenDurableError
├── ConfigurationError          wrong settings, found before anything starts
│   ├── DiscoveryError          a machine package is broken, doubled or missing
│   └── EmbeddedPostgresError   the embedded server cannot be found or started
├── InvalidValueError           an argument that was refused; nothing was written
│   └── UnknownStepError        an outcome or an insert names a step that its machine does not have
├── DefinitionError             a machine or job class is declared wrongly
├── NotFoundError               the instance does not exist
├── InstanceFailedError         result() of an instance that failed
├── InstanceCancelledError      result() of an instance that was cancelled
├── NotFinishedError            result() of an instance that is still running
├── BatcherClosedError          insert_async after close, or rows the batcher could not write
├── StepTimeoutError            a step ran longer than it may; goes to the error handler
├── StateDecodeError            the stored state no longer fits its type; goes to the error handler
├── MissingOutcomeError         a step returned something that is not an outcome
├── SchemaMismatchError         the database's schema does not fit this version
├── MigrationError              a migration was changed, is missing or failed
└── StoreError                  Postgres did not do what we asked
    ├── StoreUnavailableError   it could not be reached or went away; worth retrying
    │   └── StoreUnreachableError   no connection could be had at all; nothing was sent
    ├── StoreContendedError     another transaction won (unique key, deadlock); worth retrying
    │   └── SerializationConflictError  the caller's isolation level hides what was committed; retry its transaction
    ├── StoreDataError          a value was refused (class 22 or 23); retrying the same value cannot help
    └── StoreRejectedError      anything else Postgres refused; retrying cannot help
"""

from collections.abc import Sequence


class GenDurableError(Exception):
    """The root of every error that gendurable raises on purpose."""


class ConfigurationError(GenDurableError):
    """Settings are wrong; nothing was started and nothing was written.

    Attributes:
        problems: One sentence for each problem; every problem that could be found is listed.
    """

    def __init__(self, problems: Sequence[str] | str) -> None:
        """Keep all problems, so that one run shows everything there is to mend."""
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(self.problems))


class DiscoveryError(ConfigurationError):
    """A package that should bring machines is broken, doubled or missing; nothing was started."""


class EmbeddedPostgresError(ConfigurationError):
    """The embedded server's binaries are missing or it did not start; no process of ours is left running."""


class InvalidValueError(GenDurableError, ValueError):
    """An argument was refused where it was made; nothing was written.

    Attributes:
        path: Where in the value the trouble is, such as ``state.items[3].note``; empty for the whole.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        """Say what was refused, its value and the remedy; ``path`` tells where it stands."""
        super().__init__(message)
        self.path = path


class UnknownStepError(InvalidValueError):
    """A step was named that its machine does not declare; nothing was committed."""

    def __init__(self, machine: str, step: str, known: Sequence[str]) -> None:
        """Name the machine, the step asked for and those it has."""
        super().__init__(f"{machine} has no step {step!r}; it has {', '.join(known)}")
        self.machine = machine
        self.step = step


class DefinitionError(GenDurableError, TypeError):
    """A machine, step or job is declared wrongly; raised while its module is imported."""


class NotFoundError(GenDurableError, LookupError):
    """No instance has this id, or no instance is addressed by this key.

    Attributes:
        instance_id: The id that was asked for; None when it was a key.
        key: The correlation key that was asked for; None when it was an id.
    """

    def __init__(self, instance_id: int | None = None, *, key: str | None = None) -> None:
        """Name what was asked for."""
        if key is not None:
            super().__init__(f"no instance has the correlation key {key!r} now; one that has ended is found by its id")
        else:
            super().__init__(f"instance {instance_id} does not exist: it never did, or its retention has passed")
        self.instance_id = instance_id
        self.key = key


class InstanceFailedError(GenDurableError):
    """The result of an instance was asked for, and the instance failed."""

    def __init__(self, instance_id: int, last_error: str | None) -> None:
        """Carry the error that ended the instance."""
        super().__init__(f"instance {instance_id} failed: {last_error or 'no error was recorded'}")
        self.instance_id = instance_id
        self.last_error = last_error


class InstanceCancelledError(GenDurableError):
    """The result of an instance was asked for, and the instance was cancelled."""

    def __init__(self, instance_id: int, reason: str | None) -> None:
        """Carry the reason given with the cancellation."""
        super().__init__(f"instance {instance_id} was cancelled: {reason or 'no reason was given'}")
        self.instance_id = instance_id
        self.reason = reason


class NotFinishedError(GenDurableError):
    """The result of an instance was asked for before there is one; it goes on running."""

    def __init__(self, instance_id: int, status: str) -> None:
        """Name the status it has now."""
        super().__init__(f"instance {instance_id} is still {status}; wait() for it or ask again later")
        self.instance_id = instance_id
        self.status = status


class BatcherClosedError(GenDurableError):
    """A row handed to insert_async was not written, because the batcher was closed before it could be."""


class StepTimeoutError(GenDurableError, TimeoutError):
    """A step ran longer than its timeout; its outcome is decided by the error handler."""

    def __init__(self, machine: str, step: str, timeout_s: float) -> None:
        """Name the step and the time it had."""
        super().__init__(f"{machine}.{step} ran longer than its timeout of {timeout_s:g} s")
        self.machine = machine
        self.step = step
        self.timeout_s = timeout_s


class StateDecodeError(GenDurableError):
    """The stored state or the stored arguments do not fit the declared type; the row is unchanged."""


class MissingOutcomeError(GenDurableError, TypeError):
    """A step returned something that is not an outcome; nothing was committed for it."""


class SchemaMismatchError(GenDurableError):
    """The database's schema is missing, older or too new for this version; nothing was started."""


class MigrationError(GenDurableError):
    """A migration was edited after it ran, is missing, or failed; its transaction was rolled back."""


class StoreError(GenDurableError):
    """Postgres did not do what we asked; the statement had no effect unless a subclass says otherwise."""


class StoreUnavailableError(StoreError):
    """Postgres could not be reached or the connection was lost.

    If the connection was lost during a commit, that commit may or may not have happened; everything gendurable
    sends is fenced, so that sending it again is safe.
    """


class StoreUnreachableError(StoreUnavailableError):
    """No connection could be had, so nothing was sent and nothing can have happened."""


class StoreContendedError(StoreError):
    """Another transaction won a race; ours was rolled back and may be tried again.

    Attributes:
        constraint: The constraint that decided, or the kind of conflict; a closed set, fit for a metric's label.
    """

    def __init__(self, message: str, *, constraint: str) -> None:
        """Name the constraint, so that a metric can count it."""
        super().__init__(message)
        self.constraint = constraint


class SerializationConflictError(StoreContendedError):
    """A caller's REPEATABLE READ or SERIALIZABLE transaction cannot see what another one committed meanwhile.

    Nothing was done on a stale read. Without a savepoint of the caller's around the call, Postgres has ended the
    transaction: roll it back and try it again from its beginning.
    """


class StoreDataError(StoreError):
    """A value was refused by Postgres (class 22 or 23); the transaction was rolled back."""


class StoreRejectedError(StoreError):
    """Postgres refused the statement for a reason that a retry cannot mend, such as a missing privilege."""
