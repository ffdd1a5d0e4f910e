"""Events on the wire: each is rendered once, stored as those bytes, and shown as those bytes."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.events.stream_event import (
    TERMINAL_TYPES,
    MessageCompleted,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallCompleted,
    ToolCallStarted,
    TurnEnded,
    TurnRestarted,
    TurnStarted,
)
from app.ids import ConversationId, TurnId
from app.messages.codec import dump_json
from app.messages.message import shown_outcome
from app.runs import TurnStatus
from app.wire.message import message_document
from app.wire.moment import rfc3339
from app.wire.paths import Paths
from app.wire.turn import turn_document

# Line ends of any convention, and controls, that some client would split a line at or choke on.
# JSON has escaped those below U+0020 by itself.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029]")
_EVENT_ID = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})")
# Every document begins like this, in every release: it is what a frame is known by.
_HEAD = re.compile(
    r'\{"type":"([a-z._]+)","seq":(\d+|null),"conversation_id":"[^"]+","turn_id":"[^"]+",'
    r'"turn_number":(\d+),'
)

# Of `turn.started`, which alone stays valid when a turn is begun again.
FIRST_SEQ = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it is stored and sent. Without `seq` it has no id and cannot be resumed at.

    `turn_number` is None where it is about the conversation, not about one turn of it.
    """

    turn_number: int | None
    seq: int | None
    type: str
    document: str

    @property
    def id(self) -> "EventId | None":
        if self.turn_number is None or self.seq is None:
            return None
        return EventId(self.turn_number, self.seq)

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL_TYPES


@dataclass(frozen=True, slots=True)
class EventId:
    """Where a stream was cut: `<turn number>-<seq>` on the wire."""

    turn_number: int
    seq: int

    def __str__(self) -> str:
        return f"{self.turn_number}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "EventId | None":
        """None for anything that we have not written."""
        match = _EVENT_ID.fullmatch(text)
        return None if match is None else cls(int(match.group(1)), int(match.group(2)))


@dataclass(frozen=True, slots=True)
class TurnName:
    """What every event of a turn says of it, and where what it links to is."""

    conversation_id: ConversationId
    turn_id: TurnId
    number: int
    paths: Paths


def render(
    event: StreamEvent, seq: int | None, turn: TurnName, moment: datetime, *, rebuilt: bool = False
) -> Frame:
    kind = type_of(event)
    payload = _payload(event, turn)
    if rebuilt:
        payload["rebuilt"] = True
    return frame(kind, seq, turn, moment, payload)


def frame(
    kind: str, seq: int | None, turn: TurnName, moment: datetime, payload: dict[str, Any]
) -> Frame:
    document = dump_json(
        {
            "type": kind,
            "seq": seq,
            "conversation_id": str(turn.conversation_id),
            "turn_id": str(turn.turn_id),
            "turn_number": turn.number,
            "timestamp": rfc3339(moment),
            **payload,
        }
    )
    return Frame(turn.number, seq, kind, _UNSAFE.sub(_escaped, document))


def conversation_frame(
    kind: str, conversation_id: ConversationId, moment: datetime, payload: dict[str, Any]
) -> Frame:
    """An event of a conversation's follow stream that belongs to no turn, and is not stored."""
    document = dump_json(
        {
            "type": kind,
            "seq": None,
            "conversation_id": str(conversation_id),
            "turn_id": None,
            "turn_number": None,
            "timestamp": rfc3339(moment),
            **payload,
        }
    )
    return Frame(None, None, kind, _UNSAFE.sub(_escaped, document))


def type_of(event: StreamEvent) -> str:
    match event:
        case TurnStarted():
            return "turn.started"
        case TurnRestarted():
            return "turn.restarted"
        case TextDelta():
            return "text.delta"
        case ReasoningDelta():
            return "reasoning.delta"
        case ToolCallStarted():
            return "tool_call.started"
        case ToolCallCompleted():
            return "tool_call.completed"
        case MessageCompleted():
            return "message.completed"
        case TurnEnded(turn=turn):
            return f"turn.{turn.status.value}"


def moment_of(shown: Frame) -> datetime:
    """The time that stands in it."""
    return datetime.fromisoformat(json.loads(shown.document)["timestamp"])


def lines(frames: Sequence[Frame]) -> str:
    """As they are stored: one document a line."""
    return "\n".join(frame.document for frame in frames)


def parse_lines(text: str) -> list[Frame]:
    return [_parsed(line) for line in text.split("\n")]


def _parsed(line: str) -> Frame:
    head = _HEAD.match(line)
    if head is None:
        raise ValueError("a stored frame does not begin as all do")
    kind, seq, number = head.groups()
    return Frame(int(number), None if seq == "null" else int(seq), kind, line)


def _payload(event: StreamEvent, turn: TurnName) -> dict[str, Any]:
    match event:
        case TurnStarted():
            message = message_document(event.user_message, turn.turn_id, turn.number)
            return {"turn": turn_document(event.turn, turn.paths), "user_message": message}
        case TurnRestarted():
            restart = {"attempt": event.attempt, "reason": event.reason.value}
            return {**restart, "discard_after": FIRST_SEQ}
        case TextDelta():
            return {"message_id": str(event.message_id), "delta": event.delta}
        case ReasoningDelta():
            return {"delta": event.delta}
        case ToolCallStarted():
            return {
                "tool_call_id": event.tool_call_id,
                "tool_name": event.tool_name,
                "args": event.args,
            }
        case ToolCallCompleted():
            return {
                "tool_call_id": event.tool_call_id,
                "outcome": shown_outcome(event.outcome),
                "content": event.content,
                "duration_ms": event.duration_ms,
            }
        case MessageCompleted():
            return {"message": message_document(event.message, turn.turn_id, turn.number)}
        case TurnEnded():
            return _ending(event, turn.paths)


def _ending(event: TurnEnded, paths: Paths) -> dict[str, Any]:
    turn = event.turn
    ending: dict[str, Any] = {"turn": turn_document(turn, paths)}
    match turn.status:
        case TurnStatus.INCOMPLETE:
            ending["reason"] = turn.reason
        case TurnStatus.CANCELLED:
            ending["by"] = event.by
        case TurnStatus.FAILED:
            ending["error"] = turn.error
        case TurnStatus.COMPLETED | TurnStatus.RUNNING:
            pass
    return ending


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
