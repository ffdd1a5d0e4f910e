"""What the model is shown of the past: whole turns, oldest first, the last so many."""

from collections.abc import Callable
from datetime import datetime

from app.chat.config import ChatWorkflowConfig
from app.messages.message import ConversationMessage
from app.runs import BegunTurn
from app.steps import StepInput
from app.storage.database import Database
from app.storage.transcript_store import TranscriptStore


class Context:
    def __init__(self, database: Database, transcripts: TranscriptStore) -> None:
        self._database = database
        self._transcripts = transcripts

    async def step_for(
        self, begun: BegunTurn, prompt: ConversationMessage, clock: Callable[[], datetime]
    ) -> StepInput:
        """One short read; no connection is held when it returns. `clock` goes by the database's."""
        config = ChatWorkflowConfig.from_snapshot(begun.config)
        async with self._database.statement() as driver:
            history = await self._transcripts.load_recent_turns(
                driver, begun.claim.run_id, before=begun.number, limit=config.max_context_turns
            )
        return StepInput(
            conversation_id=begun.claim.run_id,
            turn_id=begun.claim.turn_id,
            attempt=begun.attempt,
            now=clock(),
            user_id=begun.user_id,
            prompt=prompt,
            history=tuple(history),
            model=config.model,
            instructions=config.instructions,
            time_limit=config.turn_timeout,
            first_token_limit=config.first_token_timeout,
            tools=None if config.tools is None else frozenset(config.tools),
        )
