"""A step: what an executor is given, and what it gives back."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias

from app.errors import StepError
from app.events.stream_event import StepEvent
from app.ids import ConversationId, TurnId
from app.messages.message import ConversationMessage
from app.runs import IncompleteReason, TurnStatus, Usage


class StepJournal(Protocol):
    """What earlier attempts of this step have finished, and where this one notes the same."""

    def find(self, name: str) -> str | None:
        """The result that was recorded under this name, as it was given."""
        ...

    async def record(self, name: str, result: str) -> None:
        """Returns when it is durable, and not before. Raises LostOwnershipError."""
        ...

    async def require_ours(self) -> None:
        """Raises LostOwnershipError when another process goes on with the step by now."""
        ...


class NoJournal:
    """For a step that is not tried again."""

    def find(self, name: str) -> str | None:
        return None

    async def record(self, name: str, result: str) -> None:
        pass

    async def require_ours(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may know of the call that it serves.

    A call that was cut off by the death of its process is made again with the same
    `idempotency_key`, which no other call ever has; `call_id` is the model's own name for it.
    """

    conversation_id: ConversationId
    turn_id: TurnId
    user_id: str
    call_id: str
    idempotency_key: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """All that a step may know. Limits are in seconds. `tools`: by name; None: all there are.

    `now` is the time by the database's clock, when the step is handed over.
    """

    conversation_id: ConversationId
    turn_id: TurnId
    attempt: int
    now: datetime
    user_id: str
    prompt: ConversationMessage
    history: tuple[ConversationMessage, ...]
    model: str
    instructions: str | None
    time_limit: float
    first_token_limit: float
    tools: frozenset[str] | None = None
    journal: StepJournal = field(default_factory=NoJournal)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """How a step ended: what is new, without the prompt. On failure that may be a partial answer.

    `reason` stands with INCOMPLETE, `error` with FAILED.
    """

    status: TurnStatus
    messages: tuple[ConversationMessage, ...] = ()
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    finish_reason: str | None = None
    reason: IncompleteReason | None = None
    error: StepError | None = None

    @property
    def output(self) -> str | None:
        """The last thing the assistant said."""
        said = [m.content for m in self.messages if m.role == "assistant" and m.content]
        return said[-1] if said else None


StepOutput: TypeAlias = StepEvent | StepResult


class StepExecutor(Protocol):
    """Runs one step and remembers nothing: no conversation is loaded or saved here."""

    async def run(self, step: StepInput) -> StepResult: ...

    def run_stream(self, step: StepInput) -> AsyncGenerator[StepOutput]:
        """Yields what happens and, as the last item, the result; it never raises for a failure.

        When its task is cancelled it stops the model at once and still yields a result, CANCELLED,
        with what there is of an answer.
        """
        ...
