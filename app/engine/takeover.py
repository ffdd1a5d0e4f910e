"""Makes a turn that nobody runs our own: from then on its old owner can write nothing for it."""

from app.ids import WorkerId
from app.runs import BegunTurn
from app.storage.database import Database
from app.storage.event_log import EventLog
from app.storage.run_state_store import Orphan, RunStateStore
from app.storage.transcript_store import TranscriptStore


class Takeover:
    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        transcripts: TranscriptStore,
        event_log: EventLog,
    ) -> None:
        self._database = database
        self._runs = runs
        self._transcripts = transcripts
        self._event_log = event_log

    async def take(self, orphan: Orphan, worker_id: WorkerId) -> BegunTurn | None:
        """The turn as its next attempt; None: someone else has it, or it is to end.

        One transaction, in which the fence grows *before* the log is read.
        """
        async with self._database.statement() as driver, driver.transaction():
            taken = await self._runs.take_over(driver, orphan, worker_id)
            if taken is None:
                return None
            claim = taken.claim
            last_seq = await self._event_log.last_seq(driver, claim.run_id, claim.turn_id)
            prompt = await self._transcripts.prompt(driver, claim.turn_id)
        return taken.begun(prompt, last_seq, orphan.reason)
