"""A sleep that something else can end early."""

import asyncio


class Wake:
    """One sleeper, many who may wake it; a wake while it is busy is kept for the next sleep."""

    def __init__(self) -> None:
        """Asleep, nothing pending."""
        self._event = asyncio.Event()

    def set(self) -> None:
        """End the present sleep, or the next one before it starts."""
        self._event.set()

    @property
    def is_set(self) -> bool:
        """True when the next sleep would not last."""
        return self._event.is_set()

    async def sleep(self, seconds: float) -> bool:
        """Sleep up to ``seconds``; True when woken, False when the time passed."""
        if self._event.is_set() or seconds <= 0:
            await asyncio.sleep(0)
            woken = self._event.is_set()
            self._event.clear()
            return woken
        timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
        deadline_passed = False
        try:
            await self._event.wait()
            deadline_passed = timer.when() <= asyncio.get_running_loop().time()
        finally:
            timer.cancel()
            self._event.clear()
        return not deadline_passed
