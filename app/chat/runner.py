"""Orchestrates conversations. Knows nothing of HTTP, SQL or a model framework."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from app.caller import Caller
from app.chat.cancelling import Cancelling
from app.chat.config import ChatWorkflowConfig
from app.chat.conversation_patch import ConversationPatch
from app.chat.conversation_stream import ConversationStream
from app.chat.turn import ChatTurn, KnownTurn, Prompt
from app.chat.turn_stream import TurnStream
from app.engine.engine import RunEngine
from app.engine.shield import uninterrupted
from app.errors import (
    BadLastEventIdError,
    DatabaseUnavailableError,
    DrainingError,
    ForbiddenError,
    KeyTakenError,
    NotFoundError,
    OverloadedError,
    PreconditionFailedError,
    StillRunningError,
)
from app.ids import ConversationId, TurnId, new_conversation_id, new_turn_id
from app.messages.codec import dump_json, hash_of
from app.runs import BegunTurn, Run, RunStatus, Turn
from app.storage.database import Database
from app.storage.idempotency_store import CREATE, IdempotencyStore, RequestKey
from app.storage.run_state_store import NewRun, Order, RunStateStore
from app.storage.transcript_store import PlacedMessage, TranscriptStore, TurnWithMessages
from app.streaming.conversation_subscription import ConversationSubscriptions, Place
from app.streaming.subscription import Subscriptions
from app.wire.event import EventId

# On top of a turn's own limit: what begin, context and finish may take.
SLACK = 30.0
# Seconds after which a read that does not end is given up, once the service is shutting down.
LAST_READ = 1.0
# Seconds between two looks at a turn that another process has taken over.
POLL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NewConversation:
    title: str | None
    metadata: Mapping[str, object]
    overrides: Mapping[str, object]
    session_id: str | None
    parent_workflow_id: str | None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of a send. `replayed`: of an earlier one with the same key, which had ended."""

    stored: TurnWithMessages
    replayed: bool


