"""ConversationMessage v1: what was said, by whom, in our words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from app.ids import MessageId

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
JsonObject: TypeAlias = Mapping[str, Json]

NOTHING: JsonObject = {}


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


class MessageStatus(StrEnum):
    COMPLETE = "complete"
    PARTIAL = "partial"


class Side(StrEnum):
    """Which way a message goes: to the model, or from it."""

    REQUEST = "request"
    RESPONSE = "response"


class Outcome(StrEnum):
    """How a tool call ended, as the framework gave it."""

    SUCCESS = "success"
    FAILED = "failed"
    DENIED = "denied"
    INTERRUPTED = "interrupted"
    RETRIED = "retried"


INTERRUPTED_RESULT = "The tool call was interrupted before it had a result."

ToolKind: TypeAlias = Literal["function", "native"]


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    extra: JsonObject = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's thinking. Without its signature and provider a provider would take it for text."""

    text: str
    signature: str | None = None
    provider: str | None = None
    extra: JsonObject = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Opaque:
    """A piece that we do not model: a picture, a file, a framework's own note. Kept as it came."""

    raw: JsonObject


Piece: TypeAlias = Text | Reasoning | Opaque


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`args` as the model sent them: JSON text, an object, or nothing."""

    call_id: str
    name: str
    args: str | JsonObject | None
    kind: ToolKind = "function"
    extra: JsonObject = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`content` is the tool's text or, when `is_json`, the JSON text of what it returned."""

    call_id: str
    name: str
    content: str
    outcome: Outcome
    is_json: bool = False
    kind: ToolKind = "function"
    extra: JsonObject = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class Envelope:
    """What belongs to one whole request to, or response from, a model; stands on its first message.

    `usage` holds the counts that are not zero, by the names of `runs.Usage` where there is one.
    `timestamp` is None where the framework gave none.
    """

    side: Side
    state: str = "complete"
    timestamp: datetime | None = None
    model: str | None = None
    provider: str | None = None
    finish_reason: str | None = None
    usage: JsonObject = field(default_factory=dict[str, Json])
    extra: JsonObject = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMessage:
    """One message. `timestamp` is aware; `sent_metadata` is what the client sent with it."""

    id: MessageId
    role: Role
    timestamp: datetime
    status: MessageStatus = MessageStatus.COMPLETE
    pieces: tuple[Piece, ...] = ()
    tool_call: ToolCall | None = None
    tool_result: ToolResult | None = None
    envelope: Envelope | None = None
    sent_metadata: JsonObject = field(default_factory=dict[str, Json])
    extra: JsonObject = field(default_factory=dict[str, Json])

    @property
    def content(self) -> str:
        """What was said; a tool call says nothing."""
        if self.tool_result is not None:
            return self.tool_result.content
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))

    @property
    def is_shown(self) -> bool:
        """A message that only carries reasoning or a framework's note is kept, but not shown."""
        return self.role in (Role.TOOL_CALL, Role.TOOL_RESULT) or self.content != ""

    @property
    def metadata(self) -> JsonObject:
        """What a client may know beside the content."""
        match self.role:
            case Role.USER:
                return self.sent_metadata
            case Role.ASSISTANT:
                envelope = self.envelope
                if envelope is None:
                    return {}
                return {"model": envelope.model, "finish_reason": envelope.finish_reason}
            case Role.TOOL_CALL | Role.TOOL_RESULT:
                return self._tool_metadata()

    def _tool_metadata(self) -> JsonObject:
        if self.tool_call is not None:
            call = self.tool_call
            return {"tool_name": call.name, "tool_call_id": call.call_id, "args": call.args}
        if self.tool_result is None:
            return {}
        result = self.tool_result
        return {
            "tool_name": result.name,
            "tool_call_id": result.call_id,
            "outcome": shown_outcome(result.outcome),
        }


def shown_outcome(outcome: Outcome) -> str:
    """Outcomes in a client's words: interrupted is cancelled, a retried call failed."""
    if outcome is Outcome.INTERRUPTED:
        return "cancelled"
    if outcome is Outcome.RETRIED:
        return "failed"
    return outcome.value
