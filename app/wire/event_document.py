"""Events as documents: what stands in the `data` of a stream, for the description of the API."""

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from app.wire.conversation import DescriptionDocument
from app.wire.identifier import Id
from app.wire.message import MessageDocument
from app.wire.moment import Moment
from app.wire.problem import ProblemDocument
from app.wire.turn import TurnDocument


class _OfATurn(TypedDict):
    """`seq` starts at 1 in each turn and rises by one; null where an event has no id."""

    seq: int | None
    conversation_id: Id
    turn_id: Id
    turn_number: int
    timestamp: Moment


class TurnStartedDocument(_OfATurn):
    """The turn has begun. `rebuilt`: its events were pruned, and it is told from the transcript."""

    type: Literal["turn.started"]
    turn: TurnDocument
    user_message: MessageDocument
    rebuilt: NotRequired[Literal[True]]


class TurnRestartedDocument(_OfATurn):
    """Another process goes on with the turn. Drop its events after `discard_after`: all is told anew."""

    type: Literal["turn.restarted"]
    attempt: int
    reason: Literal["worker_lost", "handed_over"]
    discard_after: int


class TextDeltaDocument(_OfATurn):
    """The next piece of an assistant message."""

    type: Literal["text.delta"]
    message_id: Id
    delta: str


class ReasoningDeltaDocument(_OfATurn):
    """The next piece of the model's reasoning, with `config.reasoning: shown` only."""

    type: Literal["reasoning.delta"]
    delta: str


class ToolCallStartedDocument(_OfATurn):
    """A tool is called. `args` as the model sent them: JSON text, an object, or nothing."""

    type: Literal["tool_call.started"]
    tool_call_id: str
    tool_name: str
    args: str | dict[str, Any] | None


class ToolCallCompletedDocument(_OfATurn):
    """A tool call has ended, whatever its outcome."""

    type: Literal["tool_call.completed"]
    tool_call_id: str
    outcome: Literal["success", "failed", "denied", "cancelled"]
    content: str
    duration_ms: int | None


class MessageCompletedDocument(_OfATurn):
    """An assistant message is whole, or was cut off there; exactly as the history shows it."""

    type: Literal["message.completed"]
    message: MessageDocument


class TurnCompletedDocument(_OfATurn):
    """Terminal: the answer is whole."""

    type: Literal["turn.completed"]
    turn: TurnDocument


class TurnIncompleteDocument(_OfATurn):
    """Terminal: a limit cut the answer short."""

    type: Literal["turn.incomplete"]
    turn: TurnDocument
    reason: str


class TurnCancelledDocument(_OfATurn):
    """Terminal: somebody stopped it. By erasure it has neither `turn` nor an id."""

    type: Literal["turn.cancelled"]
    turn: NotRequired[TurnDocument]
    by: Literal["user", "erasure"]


class TurnFailedDocument(_OfATurn):
    """Terminal: it failed; the same problem stands in the turn."""

    type: Literal["turn.failed"]
    turn: TurnDocument
    error: ProblemDocument


class ConversationUpdatedDocument(TypedDict):
    """Title, metadata or status have changed. Only when a conversation is followed; without an id."""

    type: Literal["conversation.updated"]
    seq: None
    conversation_id: Id
    turn_id: None
    turn_number: None
    timestamp: Moment
    conversation: DescriptionDocument


class StreamClosingDocument(TypedDict):
    """The stream ends, the turn does not: reconnect with the last id. Or all of it was erased."""

    type: Literal["stream.closing"]
    seq: None
    conversation_id: Id
    turn_id: Id | None
    turn_number: int | None
    timestamp: Moment
    reason: Literal["shutdown", "deleted"]


EventDocument: TypeAlias = (
    TurnStartedDocument
    | TurnRestartedDocument
    | TextDeltaDocument
    | ReasoningDeltaDocument
    | ToolCallStartedDocument
    | ToolCallCompletedDocument
    | MessageCompletedDocument
    | TurnCompletedDocument
    | TurnIncompleteDocument
    | TurnCancelledDocument
    | TurnFailedDocument
    | ConversationUpdatedDocument
    | StreamClosingDocument
)
