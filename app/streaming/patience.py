"""A reader waits for the database while it is away: its client has nothing better to do."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from app.errors import DatabaseUnavailableError

T = TypeVar("T")

# Seconds between two tries.
PAUSE = 0.5


async def patiently(read: Callable[[], Awaitable[T]], shutting_down: asyncio.Event) -> T:
    """Tries until it succeeds. Raises DatabaseUnavailableError only when the service shuts down."""
    while True:
        try:
            return await read()
        except DatabaseUnavailableError:
            if shutting_down.is_set():
                raise
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE):
                await shutting_down.wait()
