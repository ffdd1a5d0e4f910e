"""The stored form of a message, version 1: the content as text, everything else as one JSON object.

Keys keep their order, since the bytes that go back to a model are what its prompt cache knows.
A text stands once: a piece inside the JSON object says only how many characters of it are its own.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any, cast

from app.ids import MessageId
from app.messages.message import (
    ConversationMessage,
    Envelope,
    Json,
    JsonObject,
    MessageStatus,
    Opaque,
    Outcome,
    Piece,
    Reasoning,
    Role,
    Side,
    Text,
    ToolCall,
    ToolResult,
)

VERSION = 1


class UnknownVersionError(ValueError):
    """A stored message that was written by a newer release."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A row of the table `messages`, without its place in the conversation."""

    id: MessageId
    role: str
    status: str
    content: str
    metadata: str
    created_at: datetime


def encode(message: ConversationMessage) -> StoredMessage:
    document: dict[str, Json] = {"v": VERSION}
    if not _is_one_plain_text(message):
        document["pieces"] = [_encode_piece(piece) for piece in message.pieces]
    if message.tool_call is not None:
        document["call"] = _encode_call(message.tool_call)
    if message.tool_result is not None:
        document["result"] = _encode_result(message.tool_result)
    if message.envelope is not None:
        document["envelope"] = _encode_envelope(message.envelope)
    if message.sent_metadata:
        document["sent"] = message.sent_metadata
    if message.extra:
        document["extra"] = message.extra
    return StoredMessage(
        id=message.id,
        role=message.role.value,
        status=message.status.value,
        content=message.content,
        metadata=dump_json(document),
        created_at=message.timestamp,
    )


def decode(stored: StoredMessage) -> ConversationMessage:
    """Raises UnknownVersionError for a document that a newer release has written."""
    document = cast("dict[str, Any]", json.loads(stored.metadata))
    if document["v"] > VERSION:
        raise UnknownVersionError(f"message {stored.id} has format version {document['v']}")
    call, result, envelope = document.get("call"), document.get("result"), document.get("envelope")
    return ConversationMessage(
        id=stored.id,
        role=Role(stored.role),
        timestamp=stored.created_at,
        status=MessageStatus(stored.status),
        pieces=_decode_pieces(document.get("pieces"), stored, is_tool=bool(call or result)),
        tool_call=None if call is None else _decode_call(call),
        tool_result=None if result is None else _decode_result(result, stored.content),
        envelope=None if envelope is None else _decode_envelope(envelope),
        sent_metadata=document.get("sent", {}),
        extra=document.get("extra", {}),
    )


def dump_json(value: object) -> str:
    """JSON text without spaces; any size of integer, no NaN, no escapes for what UTF-8 can say."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def hash_of(value: object) -> str:
    """Of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _is_one_plain_text(message: ConversationMessage) -> bool:
    if message.tool_call is not None or message.tool_result is not None:
        return not message.pieces
    match message.pieces:
        case (Text(extra=extra),):
            return not extra
        case _:
            return False


def _encode_piece(piece: Piece) -> JsonObject:
    match piece:
        case Text(text=text, extra=extra):
            return _without_nothing({"kind": "text", "chars": len(text), "extra": extra or None})
        case Reasoning():
            return _without_nothing(
                {
                    "kind": "reasoning",
                    "text": piece.text,
                    "signature": piece.signature,
                    "provider": piece.provider,
                    "extra": piece.extra or None,
                }
            )
        case Opaque(raw=raw):
            return {"kind": "opaque", "raw": raw}


def _decode_pieces(
    pieces: list[dict[str, Any]] | None, stored: StoredMessage, *, is_tool: bool
) -> tuple[Piece, ...]:
    if pieces is None:
        return () if is_tool else (Text(stored.content),)
    lengths = [piece["chars"] if piece["kind"] == "text" else 0 for piece in pieces]
    ends = pairwise(accumulate(lengths, initial=0))
    return tuple(
        _decode_piece(piece, stored.content[start:end])
        for piece, (start, end) in zip(pieces, ends, strict=True)
    )


def _decode_piece(piece: dict[str, Any], text: str) -> Piece:
    match piece["kind"]:
        case "text":
            return Text(text, piece.get("extra", {}))
        case "reasoning":
            return Reasoning(
                piece["text"], piece.get("signature"), piece.get("provider"), piece.get("extra", {})
            )
        case _:
            return Opaque(piece["raw"])


def _encode_call(call: ToolCall) -> JsonObject:
    return _without_nothing(
        {
            "id": call.call_id,
            "name": call.name,
            "args": call.args,
            "kind": None if call.kind == "function" else call.kind,
            "extra": call.extra or None,
        }
    )


def _decode_call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(
        call["id"],
        call["name"],
        call.get("args"),
        call.get("kind", "function"),
        call.get("extra", {}),
    )


def _encode_result(result: ToolResult) -> JsonObject:
    return _without_nothing(
        {
            "id": result.call_id,
            "name": result.name,
            "outcome": result.outcome.value,
            "json": result.is_json or None,
            "kind": None if result.kind == "function" else result.kind,
            "extra": result.extra or None,
        }
    )


def _decode_result(result: dict[str, Any], content: str) -> ToolResult:
    return ToolResult(
        call_id=result["id"],
        name=result["name"],
        content=content,
        outcome=Outcome(result["outcome"]),
        is_json=result.get("json", False),
        kind=result.get("kind", "function"),
        extra=result.get("extra", {}),
    )


def _encode_envelope(envelope: Envelope) -> JsonObject:
    timestamp = envelope.timestamp
    return _without_nothing(
        {
            "side": envelope.side.value,
            "state": None if envelope.state == "complete" else envelope.state,
            "timestamp": None if timestamp is None else timestamp.isoformat(),
            "model": envelope.model,
            "provider": envelope.provider,
            "finish_reason": envelope.finish_reason,
            "usage": envelope.usage or None,
            "extra": envelope.extra or None,
        }
    )


def _decode_envelope(envelope: dict[str, Any]) -> Envelope:
    timestamp = envelope.get("timestamp")
    return Envelope(
        side=Side(envelope["side"]),
        state=envelope.get("state", "complete"),
        timestamp=None if timestamp is None else datetime.fromisoformat(timestamp),
        model=envelope.get("model"),
        provider=envelope.get("provider"),
        finish_reason=envelope.get("finish_reason"),
        usage=envelope.get("usage", {}),
        extra=envelope.get("extra", {}),
    )


def _without_nothing(document: Mapping[str, Json]) -> JsonObject:
    return {key: value for key, value in document.items() if value is not None}
