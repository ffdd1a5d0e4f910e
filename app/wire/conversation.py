"""A conversation on the wire."""

from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from app.runs import ActiveTurn, Run
from app.wire.identifier import Id
from app.wire.moment import Moment, rfc3339, rfc3339_or_none
from app.wire.usage import UsageDocument, usage_document


class ActiveTurnDocument(TypedDict):
    id: Id
    number: int
    created_at: Moment


class ConfigDocument(TypedDict):
    """What the conversation was created with. Limits in seconds; more may be added."""

    model: str
    instructions: str | None
    max_context_turns: int
    turn_timeout: float
    first_token_timeout: float
    reasoning: Literal["hidden", "shown"]
    tools: NotRequired[list[str] | None]
    profile: str


class ConversationDocument(TypedDict):
    """`updated_at`: when a turn last began or ended, or it was closed; a PATCH does not move it."""

    id: Id
    object: Literal["conversation"]
    status: Literal["open", "closed"]
    title: str | None
    metadata: dict[str, Any]
    config: ConfigDocument
    user_id: str
    session_id: str | None
    parent_workflow_id: str | None
    turn_count: int
    active_turn: ActiveTurnDocument | None
    usage: UsageDocument
    created_at: Moment
    updated_at: Moment
    closed_at: Moment | None


class DescriptionDocument(TypedDict):
    id: Id
    title: str | None
    metadata: dict[str, Any]
    status: Literal["open", "closed"]


def description_of(run: Run) -> DescriptionDocument:
    """What `conversation.updated` tells: all that changes other than by turns."""
    return {
        "id": str(run.id),
        "title": run.title,
        "metadata": dict(run.metadata),
        "status": run.status.value,
    }


def conversation_document(run: Run) -> ConversationDocument:
    return {
        "id": str(run.id),
        "object": "conversation",
        "status": run.status.value,
        "title": run.title,
        "metadata": dict(run.metadata),
        "config": cast("ConfigDocument", dict(run.config)),
        "user_id": run.user_id,
        "session_id": run.session_id,
        "parent_workflow_id": run.parent_workflow_id,
        "turn_count": run.turn_count,
        "active_turn": _active_turn(run.active_turn),
        "usage": usage_document(run.usage),
        "created_at": rfc3339(run.created_at),
        "updated_at": rfc3339(run.updated_at),
        "closed_at": rfc3339_or_none(run.closed_at),
    }


def _active_turn(active: ActiveTurn | None) -> ActiveTurnDocument | None:
    if active is None:
        return None
    return {
        "id": str(active.id),
        "number": active.number,
        "created_at": rfc3339(active.created_at),
    }
