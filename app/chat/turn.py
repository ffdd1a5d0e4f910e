"""The way of a message: begin, execute, finish. The spine of the service; read it first.

Begin is one statement and finish is another. Between them no connection is held, and a process
may die at any line: the turn is then found by `engine/recovery.py` and begun again elsewhere,
behind what its journal says was finished.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.caller import Caller
from app.chat.config import ChatWorkflowConfig
from app.chat.context import Context
from app.chat.title import title_of
from app.chat.turn_journal import journal_of
from app.engine.shield import uninterrupted
from app.errors import (
    DatabaseUnavailableError,
    KeyTakenError,
    LostOwnershipError,
    OutcomeUnknownError,
    StatementDeclinedError,
    TurnInProgressError,
)
from app.events.stream_event import (
    ReasoningDelta,
    StepEvent,
    StreamEvent,
    TurnEnded,
    TurnRestarted,
    TurnStarted,
)
from app.ids import ConversationId, TurnId, WorkerId, new_message_id
from app.messages.codec import encode, hash_of
from app.messages.message import ConversationMessage, Envelope, JsonObject, Role, Side, Text
from app.observability.logging import get_logger
from app.runs import BegunTurn, Claim, Turn, TurnStatus
from app.steps import StepExecutor, StepInput, StepResult
from app.storage.database import Database
from app.storage.idempotency_store import IdempotencyStore, RequestKey
from app.storage.journal import Journal
from app.storage.patience import until_available
from app.storage.run_state_store import NewTurn, RunStateStore, TurnEnd
from app.storage.transcript_store import TranscriptStore
from app.streaming.recorder import Recorder, TurnLog
from app.wire.paths import Paths
from app.wire.problem import turn_problem

logger = get_logger()

CLAIM_ATTEMPTS = 3
# Seconds that a client waits, all told, for the database to tell whether its turn was begun.
CLAIM_PATIENCE = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a client sends, and what is known of the request that sent it."""

    content: str
    metadata: JsonObject
    request_id: str | None
    trace_id: str | None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """The turn that an earlier request with the same idempotency key has begun."""

    id: TurnId


@dataclass(frozen=True, slots=True)
class _Ran:
    """How a step went. `after_cancel`: what it told of when it had been cancelled.

    That belongs to a turn that ends so; a turn that is handed over goes on without it.
    """

    result: StepResult
    first_token_at: datetime | None
    after_cancel: Sequence[StepEvent]