class ChatWorkflowRunner:
    """The caller is always an argument; who may see what is decided in the statement."""

    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        transcripts: TranscriptStore,
        keys: IdempotencyStore,
        turn: ChatTurn,
        engine: RunEngine,
        subscriptions: Subscriptions,
        conversations: ConversationSubscriptions,
        cancelling: Cancelling,
        *,
        config: ChatWorkflowConfig,
        erase: Callable[[Caller, ConversationId], Awaitable[None]],
    ) -> None:
        self._database = database
        self._runs = runs
        self._transcripts = transcripts
        self._keys = keys
        self._turn = turn
        self._engine = engine
        self._subscriptions = subscriptions
        self._conversations = conversations
        self._cancelling = cancelling
        self._config = config
        self._erase = erase

    async def create(self, caller: Caller, new: NewConversation) -> tuple[Run, bool]:
        """The conversation, and whether an earlier request with the same key has made it.

        Raises IdempotencyMismatchError.
        """
        key = _key_of(caller, new)
        row = NewRun(
            id=new_conversation_id(),
            user_id=caller.user_id,
            title=new.title,
            metadata=new.metadata,
            config=self._config.with_overrides(new.overrides).snapshot(),
            session_id=new.session_id,
            parent_workflow_id=new.parent_workflow_id,
        )
        if key is None:
            async with self._database.connection() as connection:
                return await self._runs.create(connection, row), False
        try:
            async with self._database.transaction() as transaction:
                run = await self._runs.create(transaction, row)
                await self._keys.add(transaction, key, run.id)
        except KeyTakenError:
            return await self._created_before(caller, key), True
        return run, False

    async def _created_before(self, caller: Caller, key: RequestKey) -> Run:
        async with self._database.connection() as connection:
            known = await self._keys.find(connection, key)
            if known is None:
                raise NotFoundError
            return await self._runs.get(connection, caller, known.run_id)

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
        """Newest first; the caller's own, or another `user_id`'s.

        Raises ForbiddenError without the scope for that, whether or not there is such a user.
        """
        if user_id not in (None, caller.user_id) and not caller.acts_for_anyone("read"):
            raise ForbiddenError("the scope conversations:read:any is missing")
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

    async def update(
        self, caller: Caller, conversation_id: ConversationId, patch: ConversationPatch
    ) -> Run:
        """Changes title and metadata, also while a turn runs.

        Raises NotFoundError, PreconditionFailedError, InvalidRequestError.
        """
        async with self._database.transaction() as transaction:
            run = await self._runs.lock(transaction, caller, conversation_id)
            if patch.if_match is not None and run.version not in patch.if_match:
                raise PreconditionFailedError
            title, metadata = patch.title_of(run), patch.metadata_of(run)
            if title == run.title and dump_json(metadata) == dump_json(run.metadata):
                return run
            run = await self._runs.describe(
                transaction, conversation_id, title=title, metadata=metadata
            )
        self._conversations.watch.ring(conversation_id)
        return run

    async def send_message(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        prompt: Prompt,
        *,
        wait: float | None = None,
    ) -> Sent:
        """Begins a turn, waits for its end and returns it as it was stored.

        After `wait` seconds it is returned while it still runs. Raises NotFoundError,
        ConversationClosedError, TurnInProgressError and then has stored nothing; DrainingError or
        StillRunningError, with the turn's id, when the turn goes on.
        """
        begun = await uninterrupted(self._begin(caller, conversation_id, prompt))
        if isinstance(begun, KnownTurn):
            stored = await self._stored(caller, conversation_id, begun.id)
            if stored.turn.status.is_terminal:
                return Sent(stored, replayed=True)
            async with self._database.connection() as connection:
                run = await self._runs.get(connection, caller, conversation_id)
            turn, limit = stored.turn, ChatWorkflowConfig.from_snapshot(run.config).turn_timeout
        else:
            turn = begun.as_turn()
            limit = ChatWorkflowConfig.from_snapshot(begun.config).turn_timeout
        stored = await self._after(limit + SLACK if wait is None else wait, caller, turn)
        if wait is not None or stored.turn.status.is_terminal:
            return Sent(stored, replayed=False)
        if self._engine.is_draining:
            raise DrainingError(conversation_id, turn.id)
        raise StillRunningError(conversation_id, turn.id)

    async def send_message_stream(
        self, caller: Caller, conversation_id: ConversationId, prompt: Prompt
    ) -> TurnStream:
        """Begins a turn and returns it with its frames, from the first on. Raises as above."""
        begun = await uninterrupted(self._begin(caller, conversation_id, prompt))
        if isinstance(begun, BegunTurn):
            turn = begun.as_turn()
            return TurnStream(turn, self._subscriptions.to(turn))
        turn = (await self._stored(caller, conversation_id, begun.id)).turn
        replayed = turn.status.is_terminal
        return TurnStream(turn, self._subscriptions.to(turn), replayed=replayed)

    async def follow_turn(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        turn_id: TurnId,
        *,
        after: EventId | None,
    ) -> TurnStream | None:
        """The turn's frames after that event, then those that come; None after its last.

        Raises NotFoundError, BadLastEventIdError.
        """
        turn = (await self.turn(caller, conversation_id, turn_id)).turn
        seq = await self._checked(turn, after)
        if turn.status.is_terminal and seq == turn.last_seq:
            return None
        return TurnStream(turn, self._subscriptions.to(turn, after=seq))

    async def follow(
        self, caller: Caller, conversation_id: ConversationId, *, after: EventId | None
    ) -> ConversationStream | None:
        """All turns after that event, or from the running one on, and those that come.

        None when the conversation is closed and nothing comes any more.
        Raises NotFoundError, BadLastEventIdError.
        """
        run = await self.get(caller, conversation_id)
        place = await self._place(run, after)
        if not run.is_open and place.number > run.turn_count:
            return None
        return ConversationStream(self._conversations.to(run, place))

    async def _place(self, run: Run, after: EventId | None) -> Place:
        if after is None:
            active = run.active_turn
            return Place(run.turn_count + 1 if active is None else active.number, 0)
        turn = await self._conversations.turn(run.id, after.turn_number)
        if turn is None:
            raise BadLastEventIdError
        seq = await self._checked(turn, after)
        if turn.status.is_terminal and seq == turn.last_seq:
            return Place(turn.number + 1, 0)
        return Place(turn.number, seq)

    async def _checked(self, turn: Turn, after: EventId | None) -> int:
        if after is None:
            return 0
        last_seq = turn.last_seq
        if not turn.status.is_terminal:
            last_seq = await self._subscriptions.last_seq(turn)
        if after.turn_number != turn.number or after.seq > last_seq:
            raise BadLastEventIdError
        return after.seq

    async def cancel(
        self, caller: Caller, conversation_id: ConversationId, turn_id: TurnId | None = None
    ) -> TurnWithMessages | None:
        """Stops the turn, or whichever runs, and returns it when it has ended.

        A turn that had ended before is returned as it is; None when none was running.
        Raises NotFoundError.
        """
        ended = await self._cancelling.cancel(caller, conversation_id, turn_id)
        turn_id = ended or turn_id
        if turn_id is not None:
            return await self._stored(caller, conversation_id, turn_id)
        async with self._database.connection() as connection:
            await self._runs.require(connection, caller, conversation_id, "write")
        return None

    async def _begin(
        self, caller: Caller, conversation_id: ConversationId, prompt: Prompt
    ) -> BegunTurn | KnownTurn:
        """Claim and start belong together: a claimed turn that nobody started would hang."""
        turn_id = new_turn_id()
        try:
            with self._engine.claiming(turn_id) as worker_id:
                begun = await self._turn.begin(
                    caller, conversation_id, prompt, turn_id=turn_id, worker_id=worker_id
                )
                if isinstance(begun, BegunTurn):
                    self._subscriptions.followers.open(turn_id)
                    self._engine.start(begun)
                    self._conversations.watch.ring(conversation_id)
                return begun
        except (DrainingError, OverloadedError) as error:
            # No new turn here now; but a repeated request may have one already, and one that is
            # refused for good need not be tried again.
            final = isinstance(error, OverloadedError)
            known = await self._turn.known(caller, conversation_id, prompt, or_refused=final)
            if known is None:
                raise
            return known

    async def _after(self, limit: float, caller: Caller, turn: Turn) -> TurnWithMessages:
        """The turn when it has ended, or as it stands after `limit` seconds or at a shutdown.

        One that was lost to another process is waited for in the table, and the table for a while
        when the database is away.
        """
        deadline = time.monotonic() + limit
        await self._engine.wait(turn.id, limit)
        while True:
            with suppress(DatabaseUnavailableError):
                stored = await self._stored_in_time(caller, turn)
                over = stored.turn.status.is_terminal or self._engine.is_draining
                if over or time.monotonic() >= deadline:
                    return stored
            if self._engine.is_draining:
                raise DrainingError(turn.run_id, turn.id)
            if time.monotonic() >= deadline + SLACK:
                raise StillRunningError(turn.run_id, turn.id)
            await asyncio.sleep(min(POLL, max(0, deadline - time.monotonic()) or POLL))

    async def _stored_in_time(self, caller: Caller, turn: Turn) -> TurnWithMessages:
        """Raises DatabaseUnavailableError; soon, when the service shuts down."""
        reading = asyncio.ensure_future(self._stored(caller, turn.run_id, turn.id))
        while not reading.done():
            await asyncio.wait([reading], timeout=LAST_READ)
            if self._engine.is_closed and not reading.done():
                reading.cancel()
                raise DatabaseUnavailableError("the database does not answer")
        return reading.result()

    async def _stored(
        self, caller: Caller, conversation_id: ConversationId, turn_id: TurnId
    ) -> TurnWithMessages:
        """Who may write may see what came of it."""
        async with self._database.connection() as connection:
            return await self._transcripts.turn(
                connection, caller, conversation_id, turn_id, action="write"
            )

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

    async def version(self, caller: Caller, conversation_id: ConversationId) -> int:
        """Another one than before when anything may have changed. Raises NotFoundError."""
        async with self._database.connection() as connection:
            return await self._runs.version(connection, caller, conversation_id)

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
            run = await self._runs.close(transaction, caller, conversation_id)
        self._conversations.watch.ring(conversation_id)
        return run

    async def delete(self, caller: Caller, conversation_id: ConversationId) -> None:
        """Erases; again is fine for its owner. Raises NotFoundError."""
        await self._erase(caller, conversation_id)
        self._conversations.watch.ring(conversation_id)


def _key_of(caller: Caller, new: NewConversation) -> RequestKey | None:
    if new.idempotency_key is None:
        return None
    given = [new.title, new.metadata, new.overrides, new.session_id, new.parent_workflow_id]
    return RequestKey(caller.user_id, CREATE, new.idempotency_key, hash_of(given))
