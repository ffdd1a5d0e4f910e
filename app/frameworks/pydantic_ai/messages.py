"""ConversationMessage to pydantic-ai's ModelMessage and back, by part kind.

One framework message becomes a group of ours: each tool call and each tool result is a message,
and the parts between them are one. The group's first message bears the envelope.

Dropped on purpose: system prompts and instructions, which are configuration and are sent anew on
every turn, never stored. An empty thinking signature becomes none, since providers refuse it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from app.ids import MessageId, new_message_id
from app.messages.codec import dump_json
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
    ToolKind,
    ToolResult,
)
from app.messages.text_policy import storable_json

_INSTRUCTION_KINDS = frozenset({"system-prompt", "instruction-delta", "instruction-baseline"})
_CALL_KINDS: Mapping[str, ToolKind] = {"tool-call": "function", "builtin-tool-call": "native"}
_RESULT_KINDS: Mapping[str, ToolKind] = {"tool-return": "function", "builtin-tool-return": "native"}
_PART_KIND_OF_CALL = {kind: name for name, kind in _CALL_KINDS.items()}
_PART_KIND_OF_RESULT = {kind: name for name, kind in _RESULT_KINDS.items()}
_LEGACY_RETRY_KIND = "retry-prompt"
# More tokens than this nobody has counted; sums of it still fit a bigint.
LARGEST_COUNT = 2**48
_EPOCH = datetime.fromtimestamp(0, UTC)

_SPOKEN = {"part_kind", "content", "timestamp", "tool_name", "tool_call_id", "args", "outcome"}

_Part = dict[str, Any]


def to_conversation(
    messages: Sequence[ModelMessage], assistant_ids: Sequence[MessageId] = ()
) -> tuple[ConversationMessage, ...]:
    """Our form of a framework's messages.

    `assistant_ids` are the ids under which assistant messages were already shown, in order.
    """
    ids = iter(assistant_ids)
    return tuple(message for document in _dump(messages) for message in _group_of(document, ids))


def to_model(messages: Sequence[ConversationMessage]) -> list[ModelMessage]:
    """The framework's form, equal to what it was but for what is dropped on purpose."""
    groups: list[list[ConversationMessage]] = []
    for message in messages:
        if message.envelope is not None or not groups:
            groups.append([])
        groups[-1].append(message)
    documents = [_document_of(group) for group in groups]
    try:
        return ModelMessagesTypeAdapter.validate_python(documents)
    except ValidationError:
        # Whatever a version of the framework does not take of what it does not need: a
        # conversation must not be lost for it.
        return [message for document in documents for message in _loaded(document)]


def _loaded(document: _Part) -> list[ModelMessage]:
    """As it is, or with no more than what was said, or not at all."""
    for candidate in (document, _plain(document)):
        try:
            return ModelMessagesTypeAdapter.validate_python([candidate])
        except ValidationError:
            continue
    return []


def _plain(document: _Part) -> _Part:
    return {
        "kind": document["kind"],
        "state": document["state"],
        "parts": [_plain_part(part) for part in document["parts"]],
    }


def _plain_part(part: _Part) -> _Part:
    return {name: value for name, value in part.items() if name in _SPOKEN}


def _dump(messages: Sequence[ModelMessage]) -> list[_Part]:
    documents = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    if any(part["part_kind"] == _LEGACY_RETRY_KIND for doc in documents for part in doc["parts"]):
        modern = ModelMessagesTypeAdapter.validate_python(documents)
        documents = ModelMessagesTypeAdapter.dump_python(modern, mode="json")
    return cast("list[_Part]", storable_json(documents))


# ── to ours ──────────────────────────────────────────────────────────────────────────────────────


def _group_of(document: _Part, ids: Iterator[MessageId]) -> list[ConversationMessage]:
    parts = [part for part in document["parts"] if part["part_kind"] not in _INSTRUCTION_KINDS]
    envelope = _envelope_of(document)
    group = list(_messages_of(parts, envelope, ids)) or [_carrier(envelope, (), ids)]
    group[0] = replace(group[0], envelope=envelope)
    if envelope.side is Side.RESPONSE and envelope.state != "complete":
        group[-1] = replace(group[-1], status=MessageStatus.PARTIAL)
    return group


