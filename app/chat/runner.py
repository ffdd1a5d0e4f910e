"""Orchestrates conversations. Knows nothing of HTTP, SQL or a model framework."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.caller import Caller
from app.chat.config import ChatWorkflowConfig
from app.chat.turn import ChatTurn, Prompt
from app.engine.engine import RunEngine
from app.engine.shield import uninterrupted
from app.errors import DrainingError, StillRunningError
from app.ids import ConversationId, TurnId, new_conversation_id, new_turn_id
from app.runs import BegunTurn, Run, RunStatus, Turn
from app.storage.database import Database
from app.storage.run_state_store import NewRun, Order, RunStateStore
from app.storage.transcript_store import PlacedMessage, TranscriptStore, TurnWithMessages

# On top of a turn's own limit: what begin, context and finish may take.
SLACK = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConversation:
    title: str | None
    metadata: Mapping[str, object]
    overrides: Mapping[str, object]
    session_id: str | None
    parent_workflow_id: str | None


class ChatWorkflowRunner:
    """The caller is always an argument; who may see what is decided in the statement."""

    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        transcripts: TranscriptStore,
        turn: ChatTurn,
        engine: RunEngine,
        *,
        config: ChatWorkflowConfig,
        erase: Callable[[Caller, ConversationId], Awaitable[None]],
    ) -> None:
        self._database = database
        self._runs = runs
        self._transcripts = transcripts
        self._turn = turn
        self._engine = engine
        self._config = config
        self._erase = erase

    async def create(self, caller: Caller, new: NewConversation) -> Run:
        config = self._config.with_overrides(new.overrides)
        row = NewRun(
            id=new_conversation_id(),
            user_id=caller.user_id,
            title=new.title,
            metadata=new.metadata,
            config=config.snapshot(),
            session_id=new.session_id,
            parent_workflow_id=new.parent_workflow_id,
        )
        async with self._database.connection() as connection:
            return await self._runs.create(connection, row)

    async def get(self, caller: Caller, conversation_id: ConversationId) -> Run:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            return await self._runs.get(connection, caller, conversation_id)

    async def list(
        self,
        caller: Caller,
        *,
        limit: int,
        order: Order = Order.UPDATED,
        after: tuple[datetime, ConversationId] | None = None,
        status: RunStatus | None = None,
        user_id: str | None = None,
    ) -> Sequence[Run]:
        """Newest first; only the caller's own, unless its scopes allow another `user_id`."""
        async with self._database.connection() as connection:
            return await self._runs.list(
                connection,
                caller,
                limit=limit,
                order=order,
                after=after,
                status=status,
                user_id=user_id,
            )

    async def send_message(
        self, caller: Caller, conversation_id: ConversationId, prompt: Prompt
    ) -> TurnWithMessages:
        """Begins a turn, waits for its end and returns it as it was stored.

        Raises NotFoundError, ConversationClosedError, TurnInProgressError and then has stored
        nothing; DrainingError or StillRunningError, with the turn's id, when the turn goes on.
        """
        begun = await uninterrupted(self._begin(caller, conversation_id, prompt))
        return await self._ended(caller, begun)

    async def _begin(
        self, caller: Caller, conversation_id: ConversationId, prompt: Prompt
    ) -> BegunTurn:
        """Claim and start belong together: a claimed turn that nobody started would hang."""
        turn_id = new_turn_id()
        with self._engine.claiming(turn_id) as worker_id:
            begun = await self._turn.begin(
                caller, conversation_id, prompt, turn_id=turn_id, worker_id=worker_id
            )
            self._engine.start(begun)
        return begun

    async def _ended(self, caller: Caller, begun: BegunTurn) -> TurnWithMessages:
        claim = begun.claim
        limit = ChatWorkflowConfig.from_snapshot(begun.config).turn_timeout + SLACK
        try:
            await self._engine.wait(claim.turn_id, limit)
        except TimeoutError:
            raise StillRunningError(claim.run_id, claim.turn_id) from None
        async with self._database.connection() as connection:
            ended = await self._transcripts.turn(
                connection, caller, claim.run_id, claim.turn_id, action="write"
            )
        if ended.turn.status.is_terminal:
            return ended
        if self._engine.is_draining:
            raise DrainingError(claim.run_id, claim.turn_id)
        raise StillRunningError(claim.run_id, claim.turn_id)

    async def get_history(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        limit: int = 20,
        before: int | None = None,
    ) -> Sequence[PlacedMessage]:
        """The messages of the last `limit` turns before that turn number, oldest first.

        Raises NotFoundError.
        """
        async with self._database.connection() as connection:
            history = await self._transcripts.history(
                connection, caller, conversation_id, before=before, limit=limit
            )
            if not history:
                await self._runs.get(connection, caller, conversation_id)
        return history

    async def turn(
        self, caller: Caller, conversation_id: ConversationId, turn_id: TurnId
    ) -> TurnWithMessages:
        """Raises NotFoundError."""
        async with self._database.connection() as connection:
            return await self._transcripts.turn(connection, caller, conversation_id, turn_id)

    async def turns(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        limit: int,
        before: int | None = None,
    ) -> Sequence[Turn]:
        """Newest first. Raises NotFoundError."""
        async with self._database.connection() as connection:
            turns = await self._transcripts.turns(
                connection, caller, conversation_id, before=before, limit=limit
            )
            if not turns:
                await self._runs.get(connection, caller, conversation_id)
        return turns

    async def close(self, caller: Caller, conversation_id: ConversationId) -> Run:
        """Marks as completed; again is fine. Raises NotFoundError, TurnInProgressError."""
        async with self._database.transaction() as transaction:
            return await self._runs.close(transaction, caller, conversation_id)

    async def delete(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Erases; again is fine for its owner. Raises NotFoundError."""
        await self._erase(caller, conversation_id)
