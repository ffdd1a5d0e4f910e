"""From a turn's log back to its messages: what was shown is what is kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from app.ids import MessageId, new_message_id
from app.messages.message import (
    ConversationMessage,
    Envelope,
    MessageStatus,
    Outcome,
    Role,
    Side,
    Text,
    ToolCall,
    ToolResult,
)
from app.runs import TurnStatus

_STATUSES = {f"turn.{status.value}": status for status in TurnStatus if status.is_terminal}
_OUTCOMES = {"cancelled": Outcome.INTERRUPTED}


@dataclass(slots=True)
class Projection:
    """The assistant's and tools' messages of the last attempt. RUNNING while there is no end.

    `open_message`: the assistant message that was begun and has not been completed.
    `open_calls`: the tool calls that have no result, by id, with their names.
    """

    status: TurnStatus = TurnStatus.RUNNING
    last_seq: int = 0
    _messages: list[ConversationMessage] = field(default_factory=list[ConversationMessage])
    _said: dict[MessageId, list[str]] = field(default_factory=dict[MessageId, list[str]])
    open_message: MessageId | None = None
    open_calls: dict[str, str] = field(default_factory=dict[str, str])
    _call_order: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def messages(self) -> list[ConversationMessage]:
        """Those that were not completed hold what had come of them."""
        return [self._with_what_came(message) for message in self._messages]

    def _with_what_came(self, message: ConversationMessage) -> ConversationMessage:
        said = self._said.get(message.id)
        if said is None:
            return message
        return replace(message, pieces=(Text("".join(said)),), status=MessageStatus.PARTIAL)

    def apply(self, event: Mapping[str, Any]) -> None:
        self.last_seq = event["seq"] or self.last_seq
        kind, moment = event["type"], datetime.fromisoformat(event["timestamp"])
        match kind:
            case "turn.restarted":
                self._messages, self._said = [], {}
                self.open_message, self.open_calls = None, {}
            case "text.delta":
                self._text(MessageId(UUID(event["message_id"])), event["delta"], moment)
            case "message.completed":
                self._completed(event["message"])
            case "tool_call.started":
                self._call(event, moment)
            case "tool_call.completed":
                self._result(event, moment)
            case _:
                self.status = _STATUSES.get(kind, self.status)

    def _text(self, message_id: MessageId, delta: str, moment: datetime) -> None:
        if self.open_message != message_id:
            self.open_message = message_id
            self._add(Role.ASSISTANT, Side.RESPONSE, moment, id=message_id)
        self._said.setdefault(message_id, []).append(delta)

    def _completed(self, document: Mapping[str, Any]) -> None:
        """The document is what history shows. Its model and reason go to the response's envelope."""
        message_id = MessageId(UUID(document["id"]))
        moment, status = datetime.fromisoformat(document["timestamp"]), document["status"]
        self._said.pop(message_id, None)
        if message_id not in [message.id for message in self._messages]:
            self._add(Role.ASSISTANT, Side.RESPONSE, moment, id=message_id)
        if self.open_message == message_id:
            self.open_message = None
        place = [message.id for message in self._messages].index(message_id)
        message = self._messages[place]
        envelope = message.envelope and replace(
            message.envelope,
            state="complete" if status == MessageStatus.COMPLETE else "interrupted",
            timestamp=moment,
            model=document["metadata"].get("model"),
            finish_reason=document["metadata"].get("finish_reason"),
        )
        self._messages[place] = replace(
            message,
            pieces=(Text(document["content"]),),
            status=MessageStatus(status),
            timestamp=moment,
            envelope=envelope,
        )

    def _call(self, event: Mapping[str, Any], moment: datetime) -> None:
        call = ToolCall(event["tool_call_id"], event["tool_name"], event["args"])
        self.open_calls[call.call_id] = call.name
        self._call_order[call.call_id] = len(self._messages)
        self._add(Role.TOOL_CALL, Side.RESPONSE, moment, tool_call=call)

    def _result(self, event: Mapping[str, Any], moment: datetime) -> None:
        outcome = event["outcome"]
        result = ToolResult(
            call_id=event["tool_call_id"],
            name=self.open_calls.pop(event["tool_call_id"], ""),
            content=event["content"],
            outcome=_OUTCOMES.get(outcome) or Outcome(outcome),
        )
        self._add(Role.TOOL_RESULT, Side.REQUEST, moment, tool_result=result)
        self._order_results()

    def _order_results(self) -> None:
        """The latest results in the order of their calls, as the model sees them; the log tells them
        in the order in which tools that ran side by side have ended."""
        start = len(self._messages)
        while start > 0 and self._messages[start - 1].role is Role.TOOL_RESULT:
            start -= 1
        results = self._messages[start:]
        ordered = sorted(results, key=self._place_of_call)
        first = replace(ordered[0], envelope=results[0].envelope)
        self._messages[start:] = [first, *(replace(each, envelope=None) for each in ordered[1:])]

    def _place_of_call(self, message: ConversationMessage) -> int:
        result = message.tool_result
        return self._call_order.get(result.call_id, 0) if result is not None else 0

    def _add(
        self,
        role: Role,
        side: Side,
        moment: datetime,
        *,
        id: MessageId | None = None,
        **content: Any,
    ) -> None:
        """A change of sides begins a new request to, or response of, the model."""
        begins = not self._messages or _side(self._messages[-1]) is not side
        state = "interrupted" if side is Side.RESPONSE else "complete"
        self._messages.append(
            ConversationMessage(
                id=id or new_message_id(),
                role=role,
                timestamp=moment,
                envelope=Envelope(side, state=state, timestamp=moment) if begins else None,
                **content,
            )
        )


def project(events: Iterable[Mapping[str, Any]]) -> Projection:
    projection = Projection()
    for event in events:
        projection.apply(event)
    return projection


def _side(message: ConversationMessage) -> Side:
    return Side.REQUEST if message.role is Role.TOOL_RESULT else Side.RESPONSE
