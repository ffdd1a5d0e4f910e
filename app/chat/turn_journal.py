"""The journal of one running turn, as its step sees it."""

from collections.abc import Callable, Mapping

from app.engine.shield import uninterrupted
from app.errors import LostOwnershipError
from app.runs import BegunTurn, Claim
from app.storage.database import Database
from app.storage.journal import Journal
from app.storage.patience import until_available


class TurnJournal:
    """A StepJournal. What is recorded is for the next attempt, and so is not looked up again here."""

    def __init__(
        self,
        database: Database,
        journal: Journal,
        claim: Claim,
        entries: Mapping[str, str],
        may_run: Callable[[], bool],
    ) -> None:
        """`may_run`: whether this process still has its right to run turns, by its own clock."""
        self._may_run = may_run
        self._database = database
        self._journal = journal
        self._claim = claim
        self._entries = entries

    def find(self, name: str) -> str | None:
        return self._entries.get(name)

    async def record(self, name: str, result: str) -> None:
        """Not to be interrupted: what has finished must be known to be so."""
        await uninterrupted(until_available(lambda: self._record(name, result)))

    async def require_ours(self) -> None:
        """A process that was frozen finds out before it does what another may have done.

        Also one that was frozen after the database had answered.
        """
        await until_available(self._require_ours)
        if not self._may_run():
            raise LostOwnershipError

    async def _require_ours(self) -> None:
        async with self._database.statement() as driver:
            if not await self._journal.is_live(driver, self._claim):
                raise LostOwnershipError

    async def _record(self, name: str, result: str) -> None:
        async with self._database.statement() as driver:
            if not await self._journal.record(driver, self._claim, name, result):
                raise LostOwnershipError


async def journal_of(
    database: Database, journal: Journal, begun: BegunTurn, may_run: Callable[[], bool]
) -> TurnJournal:
    """With what earlier attempts have left; the first has nothing to read."""
    entries: Mapping[str, str] = {}
    if begun.attempt > 1:
        async with database.statement() as driver:
            entries = await journal.entries(driver, begun.claim)
    return TurnJournal(database, journal, begun.claim, entries, may_run)
