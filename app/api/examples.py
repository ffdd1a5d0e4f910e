"""Examples for the description of the API, rendered by what renders the answers themselves."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from app.ids import ConversationId, MessageId, TurnId
from app.messages.message import ConversationMessage, Envelope, Role, Side, Text
from app.runs import Run, RunStatus, Turn, TurnStatus, Usage
from app.wire.conversation import conversation_document
from app.wire.message import message_document
from app.wire.paths import Paths
from app.wire.problem import Kind, about_turn, document_of
from app.wire.turn import turn_document

# How a description names an example before it is put in: the framework drops what is null in one.
PREFIX = "example:"

PATHS = Paths()
REQUEST_ID = "0199d3a0-7f00-7000-8000-00000000000a"
CONVERSATION = ConversationId(UUID("0199d3a0-7c00-7000-8000-000000000001"))
TURN = TurnId(UUID("0199d3a0-7d00-7000-8000-000000000002"))
CONVERSATION_PATH = PATHS.conversation(CONVERSATION)
TURN_PATH = PATHS.turn(CONVERSATION, TURN)
BEGAN = datetime(2026, 10, 12, 9, 30, tzinfo=UTC)
ENDED = BEGAN + timedelta(seconds=2)
USAGE = Usage(input_tokens=21, output_tokens=9)

_RUN = Run(
    id=CONVERSATION,
    user_id="ada",
    status=RunStatus.OPEN,
    title="My name is Ada.",
    metadata={"channel": "web"},
    config={
        "model": "openai-chat:gpt-5",
        "instructions": "Be brief.",
        "max_context_turns": 20,
        "turn_timeout": 600,
        "first_token_timeout": 120,
        "reasoning": "hidden",
        "tools": ["search_orders"],
        "profile": "default",
    },
    session_id=None,
    parent_workflow_id=None,
    turn_count=1,
    active_turn=None,
    usage=USAGE,
    version=3,
    created_at=BEGAN,
    updated_at=ENDED,
    closed_at=None,
)
_TURN = Turn(
    id=TURN,
    run_id=CONVERSATION,
    number=1,
    status=TurnStatus.COMPLETED,
    attempt=1,
    output="Hello, Ada.",
    reason=None,
    error=None,
    model="gpt-5",
    finish_reason="stop",
    usage=USAGE,
    request_id=REQUEST_ID,
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    created_at=BEGAN,
    first_token_at=BEGAN + timedelta(seconds=1),
    completed_at=ENDED,
)
_RUNNING = replace(
    _TURN,
    status=TurnStatus.RUNNING,
    output=None,
    model=None,
    finish_reason=None,
    usage=Usage(),
    first_token_at=None,
    completed_at=None,
)
_ASKED = ConversationMessage(
    id=MessageId(UUID("0199d3a0-7d00-7000-8000-000000000003")),
    role=Role.USER,
    timestamp=BEGAN,
    pieces=(Text("My name is Ada."),),
)
_ANSWERED = ConversationMessage(
    id=MessageId(UUID("0199d3a0-7e00-7000-8000-000000000004")),
    role=Role.ASSISTANT,
    timestamp=ENDED,
    pieces=(Text("Hello, Ada."),),
    envelope=Envelope(Side.RESPONSE, model="gpt-5", finish_reason="stop"),
)
_MESSAGES = [message_document(each, TURN, 1) for each in (_ASKED, _ANSWERED)]


def _page(*data: object) -> dict[str, Any]:
    return {"object": "list", "data": list(data), "has_more": False, "next_cursor": None}


_CONVERSATION = conversation_document(_RUN)
NAMED: dict[str, Any] = {
    "conversation": _CONVERSATION,
    "closed_conversation": conversation_document(
        replace(_RUN, status=RunStatus.CLOSED, closed_at=ENDED)
    ),
    "conversations": _page(_CONVERSATION),
    "turn": turn_document(_TURN, PATHS, _MESSAGES),
    "running_turn": turn_document(_RUNNING, PATHS, _MESSAGES[:1]),
    "turns": _page(turn_document(_TURN, PATHS)),
    "messages": _page(*_MESSAGES),
    "patch": {"title": "Trip to Bergen", "metadata": {"ship": None, "by": "train"}},
    "event": {
        "id": "1-2",
        "event": "text.delta",
        "data": (
            f'{{"type":"text.delta","seq":2,"conversation_id":"{CONVERSATION}","turn_id":"{TURN}",'
            f'"turn_number":1,"timestamp":"2026-10-12T09:30:01Z","message_id":"{_ANSWERED.id}",'
            '"delta":"Hello, Ada."}'
        ),
    },
    "alive": {"status": "alive"},
    "ready": {"status": "ready", "model": "openai-chat:gpt-5", "reason": None},
    "not_ready": {
        "status": "unavailable",
        "model": "openai-chat:gpt-5",
        "reason": "database_unavailable",
    },
}

STREAM = f"""\
    id: 1-1
    retry: 2000
    event: turn.started
    data: {{"type":"turn.started","seq":1,"conversation_id":"{CONVERSATION}",…}}

    id: 1-2
    event: text.delta
    data: {{"type":"text.delta","seq":2,…,"delta":"Hello, Ada."}}

    id: 1-3
    event: message.completed
    data: {{"type":"message.completed","seq":3,…}}

    id: 1-4
    event: turn.completed
    data: {{"type":"turn.completed","seq":4,…}}
"""


def problem(kind: Kind, *, of_a_turn: bool = False) -> dict[str, Any]:
    path = TURN_PATH if of_a_turn else CONVERSATION_PATH
    document = document_of(kind, instance=path, request_id=REQUEST_ID)
    if kind.code == "invalid_request":
        document["errors"] = [{"pointer": "/content", "message": "must not be blank"}]
    if of_a_turn:
        document = about_turn(document, PATHS, CONVERSATION, TURN)
    return dict(document)