class ChatTurn:
    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        transcripts: TranscriptStore,
        keys: IdempotencyStore,
        journal: Journal,
        executor: StepExecutor,
        recorder: Recorder,
        *,
        may_run: Callable[[], bool],
    ) -> None:
        """`may_run`: whether this process still has its right to run turns."""
        self._may_run = may_run
        self._database = database
        self._runs = runs
        self._transcripts = transcripts
        self._keys = keys
        self._journal = journal
        self._context = Context(database, transcripts)
        self._executor = executor
        self._recorder = recorder

    # ── begin ────────────────────────────────────────────────────────────────────────────────────

    async def begin(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        prompt: Prompt,
        *,
        turn_id: TurnId,
        worker_id: WorkerId,
    ) -> BegunTurn | KnownTurn:
        """Claims the conversation and stores the prompt, or raises and has stored nothing.

        Raises IdempotencyMismatchError, NotFoundError, ConversationClosedError, TurnInProgressError.
        """
        new = NewTurn(
            id=turn_id,
            worker_id=worker_id,
            message=encode(_user_message(prompt)),
            title=title_of(prompt.content),
            request_id=prompt.request_id,
            trace_id=prompt.trace_id,
            key=_key_of(caller, conversation_id, prompt),
        )
        for _ in range(CLAIM_ATTEMPTS):
            begun = await self._claim(caller, conversation_id, new)
            if begun is not None:
                logger.info("turn_begun", **_ids(begun))
                return begun
            known = await self._known_or_refused(caller, conversation_id, new.key)
            if known is not None:
                return known
        raise TurnInProgressError(conversation_id, None)

    async def known(
        self, caller: Caller, conversation_id: ConversationId, prompt: Prompt, *, or_refused: bool
    ) -> KnownTurn | None:
        """The turn of an earlier request with this key; with `or_refused` raises why none can be."""
        key = _key_of(caller, conversation_id, prompt)
        if or_refused:
            return await self._known_or_refused(caller, conversation_id, key)
        if key is None:
            return None
        async with self._database.connection() as connection:
            known = await self._keys.find(connection, key)
        return None if known is None or known.turn_id is None else KnownTurn(known.turn_id)

    async def _claim(
        self, caller: Caller, conversation_id: ConversationId, new: NewTurn
    ) -> BegunTurn | None:
        """A claim whose commit is not known is made again: it then finds itself, or succeeds."""
        sent = False
        deadline = asyncio.get_running_loop().time() + CLAIM_PATIENCE

        async def claim() -> BegunTurn | None:
            nonlocal sent
            async with self._database.statement() as driver:
                before, sent = sent, True
                begun = await self._runs.claim(driver, caller, conversation_id, new)
                if begun is None and before:
                    begun = await self._runs.begun(driver, conversation_id, new)
            return begun

        try:
            return await claim()
        except KeyTakenError:
            return None
        except StatementDeclinedError:
            raise
        except DatabaseUnavailableError:
            if not sent:
                raise
        try:
            async with asyncio.timeout_at(deadline):
                return await until_available(claim)
        except KeyTakenError:
            return None
        except (TimeoutError, LostOwnershipError):
            # Not back in time; or begun, and ended by someone before we could look.
            raise OutcomeUnknownError(conversation_id, new.id) from None

    async def _known_or_refused(
        self, caller: Caller, conversation_id: ConversationId, key: RequestKey | None
    ) -> KnownTurn | None:
        """The key comes before closed and busy: its turn may be what closed or busied the run."""
        async with self._database.connection() as connection:
            if key is not None:
                known = await self._keys.find(connection, key)
                if known is not None and known.turn_id is not None:
                    return KnownTurn(known.turn_id)
            refusal = await self._runs.refusal(connection, caller, conversation_id)
        if refusal is not None:
            raise refusal
        return None

    # ── execute ──────────────────────────────────────────────────────────────────────────────────

    async def execute(self, begun: BegunTurn) -> None:
        """Runs the step, tells of it in the log, and commits how it ended.

        A cancelled task ends its turn only if a user asked for that. Else the turn was erased or
        taken, or is handed over because this process shuts down or has lost its right to run turns.
        """
        log = self._recorder.open(begun)
        try:
            ran = await self._run_or_stop(begun, log)
            stopped = ran.result.status is TurnStatus.CANCELLED
            if stopped and not await self._was_asked_for(begun):
                logger.info("turn_stopped", **_ids(begun))
                return
            await uninterrupted(self._finish(begun, log, ran))
        except LostOwnershipError:
            logger.warning("turn_lost", **_ids(begun))

    async def _run_or_stop(self, begun: BegunTurn, log: TurnLog) -> _Ran:
        try:
            return await self._run(begun, log)
        except asyncio.CancelledError:
            # Stopped before there was a step.
            return _Ran(StepResult(status=TurnStatus.CANCELLED), None, ())

    async def _run(self, begun: BegunTurn, log: TurnLog) -> _Ran:
        prompt = _prompt_of(begun)
        await log.append(_first_event(begun, prompt))
        step = await until_available(lambda: self._step_of(begun, prompt, log))
        shows_reasoning = ChatWorkflowConfig.from_snapshot(begun.config).reasoning == "shown"
        first_token_at, after_cancel = None, list[StepEvent]()
        async with aclosing(self._executor.run_stream(step)) as stream:
            item = await anext(stream)
            while not isinstance(item, StepResult):
                first_token_at = first_token_at or log.now()
                try:
                    if isinstance(item, ReasoningDelta) and not shows_reasoning:
                        pass
                    elif _is_cancelled():
                        after_cancel.append(item)
                    else:
                        await log.append(item)
                    item = await anext(stream)
                except asyncio.CancelledError as error:
                    # It came while we waited for the log: the executor has to know of it.
                    item = await stream.athrow(error)
        return _Ran(item, first_token_at, after_cancel)

    async def _step_of(
        self, begun: BegunTurn, prompt: ConversationMessage, log: TurnLog
    ) -> StepInput:
        journal = await journal_of(self._database, self._journal, begun, self._may_run)
        return replace(await self._context.step_for(begun, prompt, log.now), journal=journal)

    async def _was_asked_for(self, begun: BegunTurn) -> bool:
        async def read() -> bool:
            async with self._database.statement() as driver:
                return await self._runs.cancel_requested(driver, begun.claim)

        return await uninterrupted(until_available(read))

    # ── finish ───────────────────────────────────────────────────────────────────────────────────

    async def _finish(self, begun: BegunTurn, log: TurnLog, ran: _Ran) -> None:
        """Commits the end, however long the database is away. Not to be interrupted."""
        result = ran.result
        for event in ran.after_cancel:
            await log.append(event)
        waiting = await log.close()
        turn = _ended(begun, log.name.paths, ran, completed_at=log.now())
        last = log.render_last(TurnEnded(turn, by="user"))
        end = TurnEnd(
            turn=replace(turn, last_seq=last.seq or 0),
            messages=[encode(message) for message in result.messages],
            in_context=result.status is TurnStatus.COMPLETED or result.output is not None,
            frames=[*waiting, last],
        )
        await until_available(lambda: self._commit(begun.claim, end))
        self._recorder.show_end(log, end.frames)
        logger.info(
            "turn_ended",
            **_ids(begun),
            status=turn.status.value,
            code=None if turn.error is None else turn.error["code"],
            model=turn.model,
            input_tokens=turn.usage.input_tokens,
            output_tokens=turn.usage.output_tokens,
        )

    async def _commit(self, claim: Claim, end: TurnEnd) -> None:
        """One statement. Tried again after a broken connection, it may find its own work done."""
        async with self._database.statement() as driver:
            if await self._runs.finish(driver, claim, end):
                return
            if await self._transcripts.ended_at(driver, claim.turn_id) == end.turn.completed_at:
                return
        raise LostOwnershipError


