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
# Seconds before a lost connection is made anew.
RETRY = 1.0

# Which conversations were named; None: any may be meant.
Named: TypeAlias = frozenset[ConversationId] | None


class Listener:
    """One LISTEN for the process. Without it everything comes too, but later."""

    def __init__(self, database: Database, heard: Mapping[str, Callable[[Named], None]]) -> None:
        """`heard`: what to do for each channel."""
        self._database = database
        self._heard = heard

    async def keep_listening(self) -> None:
        while True:
            with suppress(DatabaseUnavailableError):
                await self._listen()
            logger.warning("listener_lost", retry_in_s=RETRY)
            await asyncio.sleep(RETRY)

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
