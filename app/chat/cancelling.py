"""Stops a turn for its user, wherever it runs and whether or not its owner is alive."""

import asyncio
import time

from app.caller import Caller
from app.engine.engine import RunEngine
from app.engine.forced_end import ForcedEnd
from app.ids import ConversationId, TurnId
from app.storage.database import Database
from app.storage.run_state_store import RunningTurn, RunStateStore
from app.storage.transcript_store import TranscriptStore
from app.streaming.followers import Closing, Followers

# Seconds that the owner has to end the turn itself, before it is ended by force.
PATIENCE = 1.0
LOOK = 0.1


class Cancelling:
    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        transcripts: TranscriptStore,
        engine: RunEngine,
        forced_end: ForcedEnd,
        followers: Followers,
    ) -> None:
        self._database = database
        self._runs = runs
        self._transcripts = transcripts
        self._engine = engine
        self._forced_end = forced_end
        self._followers = followers

    async def cancel(
        self, caller: Caller, conversation_id: ConversationId, turn_id: TurnId | None
    ) -> TurnId | None:
        """Returns when the turn has ended: its id, or None when none was running."""
        running = await self._request(caller, conversation_id, turn_id)
        if running is None:
            return None
        turn_id = running.turn.id
        while running is not None and not await self._ended_by_its_owner(running):
            if await self._forced_end.cancel(running.claim, running.turn):
                # Its owner may be here, held up by a tool: who follows it reads on in the table.
                self._followers.close(turn_id, Closing.LOST)
                break
            # It has a new owner since, who may not have seen the request: one more try.
            running = await self._request(caller, conversation_id, turn_id)
        return turn_id

    async def _request(
        self, caller: Caller, conversation_id: ConversationId, turn_id: TurnId | None
    ) -> RunningTurn | None:
        async with self._database.statement() as driver:
            return await self._runs.request_cancel(driver, caller, conversation_id, turn_id)

    async def _ended_by_its_owner(self, running: RunningTurn) -> bool:
        """An owner elsewhere finds the request at its next look, twice a second."""
        deadline = time.monotonic() + PATIENCE
        await self._engine.stop(running.turn.id, PATIENCE)
        while not await self._has_ended(running.turn.id):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(LOOK)
        return True

    async def _has_ended(self, turn_id: TurnId) -> bool:
        async with self._database.statement() as driver:
            status = await self._transcripts.status(driver, turn_id)
        return status is None or status.is_terminal