def _first_event(begun: BegunTurn, prompt: ConversationMessage) -> StreamEvent:
    """Of this attempt: what others have shown of the turn stays, and is told to be void."""
    if begun.restarted is None or begun.last_seq == 0:
        return TurnStarted(begun.as_turn(), prompt)
    return TurnRestarted(begun.attempt, begun.restarted)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _ended(begun: BegunTurn, paths: Paths, ran: _Ran, *, completed_at: datetime) -> Turn:
    result, error = ran.result, None
    if result.error is not None:
        claim, request_id = begun.claim, begun.request_id
        error = turn_problem(
            result.error, paths, claim.run_id, claim.turn_id, request_id=request_id
        )
    return replace(
        begun.as_turn(),
        status=result.status,
        output=result.output,
        reason=None if result.reason is None else result.reason.value,
        error=error,
        model=result.model,
        finish_reason=result.finish_reason,
        usage=result.usage,
        first_token_at=ran.first_token_at,
        completed_at=completed_at,
    )


def _prompt_of(begun: BegunTurn) -> ConversationMessage:
    return ConversationMessage(
        id=begun.user_message_id,
        role=Role.USER,
        timestamp=begun.created_at,
        pieces=(Text(begun.prompt),),
        envelope=Envelope(Side.REQUEST),
        sent_metadata=begun.prompt_metadata,
    )


def _key_of(caller: Caller, conversation_id: ConversationId, prompt: Prompt) -> RequestKey | None:
    if prompt.idempotency_key is None:
        return None
    asked = hash_of([prompt.content, prompt.metadata])
    return RequestKey(caller.user_id, str(conversation_id), prompt.idempotency_key, asked)


def _user_message(prompt: Prompt) -> ConversationMessage:
    """The time is the database's: the claim sets it."""
    return ConversationMessage(
        id=new_message_id(),
        role=Role.USER,
        timestamp=datetime.fromtimestamp(0, UTC),
        pieces=(Text(prompt.content),),
        envelope=Envelope(Side.REQUEST),
        sent_metadata=prompt.metadata,
    )


def _ids(begun: BegunTurn) -> dict[str, str | int | None]:
    return {
        "conversation_id": str(begun.claim.run_id),
        "turn_id": str(begun.claim.turn_id),
        "turn_number": begun.number,
        "request_id": begun.request_id,
    }
