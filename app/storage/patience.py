"""Work that waits for the database to come back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.errors import DatabaseUnavailableError
from app.observability.logging import get_logger

T = TypeVar("T")

logger = get_logger()

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


async def until_available(work: Callable[[], Awaitable[T]]) -> T:
    """Tries again while the database is away, with pauses that grow to five seconds."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await work()
        except DatabaseUnavailableError:
            logger.warning("database_unavailable", retry_in_s=pause)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
