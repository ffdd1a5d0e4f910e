"""A turn on the wire, with or without its messages."""

from collections.abc import Sequence
from typing import Literal, NotRequired, cast

from typing_extensions import TypedDict

from app.runs import Turn
from app.wire.identifier import Id
from app.wire.message import MessageDocument
from app.wire.moment import Moment, rfc3339, rfc3339_or_none
from app.wire.paths import Paths, TurnLinks
from app.wire.problem import ProblemDocument
from app.wire.usage import UsageDocument, usage_document


class TurnDocument(TypedDict):
    """One message of a user and what came of it. `output`: its last assistant message's content.

    `reason` of an incomplete turn: output_limit, content_filter, request_limit or time_limit.
    `error`: the problem of a failed one.
    """

    id: Id
    object: Literal["turn"]
    conversation_id: Id
    number: int
    status: Literal["running", "completed", "incomplete", "cancelled", "failed"]
    attempt: int
    output: str | None
    messages: NotRequired[list[MessageDocument]]
    reason: str | None
    error: ProblemDocument | None
    model: str | None
    finish_reason: str | None
    usage: UsageDocument
    trace_id: str | None
    created_at: Moment
    first_token_at: Moment | None
    completed_at: Moment | None
    links: TurnLinks


def turn_document(
    turn: Turn, paths: Paths, messages: Sequence[MessageDocument] | None = None
) -> TurnDocument:
    document: TurnDocument = {
        "id": str(turn.id),
        "object": "turn",
        "conversation_id": str(turn.run_id),
        "number": turn.number,
        "status": turn.status.value,
        "attempt": turn.attempt,
        "output": turn.output,
        "reason": turn.reason,
        "error": cast("ProblemDocument | None", turn.error),
        "model": turn.model,
        "finish_reason": turn.finish_reason,
        "usage": usage_document(turn.usage),
        "trace_id": turn.trace_id,
        "created_at": rfc3339(turn.created_at),
        "first_token_at": rfc3339_or_none(turn.first_token_at),
        "completed_at": rfc3339_or_none(turn.completed_at),
        "links": paths.turn_links(turn.run_id, turn.id),
    }
    if messages is not None:
        document["messages"] = list(messages)
    return document
