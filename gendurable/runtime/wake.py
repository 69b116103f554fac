"""A sleep that something else can end early."""

import asyncio


class Wake:
    """One sleeper, many who may wake it; a wake while it is busy is kept for the next sleep."""

    def __init__(self) -> None:
        """Asleep, nothing pending."""
        self._event = asyncio.Event()
        self._is_woken = False

    def set(self) -> None:
        """End the present sleep, or the next one before it starts."""
        self._is_woken = True
        self._event.set()

    async def sleep(self, seconds: float) -> bool:
        """Sleep up to ``seconds``; True when woken, False when the time passed."""
        if self._is_woken or seconds <= 0:
            await asyncio.sleep(0)
        else:
            timer = asyncio.get_running_loop().call_later(seconds, self._event.set)
            try:
                await self._event.wait()
            finally:
                timer.cancel()
        was_woken, self._is_woken = self._is_woken, False
        self._event.clear()
        return was_woken