def _messages_of(
    parts: Sequence[_Part], envelope: Envelope, ids: Iterator[MessageId]
) -> Iterator[ConversationMessage]:
    pieces: list[Piece] = []
    for part in parts:
        message = _own_message(part, envelope)
        if message is None:
            pieces.append(_piece_of(part))
            continue
        if pieces:
            yield _carrier(envelope, tuple(pieces), ids)
            pieces = []
        yield message
    if pieces:
        yield _carrier(envelope, tuple(pieces), ids)


def _own_message(part: _Part, envelope: Envelope) -> ConversationMessage | None:
    """The parts that are a message by themselves; the others are pieces of one."""
    kind = part["part_kind"]
    if kind == "user-prompt":
        return _prompt(part)
    if kind in _CALL_KINDS:
        return _call(part, envelope)
    if kind in _RESULT_KINDS:
        return _result(part)
    return None


def _carrier(
    envelope: Envelope, pieces: tuple[Piece, ...], ids: Iterator[MessageId]
) -> ConversationMessage:
    is_response = envelope.side is Side.RESPONSE
    return ConversationMessage(
        id=next(ids, None) or new_message_id() if is_response else new_message_id(),
        role=Role.ASSISTANT if is_response else Role.USER,
        timestamp=envelope.timestamp or _EPOCH,
        pieces=pieces,
    )


def _prompt(part: _Part) -> ConversationMessage:
    content = part["content"]
    is_list = isinstance(content, list)
    items = cast("list[Json]", content) if is_list else [content]
    return ConversationMessage(
        id=new_message_id(),
        role=Role.USER,
        timestamp=_time(part["timestamp"]),
        pieces=tuple(_content_item(item) for item in items),
        extra={"list": True} if is_list else {},
    )


def _content_item(item: Any) -> Piece:
    if isinstance(item, str):
        return Text(item)
    if isinstance(item.get("content"), str):
        return Text(item["content"], _without(item, "content"))
    return Opaque(item)


def _call(part: _Part, envelope: Envelope) -> ConversationMessage:
    return ConversationMessage(
        id=new_message_id(),
        role=Role.TOOL_CALL,
        timestamp=envelope.timestamp or _EPOCH,
        tool_call=ToolCall(
            call_id=part["tool_call_id"],
            name=part["tool_name"],
            args=part["args"],
            kind=_CALL_KINDS[part["part_kind"]],
            extra=_rest(part, "part_kind", "tool_call_id", "tool_name", "args"),
        ),
    )


def _result(part: _Part) -> ConversationMessage:
    content = part["content"]
    is_json = not isinstance(content, str)
    return ConversationMessage(
        id=new_message_id(),
        role=Role.TOOL_RESULT,
        timestamp=_time(part["timestamp"]),
        tool_result=ToolResult(
            call_id=part["tool_call_id"],
            name=part["tool_name"],
            content=dump_json(content) if is_json else content,
            outcome=Outcome(part["outcome"]),
            is_json=is_json,
            kind=_RESULT_KINDS[part["part_kind"]],
            extra=_rest(
                part, "part_kind", "tool_call_id", "tool_name", "content", "outcome", "timestamp"
            ),
        ),
    )


def _piece_of(part: _Part) -> Piece:
    match part["part_kind"]:
        case "text":
            return Text(part["content"], _rest(part, "part_kind", "content"))
        case "thinking":
            return Reasoning(
                part["content"],
                part["signature"] or None,
                part["provider_name"],
                _rest(part, "part_kind", "content", "signature", "provider_name"),
            )
        case _:
            return Opaque(part)


def _envelope_of(document: _Part) -> Envelope:
    timestamp = document["timestamp"]
    if document["kind"] == "request":
        return Envelope(
            side=Side.REQUEST,
            state=document["state"],
            timestamp=None if timestamp is None else _time(timestamp),
            extra=_rest(document, "kind", "parts", "state", "timestamp", "instructions"),
        )
    return Envelope(
        side=Side.RESPONSE,
        state=document["state"],
        timestamp=_time(timestamp),
        model=document["model_name"],
        provider=document["provider_name"],
        finish_reason=document["finish_reason"],
        usage=_counts(document["usage"]),
        extra=_rest(
            document,
            *("kind", "parts", "state", "timestamp", "usage"),
            *("model_name", "provider_name", "finish_reason"),
        ),
    )


