"""Deletion that is real: at once for everyone to see, and soon after for the disk."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from app.caller import Caller
from app.errors import DatabaseUnavailableError, NotFoundError
from app.ids import ConversationId, TurnId
from app.observability.logging import get_logger
from app.storage.database import Database
from app.storage.erasure_store import ErasureStore

logger = get_logger()

# Up to here the content goes in the transaction that hides it; more goes in batches behind it.
SMALL = 2_000
BATCH = 2_000
PURGE_INTERVAL = 60.0
TOMBSTONES_AT_ONCE = 100
KEEP_TOMBSTONES = timedelta(days=30)


class Erasure:
    def __init__(
        self,
        database: Database,
        erasures: ErasureStore,
        *,
        stop_turn: Callable[[TurnId], Awaitable[None]],
    ) -> None:
        self._database = database
        self._erasures = erasures
        self._stop_turn = stop_turn

    async def erase_conversation(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Erases it with everything it holds, also while a turn runs; again is fine for its owner.

        From the first commit on nobody sees it and no turn can write to it.
        Raises NotFoundError.
        """
        async with self._database.transaction() as transaction:
            buried = await self._erasures.bury(transaction, caller, conversation_id)
            if buried is None:
                if await self._erasures.is_buried(transaction, caller, conversation_id):
                    return
                raise NotFoundError
            turn_id, message_count = buried
            if message_count <= SMALL:
                await self._erasures.purge(transaction, conversation_id)
        if turn_id is not None:
            await self._stop_turn(turn_id)
        await self._purge(conversation_id)
        logger.info("conversation_erased", conversation_id=str(conversation_id))

    async def keep_purging(self) -> None:
        """Finishes what a process left behind when it died, and removes old tombstones."""
        while True:
            try:
                await self.purge_left_over()
            except DatabaseUnavailableError:
                logger.warning("purge_postponed")
            await asyncio.sleep(PURGE_INTERVAL)

    async def purge_left_over(self) -> None:
        async with self._database.statement() as driver:
            unpurged = await self._erasures.unpurged(driver, TOMBSTONES_AT_ONCE)
        for conversation_id in unpurged:
            await self._purge(conversation_id)
        async with self._database.statement() as driver:
            await self._erasures.remove_tombstones(driver, KEEP_TOMBSTONES)

    async def _purge(self, conversation_id: ConversationId) -> None:
        """In batches, each a transaction of its own, so that nobody waits long for a lock."""
        more = True
        while more:
            async with self._database.statement() as driver:
                more = await self._erasures.purge_some(driver, conversation_id, BATCH)
