"""Where things are: the absolute paths that links and locations use."""

from app.ids import ConversationId, TurnId


def conversation_path(conversation_id: ConversationId) -> str:
    return f"/v1/conversations/{conversation_id}"


def turn_path(conversation_id: ConversationId, turn_id: TurnId) -> str:
    return f"{conversation_path(conversation_id)}/turns/{turn_id}"
