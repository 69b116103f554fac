"""Wake-ups inside one process."""

from collections.abc import Callable

Wake = Callable[[float], None]


class PokeHub:
    """Tells the loops of this process that there is work; knows nothing about other processes."""

    def __init__(self) -> None:
        """Nobody listens yet."""
        self._listeners: dict[str, list[Wake]] = {}

    def listen(self, queue: str, wake: Wake) -> Callable[[], None]:
        """Call ``wake(seconds until due)`` for every poke of a queue; the answer ends it."""
        self._listeners.setdefault(queue, []).append(wake)

        def stop() -> None:
            self._listeners[queue].remove(wake)

        return stop

    def poke(self, queue: str, due_in_s: float = 0.0) -> None:
        """Say that a queue has a row that is due in so many seconds: now, or later."""
        for wake in self._listeners.get(queue, ()):
            wake(due_in_s)

    def poke_all(self) -> None:
        """Say that any queue may have work, such as after notifications were lost."""
        for listeners in list(self._listeners.values()):
            for wake in listeners:
                wake(0.0)

    def queues(self) -> set[str]:
        """The queues somebody listens to."""
        return {queue for queue, listeners in self._listeners.items() if listeners}
