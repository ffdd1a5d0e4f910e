"""The events of a step, as an executor tells them."""

from dataclasses import dataclass
from typing import TypeAlias

from app.ids import MessageId
from app.messages.message import ConversationMessage, JsonObject, Outcome


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
    tool_call_id: str
    outcome: Outcome
    content: str
    duration_ms: int


@dataclass(frozen=True, slots=True)
class MessageCompleted:
    """An assistant message has come to its end, or was cut off there."""

    message: ConversationMessage


StreamEvent: TypeAlias = (
    TextDelta | ReasoningDelta | ToolCallStarted | ToolCallCompleted | MessageCompleted
)
