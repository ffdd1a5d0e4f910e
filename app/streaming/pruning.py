"""Removes what is kept for a time only: events of finished turns, and idempotency keys."""

import asyncio
from datetime import timedelta

from app.errors import DatabaseUnavailableError
from app.observability.logging import get_logger
from app.storage.database import Database
from app.storage.event_log import EventLog
from app.storage.idempotency_store import IdempotencyStore

logger = get_logger()

INTERVAL = 300.0
BATCH = 500
KEEP_KEYS = timedelta(hours=24)
# Any number, the same in every release: whoever holds it prunes, the others leave it to them.
LOCK = 6_203_911_406


class Pruning:
    """Any process may do it, and one at a time does."""

    def __init__(
        self,
        database: Database,
        event_log: EventLog,
        keys: IdempotencyStore,
        *,
        event_retention: float,
    ) -> None:
        """`event_retention` in seconds after a turn's end."""
        self._database = database
        self._event_log = event_log
        self._keys = keys
        self._event_retention = timedelta(seconds=event_retention)

    async def keep_pruning(self) -> None:
        while True:
            try:
                await self.prune()
            except DatabaseUnavailableError:
                logger.warning("pruning_postponed")
            await asyncio.sleep(INTERVAL)

    async def prune(self) -> None:
        """In batches, each of one table, so that nobody waits long for a lock, or for ever."""
        more = True
        while more:
            async with self._database.locked(LOCK) as driver:
                if driver is None:
                    return
                removed = await self._event_log.prune(driver, self._event_retention, BATCH)
            async with self._database.locked(LOCK) as driver:
                keys = 0 if driver is None else await self._keys.prune(driver, KEEP_KEYS, BATCH)
            more = BATCH in (removed, keys)
