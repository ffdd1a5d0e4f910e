"""Looks after the turns that run here: whether they were cancelled elsewhere, or are ours no more."""

from collections.abc import Callable, Sequence

from app.bell import Bell
from app.errors import DatabaseUnavailableError
from app.ids import TurnId
from app.observability.logging import get_logger
from app.runs import Claim
from app.storage.database import Database
from app.storage.run_state_store import RunStateStore

logger = get_logger()

# Seconds between two looks, and at the least.
INTERVAL = 0.5
PAUSE = 0.02


class Watch:
    """One query for all turns of the process; `bell` makes it come sooner."""

    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        *,
        claims: Callable[[], Sequence[Claim]],
        interrupt: Callable[[TurnId], None],
        on_lost: Callable[[TurnId], None],
    ) -> None:
        """`on_lost` is told of turns that others end or go on with, and soon: one of ours may be
        slow to stop."""
        self._database = database
        self._runs = runs
        self._claims = claims
        self._interrupt = interrupt
        self._on_lost = on_lost
        self.bell = Bell(pause=PAUSE)

    async def keep_looking(self) -> None:
        while True:
            await self.bell.wait(INTERVAL)
            try:
                await self._look()
            except DatabaseUnavailableError:
                logger.warning("watch_blind")

    async def _look(self) -> None:
        claims = self._claims()
        if not claims:
            return
        async with self._database.statement() as driver:
            over = await self._runs.not_to_go_on(driver, claims)
        for turn_id, is_lost in over.items():
            self._interrupt(turn_id)
            if is_lost:
                self._on_lost(turn_id)
