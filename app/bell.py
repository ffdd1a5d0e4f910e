"""Wakes one who looks from time to time, when there may be a reason to look sooner."""

import asyncio
from contextlib import suppress


class Bell:
    def __init__(self, *, pause: float) -> None:
        """`pause`: seconds between two looks at the least, however often it rings."""
        self._pause = pause
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, limit: float) -> None:
        """Until it rings, for `limit` seconds at most."""
        await asyncio.sleep(self._pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit - self._pause):
                await self._rung.wait()
        self._rung.clear()
