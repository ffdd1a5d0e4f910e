"""The way of a message: begin, execute, finish. The spine of the service; read it first.

Begin is one statement and finish is another. Between them no connection is held, and a process
may die at any line: the turn is then found by `engine/recovery.py` and ended.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from app.caller import Caller
from app.chat.context import Context
from app.chat.title import title_of
from app.engine.shield import uninterrupted
from app.errors import DatabaseUnavailableError, LostOwnershipError, TurnInProgressError
from app.ids import ConversationId, TurnId, WorkerId, new_message_id
from app.messages.codec import encode
from app.messages.message import ConversationMessage, Envelope, JsonObject, Role, Side, Text
from app.observability.logging import get_logger
from app.runs import BegunTurn, Claim, TurnStatus
from app.steps import StepExecutor, StepInput, StepResult
from app.storage.database import Database
from app.storage.run_state_store import NewTurn, RunStateStore, TurnEnd
from app.storage.transcript_store import TranscriptStore
from app.wire.problem import turn_problem

T = TypeVar("T")

logger = get_logger()

CLAIM_ATTEMPTS = 3
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a client sends, and what is known of the request that sent it."""

    content: str
    metadata: JsonObject
    request_id: str | None
    trace_id: str | None


class ChatTurn:
    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        transcripts: TranscriptStore,
        executor: StepExecutor,
    ) -> None:
        self._database = database
        self._runs = runs
        self._transcripts = transcripts
        self._context = Context(database, transcripts)
        self._executor = executor

    # ── begin ────────────────────────────────────────────────────────────────────────────────────

    async def begin(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        prompt: Prompt,
        *,
        turn_id: TurnId,
        worker_id: WorkerId,
    ) -> BegunTurn:
        """Claims the conversation and stores the prompt, or raises and has stored nothing.

        Raises NotFoundError, ConversationClosedError, TurnInProgressError.
        """
        new = NewTurn(
            id=turn_id,
            worker_id=worker_id,
            message=encode(_user_message(prompt)),
            title=title_of(prompt.content),
            request_id=prompt.request_id,
            trace_id=prompt.trace_id,
        )
        for _ in range(CLAIM_ATTEMPTS):
            begun = await self._claim(caller, conversation_id, new)
            if begun is not None:
                logger.info("turn_begun", **_ids(begun))
                return begun
            async with self._database.connection() as connection:
                refusal = await self._runs.refusal(connection, caller, conversation_id)
            if refusal is not None:
                raise refusal
        raise TurnInProgressError(conversation_id, None)

    async def _claim(
        self, caller: Caller, conversation_id: ConversationId, new: NewTurn
    ) -> BegunTurn | None:
        try:
            async with self._database.statement() as driver:
                return await self._runs.claim(driver, caller, conversation_id, new)
        except DatabaseUnavailableError:
            # The claim may have been committed before the connection broke.
            async with self._database.statement() as driver:
                begun = await self._runs.begun(driver, conversation_id, new)
            if begun is None:
                raise
            return begun

    # ── execute ──────────────────────────────────────────────────────────────────────────────────

    async def execute(self, begun: BegunTurn) -> None:
        """Runs the step and commits how it ended.

        A cancelled task ends nothing: the turn was erased or ended by someone else, or it is left
        to recovery because this process is shutting down.
        """
        step = await self._step(begun)
        result, first_token_at = await self._run(step, begun)
        if result.status is TurnStatus.CANCELLED:
            logger.info("turn_stopped", **_ids(begun))
            raise asyncio.CancelledError
        await self._finish(begun, _end(begun, result, first_token_at))

    async def _step(self, begun: BegunTurn) -> StepInput:
        prompt = ConversationMessage(
            id=begun.user_message_id,
            role=Role.USER,
            timestamp=begun.created_at,
            pieces=(Text(begun.prompt),),
            envelope=Envelope(Side.REQUEST),
        )
        return await until_available(lambda: self._context.step_for(begun, prompt))

    async def _run(self, step: StepInput, begun: BegunTurn) -> tuple[StepResult, datetime | None]:
        started, first_token_at = time.monotonic(), None
        async with aclosing(self._executor.run_stream(step)) as stream:
            async for item in stream:
                if isinstance(item, StepResult):
                    return item, first_token_at
                if first_token_at is None:
                    elapsed = timedelta(seconds=time.monotonic() - started)
                    first_token_at = begun.created_at + elapsed
        raise AssertionError("a stream ended without a result")

    # ── finish ───────────────────────────────────────────────────────────────────────────────────

    async def fail(self, begun: BegunTurn, error: Exception) -> None:
        """Ends a turn whose execution raised: a fault of ours."""
        result = StepResult(status=TurnStatus.FAILED)
        await self._finish(begun, replace(_end(begun, result, None), error=_problem(begun, error)))

    async def _finish(self, begun: BegunTurn, end: TurnEnd) -> None:
        """Commits the end, whoever is cancelled meanwhile and however long the database is away."""
        try:
            await uninterrupted(until_available(lambda: self._commit(begun.claim, end)))
        except LostOwnershipError:
            logger.warning("turn_lost", **_ids(begun))
            return
        usage = end.usage
        logger.info(
            "turn_ended",
            **_ids(begun),
            status=end.status.value,
            code=None if end.error is None else end.error["code"],
            model=end.model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
        )

    async def _commit(self, claim: Claim, end: TurnEnd) -> None:
        """One statement. Tried again after a broken connection, it may find its own work done."""
        async with self._database.statement() as driver:
            if await self._runs.finish(driver, claim, end):
                return
            if await self._transcripts.status(driver, claim) is end.status:
                return
        raise LostOwnershipError


def _end(begun: BegunTurn, result: StepResult, first_token_at: datetime | None) -> TurnEnd:
    return TurnEnd(
        status=result.status,
        messages=[encode(message) for message in result.messages],
        in_context=result.status is TurnStatus.COMPLETED or result.output is not None,
        reason=None if result.reason is None else result.reason.value,
        error=None if result.error is None else _problem(begun, result.error),
        model=result.model,
        finish_reason=result.finish_reason,
        usage=result.usage,
        first_token_at=first_token_at,
    )


def _problem(begun: BegunTurn, error: Exception) -> Mapping[str, object]:
    claim = begun.claim
    return turn_problem(error, claim.run_id, claim.turn_id, request_id=begun.request_id)


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


async def until_available(work: Callable[[], Awaitable[T]]) -> T:
    """Tries again while the database is away, with pauses that grow to five seconds."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await work()
        except DatabaseUnavailableError:
            logger.warning("database_unavailable", retry_in_s=pause)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
