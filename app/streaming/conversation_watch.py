"""Wakes who follows a conversation when something of it has changed, here or in another process."""

import asyncio
from collections.abc import Generator, Set
from contextlib import contextmanager

from app.bell import Bell
from app.errors import DatabaseUnavailableError
from app.ids import ConversationId
from app.observability.logging import get_logger
from app.storage.database import Database
from app.storage.run_state_store import RunStateStore

logger = get_logger()

# Seconds between two looks, and at the least.
INTERVAL = 0.5
PAUSE = 0.02


class ConversationWatch:
    """One query for all followed conversations of the process, however many streams there are.

    A change made here rings its followers at once; the query finds it too, and those of other
    processes. `bell` makes it look sooner.
    """

    def __init__(self, database: Database, runs: RunStateStore) -> None:
        self._database = database
        self._runs = runs
        self.bell = Bell(pause=PAUSE)
        self._bells: dict[ConversationId, set[asyncio.Event]] = {}
        self._versions: dict[ConversationId, int] = {}

    @property
    def streams(self) -> int:
        """How many followers there are."""
        return sum(len(bells) for bells in self._bells.values())

    @property
    def followed(self) -> Set[ConversationId]:
        return self._bells.keys()

    @contextmanager
    def following(self, run_id: ConversationId, version: int) -> Generator[asyncio.Event]:
        """A bell that rings when the conversation may differ from that version, or is gone."""
        bell = asyncio.Event()
        self._bells.setdefault(run_id, set()).add(bell)
        self._versions.setdefault(run_id, version)
        try:
            yield bell
        finally:
            self._bells[run_id].discard(bell)
            if not self._bells[run_id]:
                del self._bells[run_id], self._versions[run_id]

    def saw(self, run_id: ConversationId, version: int) -> None:
        """A follower has read that version: it is news for the others, and later ones for all."""
        if version > self._versions[run_id]:
            self._versions[run_id] = version
            self.ring(run_id)

    def ring(self, run_id: ConversationId) -> None:
        for bell in self._bells.get(run_id, ()):
            bell.set()

    def ring_all(self) -> None:
        for run_id in self._bells:
            self.ring(run_id)

    async def keep_looking(self) -> None:
        while True:
            await self.bell.wait(INTERVAL)
            try:
                await self._look()
            except DatabaseUnavailableError:
                logger.warning("conversation_watch_blind")

    async def _look(self) -> None:
        if not self._versions:
            return
        async with self._database.statement() as driver:
            changed = await self._runs.changed(driver, dict(self._versions))
        for run_id in changed:
            self.ring(run_id)
