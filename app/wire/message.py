"""A message on the wire."""

from typing import Any, Literal

from typing_extensions import TypedDict

from app.ids import TurnId
from app.messages.message import ConversationMessage
from app.wire.identifier import Id
from app.wire.moment import Moment, rfc3339


class MessageDocument(TypedDict):
    """One message, as it is shown wherever it is.

    `metadata` of a user's message is what its client sent; of an assistant's `model` and
    `finish_reason`; of a tool_call `tool_name`, `tool_call_id` and `args` (JSON text, an object or
    null, as the model gave them); of a tool_result `tool_name`, `tool_call_id` and `outcome`
    (success, failed, denied, cancelled).
    """

    id: Id
    role: Literal["user", "assistant", "tool_call", "tool_result"]
    content: str
    status: Literal["complete", "partial"]
    turn_id: Id
    turn_number: int
    timestamp: Moment
    metadata: dict[str, Any]


def message_document(
    message: ConversationMessage, turn_id: TurnId, turn_number: int
) -> MessageDocument:
    return {
        "id": str(message.id),
        "role": message.role.value,
        "content": message.content,
        "status": message.status.value,
        "turn_id": str(turn_id),
        "turn_number": turn_number,
        "timestamp": rfc3339(message.timestamp),
        "metadata": dict(message.metadata),
    }
