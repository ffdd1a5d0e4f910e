"""Hears what other processes tell, on a connection of its own that no pooler stands before."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias
from uuid import UUID

from app.errors import DatabaseUnavailableError
from app.ids import ConversationId
from app.observability.logging import get_logger
from app.storage.database import Database, Driver
from app.storage.notices import MANY

logger = get_logger()

# Seconds after which the connection is asked whether it is still one.
PROBE = 10.0
# Seconds before a lost connection is made anew: twice as long each time that there is none.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0

# Which conversations were named; None: any may be meant.
Named: TypeAlias = frozenset[ConversationId] | None


class Listener:
    """One LISTEN for the process. Without it everything comes too, but later."""

    def __init__(self, database: Database, heard: Mapping[str, Callable[[Named], None]]) -> None:
        """`heard`: what to do for each channel."""
        self._database = database
        self._heard = heard
        self._pause = FIRST_PAUSE

    async def keep_listening(self) -> None:
        while True:
            with suppress(DatabaseUnavailableError):
                await self._listen()
            logger.warning("listener_lost", retry_in_s=self._pause)
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _listen(self) -> None:
        """Raises DatabaseUnavailableError when the connection is lost."""
        lost = asyncio.Event()

        def ended(_driver: Driver) -> None:
            lost.set()

        async with self._database.statement() as driver:
            driver.add_termination_listener(ended)
            try:
                await self._subscribe(driver)
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(PROBE):
                            await lost.wait()
                    await driver.fetchval("SELECT 1")
            finally:
                driver.terminate()

    async def _subscribe(self, driver: Driver) -> None:
        for channel in self._heard:
            await driver.add_listener(channel, self._hear)
        self._pause = FIRST_PAUSE
        # What was told while nobody listened is not kept.
        for heard in self._heard.values():
            heard(None)

    def _hear(self, _driver: Driver, _pid: int, channel: str, payload: str) -> None:
        self._heard[channel](_named(payload))


def _named(payload: str) -> Named:
    """Anyone who may connect may notify: what is not from us names nobody in particular."""
    if payload == MANY:
        return None
    try:
        return frozenset(ConversationId(UUID(each)) for each in payload.split())
    except ValueError:
        return None
