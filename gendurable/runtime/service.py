"""The one discipline by which everything in a worker starts and stops."""

from typing import Protocol


class Service(Protocol):
    """A loop of the worker.

    ``run`` goes on until ``drain`` was called and what it holds is settled, or until it is cancelled. A database that
    is away costs it a pass; any other exception that leaves it is a bug and ends the process.
    """

    @property
    def name(self) -> str:
        """What logs and metrics call it."""
        ...

    async def run(self) -> None:
        """Work until drained."""
        ...

    def drain(self) -> None:
        """Begin to stop: take nothing new."""
        ...
