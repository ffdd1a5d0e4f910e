"""A finished turn whose events were pruned, told again from the transcript.

Only the terminal event has an id; what was shown in pieces is shown whole.
"""

from collections.abc import Iterator, Sequence

from app.events.stream_event import (
    MessageCompleted,
    StreamEvent,
    ToolCallCompleted,
    ToolCallStarted,
    TurnEnded,
    TurnStarted,
)
from app.messages.message import ConversationMessage, Role
from app.runs import Turn
from app.wire.event import Frame, TurnName, render


def rebuilt(turn: Turn, name: TurnName, messages: Sequence[ConversationMessage]) -> Iterator[Frame]:
    prompt, *rest = messages
    yield render(TurnStarted(turn, prompt), None, name, turn.created_at, rebuilt=True)
    for message in rest:
        event = _event_of(message)
        if event is not None:
            yield render(event, None, name, message.timestamp)
    ended = turn.completed_at or turn.created_at
    yield render(TurnEnded(turn, by="user"), turn.last_seq, name, ended)


def _event_of(message: ConversationMessage) -> StreamEvent | None:
    if message.tool_call is not None:
        call = message.tool_call
        return ToolCallStarted(call.call_id, call.name, call.args)
    if message.tool_result is not None:
        result = message.tool_result
        return ToolCallCompleted(result.call_id, result.outcome, result.content, None)
    if message.role is Role.ASSISTANT and message.is_shown:
        return MessageCompleted(message)
    return None
