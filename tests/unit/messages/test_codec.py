"""The stored form: golden documents of every released version stay readable."""

import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from app.ids import MessageId
from app.messages.codec import StoredMessage, UnknownVersionError, decode, dump_json, encode
from app.messages.message import (
    ConversationMessage,
    Envelope,
    MessageStatus,
    Opaque,
    Outcome,
    Reasoning,
    Role,
    Side,
    Text,
    ToolCall,
    ToolResult,
)

GOLDEN = Path(__file__).parent / "golden"
ID = MessageId(UUID("01a22ceb-138a-744c-b8db-a3cf2ca6064d"))
MOMENT = datetime(2026, 11, 30, 14, 45, 33, 197089, UTC)

EXAMPLES = {
    "prompt": ConversationMessage(
        id=ID,
        role=Role.USER,
        timestamp=MOMENT,
        pieces=(Text("What is this? \N{GRINNING FACE}"),),
        envelope=Envelope(Side.REQUEST),
        sent_metadata={"z": 1, "a": [None, 10**40]},
    ),
    "picture": ConversationMessage(
        id=ID,
        role=Role.USER,
        timestamp=MOMENT,
        pieces=(
            Text("before "),
            Opaque({"kind": "binary", "data": "aGk="}),
            Text("after", {"x": 1}),
        ),
        envelope=Envelope(Side.REQUEST, timestamp=MOMENT),
        extra={"list": True},
    ),
    "answer": ConversationMessage(
        id=ID,
        role=Role.ASSISTANT,
        timestamp=MOMENT,
        status=MessageStatus.PARTIAL,
        pieces=(Reasoning("Hm.", "c2ln", "anthropic", {"id": "r1"}), Text("It is")),
        envelope=Envelope(
            side=Side.RESPONSE,
            state="interrupted",
            timestamp=MOMENT,
            model="m-1",
            provider="anthropic",
            finish_reason="length",
            usage={"input_tokens": 12, "output_tokens": 3},
            extra={"provider_response_id": "x"},
        ),
    ),
    "call": ConversationMessage(
        id=ID,
        role=Role.TOOL_CALL,
        timestamp=MOMENT,
        tool_call=ToolCall("c1", "clock", {"zone": "UTC", "at": 1}, "native", {"id": "i"}),
    ),
    "result": ConversationMessage(
        id=ID,
        role=Role.TOOL_RESULT,
        timestamp=MOMENT,
        tool_result=ToolResult("c1", "clock", '{"b":1,"a":2}', Outcome.DENIED, is_json=True),
        envelope=Envelope(Side.REQUEST),
    ),
}


def as_document(stored: StoredMessage) -> dict[str, str]:
    return {
        "id": str(stored.id),
        "role": stored.role,
        "status": stored.status,
        "content": stored.content,
        "metadata": stored.metadata,
        "created_at": stored.created_at.isoformat(),
    }


def from_document(document: dict[str, str]) -> StoredMessage:
    return StoredMessage(
        id=MessageId(UUID(document["id"])),
        role=document["role"],
        status=document["status"],
        content=document["content"],
        metadata=document["metadata"],
        created_at=datetime.fromisoformat(document["created_at"]),
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_version_1_is_read_for_ever(name: str) -> None:
    document = json.loads((GOLDEN / f"v1-{name}.json").read_text())

    assert decode(from_document(document)) == EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_written_today_is_version_1(name: str) -> None:
    document = json.loads((GOLDEN / f"v1-{name}.json").read_text())

    assert as_document(encode(EXAMPLES[name])) == document


def test_a_document_of_a_newer_release_is_refused_by_name() -> None:
    stored = StoredMessage(ID, "user", "complete", "x", '{"v":2}', MOMENT)

    with pytest.raises(UnknownVersionError, match="has format version 2"):
        decode(stored)


def test_a_text_is_stored_once() -> None:
    stored = encode(EXAMPLES["picture"])

    assert stored.content == "before after"
    assert "before" not in stored.metadata


def test_numbers_that_json_lacks_are_never_written() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        dump_json({"x": float("nan")})
