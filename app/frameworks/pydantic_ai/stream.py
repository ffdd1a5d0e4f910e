"""pydantic-ai's events to ours."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)

from app.events.stream_event import (
    MessageCompleted,
    ReasoningDelta,
    StepEvent,
    TextDelta,
    ToolCallCompleted,
    ToolCallStarted,
)
from app.frameworks.pydantic_ai.messages import to_conversation
from app.ids import MessageId, new_message_id
from app.messages.message import INTERRUPTED_RESULT, JsonObject, Outcome, Role
from app.messages.text_policy import storable, storable_json


class EventMapper:
    """Follows one agent run. Knows under which ids assistant messages were shown, in order."""

    def __init__(self, is_replayed: Callable[[str], bool] = lambda _: False) -> None:
        """`is_replayed`: whether this tool call was made by an earlier attempt."""
        self._is_replayed = is_replayed
        self.assistant_ids: list[MessageId] = []
        self._open: MessageId | None = None
        self._announced_responses = 0
        self._announced_ids = 0
        self._told: dict[MessageId, int] = {}
        self._unannounced: list[str] = []
        self._started: dict[str, float] = {}
        self._called: Counter[str] = Counter()

    def announce(self, messages: Sequence[ModelMessage]) -> Iterator[StepEvent]:
        """The framework goes from model to tools or back, or has stopped: tells of what is whole.

        What the framework had taken in, but not handed on before it was stopped, is told now.
        """
        self._open = None
        responses = [m for m in messages if isinstance(m, ModelResponse) and m.parts]
        for response in responses[self._announced_responses :]:
            yield from self._announce(response)
        self._announced_responses = len(responses)

    def lost(self, messages: Sequence[ModelMessage]) -> ModelResponse | None:
        """What was told of a response that the framework has not kept.

        Cancelled between a response's last event and its own note of it, it forgets the response.
        """
        responses = [m for m in messages if isinstance(m, ModelResponse) and m.parts]
        if not self._unannounced or len(responses) > self._announced_responses:
            return None
        return ModelResponse([TextPart("".join(self._unannounced))], state="interrupted")

    def _announce(self, response: ModelResponse) -> Iterator[StepEvent]:
        ids = self.assistant_ids[self._announced_ids :]
        messages = to_conversation([response], ids)
        said = [message for message in messages if message.role is Role.ASSISTANT]
        self.assistant_ids += [message.id for message in said[len(ids) :]]
        self._announced_ids = len(self.assistant_ids)
        self._unannounced.clear()
        for message in said:
            rest = message.content[self._told.get(message.id, 0) :]
            if rest:
                yield TextDelta(message.id, rest)
            if message.is_shown:
                yield MessageCompleted(message)

    def interrupted(self) -> Iterator[StepEvent]:
        """An end for each tool call that was told of and has none."""
        for call_id, started in self._started.items():
            yield ToolCallCompleted(
                storable(call_id), Outcome.INTERRUPTED, INTERRUPTED_RESULT, _since(started)
            )
        self._started.clear()

    def never_made(self, messages: Sequence[ModelMessage]) -> Iterator[StepEvent]:
        """What the model called for and the framework did not call, as that is kept too."""
        calls = [c for m in messages if isinstance(m, ModelResponse) for c in m.tool_calls]
        told = self._called.copy()
        for call in calls:
            if told[call.tool_call_id] > 0:
                told[call.tool_call_id] -= 1
                continue
            call_id = storable(call.tool_call_id)
            yield ToolCallStarted(call_id, storable(call.tool_name), _args(call))
            yield ToolCallCompleted(call_id, Outcome.INTERRUPTED, INTERRUPTED_RESULT, None)

    def map(self, event: AgentStreamEvent) -> Iterator[StepEvent]:
        match event:
            case PartStartEvent(part=part):
                yield from self._part(part)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                yield self._text(text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)) if text:
                yield ReasoningDelta(storable(text))
            case FunctionToolCallEvent(part=call):
                self._started[call.tool_call_id] = time.monotonic()
                self._called[call.tool_call_id] += 1
                name = storable(call.tool_name)
                yield ToolCallStarted(storable(call.tool_call_id), name, _args(call))
            case FunctionToolResultEvent():
                yield from self._result(event)
            case _:
                # Ends of parts repeat what was said; the rest concerns features we do not use.
                pass

    def _part(self, part: ModelResponsePart) -> Iterator[StepEvent]:
        if isinstance(part, ToolCallPart | NativeToolCallPart | NativeToolReturnPart):
            self._open = None
            return
        self._message()
        if isinstance(part, TextPart) and part.content:
            yield self._text(part.content)
        elif isinstance(part, ThinkingPart) and part.content:
            yield ReasoningDelta(storable(part.content))

    def _text(self, text: str) -> TextDelta:
        message_id = self._message()
        self._told[message_id] = self._told.get(message_id, 0) + len(text)
        self._unannounced.append(text)
        return TextDelta(message_id, storable(text))

    def _message(self) -> MessageId:
        """The assistant message that is being written: parts without a tool call between them."""
        if self._open is None:
            self._open = new_message_id()
            self.assistant_ids.append(self._open)
        return self._open

    def _result(self, event: FunctionToolResultEvent) -> Iterator[StepEvent]:
        (message,) = to_conversation([ModelRequest(parts=[event.part])])
        result = message.tool_result
        started = self._started.pop(event.tool_call_id, None)
        if result is not None and started is not None:
            duration = None if self._is_replayed(event.tool_call_id) else _since(started)
            yield ToolCallCompleted(result.call_id, result.outcome, result.content, duration)


def _since(started: float) -> int:
    """Milliseconds."""
    return int((time.monotonic() - started) * 1000)


def _args(call: ToolCallPart) -> str | JsonObject | None:
    args = call.args
    if args is None or isinstance(args, str):
        return None if args is None else storable(args)
    return cast("JsonObject", storable_json(json.loads(call.args_as_json_str())))
