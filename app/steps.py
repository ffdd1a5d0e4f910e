"""A step: what an executor is given, and what it gives back."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from app.errors import StepError
from app.events.stream_event import StepEvent
from app.ids import ConversationId, TurnId
from app.messages.message import ConversationMessage
from app.runs import IncompleteReason, TurnStatus, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """All that a step may know. Limits are in seconds. `tools`: by name; None: all there are."""

    conversation_id: ConversationId
    turn_id: TurnId
    attempt: int
    user_id: str
    prompt: ConversationMessage
    history: tuple[ConversationMessage, ...]
    model: str
    instructions: str | None
    time_limit: float
    first_token_limit: float
    tools: frozenset[str] | None = None


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
