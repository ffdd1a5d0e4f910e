"""What happens while a turn runs. An executor tells of the step; the turn adds start and end."""

from dataclasses import dataclass
from typing import TypeAlias

from app.ids import MessageId
from app.messages.message import ConversationMessage, JsonObject, Outcome
from app.runs import RestartReason, Turn


@dataclass(frozen=True, slots=True)
class TurnStarted:
    turn: Turn
    user_message: ConversationMessage


@dataclass(frozen=True, slots=True)
class TurnRestarted:
    """Another process goes on with the turn: what was shown of it before counts no more."""

    attempt: int
    reason: RestartReason


@dataclass(frozen=True, slots=True)
class TextDelta:
    message_id: MessageId
    delta: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """`args` as the model sent them: JSON text, an object, or nothing."""

    tool_call_id: str
    tool_name: str
    args: str | JsonObject | None


@dataclass(frozen=True, slots=True)
class ToolCallCompleted:
    """`duration_ms` is None where it is not known any more."""

    tool_call_id: str
    outcome: Outcome
    content: str
    duration_ms: int | None


@dataclass(frozen=True, slots=True)
class MessageCompleted:
    """An assistant message has come to its end, or was cut off there."""

    message: ConversationMessage


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The terminal event: its kind is the turn's status. `by` stands with a cancelled turn."""

    turn: Turn
    by: str | None = None


StepEvent: TypeAlias = (
    TextDelta | ReasoningDelta | ToolCallStarted | ToolCallCompleted | MessageCompleted
)
StreamEvent: TypeAlias = TurnStarted | TurnRestarted | StepEvent | TurnEnded

TERMINAL_TYPES = frozenset({"turn.completed", "turn.incomplete", "turn.cancelled", "turn.failed"})