def _counts(usage: _Part) -> JsonObject:
    """What is not zero, and is a count: a provider may send anything, and a history must load."""
    given: _Part = usage.get("details") or {}
    details: _Part = {n: c for n, c in given.items() if is_count(c)}
    counts = {n: c for n, c in usage.items() if is_count(c) and c}
    cost, seconds = usage.get("cost"), usage.get("audio_seconds")
    return {
        **counts,
        **({"details": details} if details else {}),
        **({"cost": cost} if isinstance(cost, str) else {}),
        **({"audio_seconds": seconds} if isinstance(seconds, float) and seconds else {}),
    }


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_COUNT


# ── from ours ────────────────────────────────────────────────────────────────────────────────────


def _document_of(group: Sequence[ConversationMessage]) -> _Part:
    envelope = group[0].envelope or Envelope(_side_of(group[0]))
    parts = [part for message in group for part in _parts_of(message)]
    document: _Part = {
        **envelope.extra,
        "kind": envelope.side.value,
        "parts": parts,
        "state": envelope.state,
    }
    if envelope.timestamp is not None:
        document["timestamp"] = envelope.timestamp
    if envelope.side is Side.RESPONSE:
        document.update(
            model_name=envelope.model,
            provider_name=envelope.provider,
            finish_reason=envelope.finish_reason,
            usage=envelope.usage,
        )
    return document


def _side_of(message: ConversationMessage) -> Side:
    if message.role in (Role.USER, Role.TOOL_RESULT):
        return Side.REQUEST
    return Side.RESPONSE


def _parts_of(message: ConversationMessage) -> list[_Part]:
    if message.tool_call is not None:
        return [_call_part(message.tool_call)]
    if message.tool_result is not None:
        return [_result_part(message.tool_result, message.timestamp)]
    if message.role is Role.USER and _is_prompt(message):
        return [_prompt_part(message)]
    return [_part_of(piece) for piece in message.pieces]


def _is_prompt(message: ConversationMessage) -> bool:
    """A request may also carry a framework's notes, whose raw form names its part kind."""
    if "list" in message.extra:
        return True
    return any(isinstance(piece, Text) for piece in message.pieces)


def _prompt_part(message: ConversationMessage) -> _Part:
    content: Any = message.content
    if "list" in message.extra:
        content = [_raw_item(piece) for piece in message.pieces]
    return {"part_kind": "user-prompt", "content": content, "timestamp": message.timestamp}


def _raw_item(piece: Piece) -> Json:
    if isinstance(piece, Opaque):
        return piece.raw
    return {**piece.extra, "content": piece.text} if piece.extra else piece.text


def _call_part(call: ToolCall) -> _Part:
    return {
        **call.extra,
        "part_kind": _PART_KIND_OF_CALL[call.kind],
        "tool_call_id": call.call_id,
        "tool_name": call.name,
        "args": call.args,
    }


def _result_part(result: ToolResult, timestamp: datetime) -> _Part:
    return {
        **result.extra,
        "part_kind": _PART_KIND_OF_RESULT[result.kind],
        "tool_call_id": result.call_id,
        "tool_name": result.name,
        "content": json.loads(result.content) if result.is_json else result.content,
        "outcome": result.outcome.value,
        "timestamp": timestamp,
    }


def _part_of(piece: Piece) -> _Part:
    match piece:
        case Text(text=text, extra=extra):
            return {**extra, "part_kind": "text", "content": text}
        case Reasoning():
            return {
                **piece.extra,
                "part_kind": "thinking",
                "content": piece.text,
                "signature": piece.signature,
                "provider_name": piece.provider,
            }
        case Opaque(raw=raw):
            return dict(raw)


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _without(document: _Part, *names: str) -> JsonObject:
    return {name: value for name, value in document.items() if name not in names}


def _rest(document: _Part, *names: str) -> JsonObject:
    """What we do not model. None is left out: it is the default of every such field."""
    return {n: value for n, value in document.items() if value is not None and n not in names}
