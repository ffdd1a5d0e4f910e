"""The adapter, both ways, over generated histories of every kind the framework has."""

import asyncio
import json
import warnings
from dataclasses import replace
from typing import Any, get_args

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from openai import AsyncOpenAI
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryPromptPart,  # pyright: ignore[reportDeprecated] - the adapter still takes it
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from app.frameworks.pydantic_ai.messages import to_conversation, to_model
from app.messages.codec import decode, encode
from app.messages.message import ConversationMessage, MessageStatus, Outcome, Reasoning, Role
from tests.unit.frameworks.pydantic_ai.histories import (
    histories,
    request_parts,
    requests,
    response_parts,
    responses,
)

# Configuration, sent anew on every turn: dropped on purpose.
DROPPED = {"system-prompt", "instruction-delta", "instruction-baseline"}
# Kinds that a generator need not make: what is dropped, and what only old versions have written.
NOT_GENERATED = {"instruction-baseline", "retry-prompt"}
PICTURE = b"\x89PNG\x00\xff"

ANY_SPEED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
# 100, or 1000 in the profile "whole", which `make test-histories` uses.
UNIT = settings().max_examples
thorough = settings(
    max_examples=2 * UNIT, deadline=None, suppress_health_check=ANY_SPEED, database=None
)


def through_storage(history: list[ModelMessage]) -> list[ModelMessage]:
    ours = to_conversation(history)
    stored = [encode(message) for message in ours]
    again = tuple(decode(row) for row in stored)
    assert again == ours
    return to_model(again)


def normal(history: list[ModelMessage]) -> list[dict[str, Any]]:
    """As JSON, loaded once (which is where the framework itself settles), without what is dropped."""
    dumped = ModelMessagesTypeAdapter.dump_python(history, mode="json")
    loaded = ModelMessagesTypeAdapter.validate_python(dumped)
    documents = json.loads(json.dumps(ModelMessagesTypeAdapter.dump_python(loaded, mode="json")))
    for document in documents:
        document.pop("instructions", None)
        document["parts"] = [p for p in document["parts"] if p["part_kind"] not in DROPPED]
    return documents


@pytest.mark.timeout(120)
@thorough
@given(histories)
def test_every_history_comes_back_equal(history: list[ModelMessage]) -> None:
    assert normal(through_storage(history)) == normal(history)


def kinds_of(union: Any) -> set[str]:
    """The part kinds of one of the framework's annotated unions."""
    members = [get_args(member)[0] for member in get_args(get_args(union)[0])]
    classes: list[Any] = [member for member in members if isinstance(member, type)]
    return {cls.part_kind for cls in classes}


@pytest.mark.parametrize(
    ("union", "generator"),
    [(ModelRequestPart, request_parts), (ModelResponsePart, response_parts)],
)
def test_the_generator_knows_every_kind_of_part(union: Any, generator: Any) -> None:
    generated: set[str] = set()

    @settings(max_examples=400, deadline=None, database=None)
    @given(generator)
    def collect(part: Any) -> None:
        generated.add(part.part_kind)

    collect()
    assert kinds_of(union) - NOT_GENERATED <= generated


def test_the_generator_knows_every_field_of_a_message() -> None:
    """A field that a new version brings fails here until the adapter was looked at."""
    assert set(ModelRequest.__dataclass_fields__) == {
        *("parts", "timestamp", "instructions", "kind", "run_id", "conversation_id"),
        *("metadata", "state"),
    }
    assert set(ModelResponse.__dataclass_fields__) == {
        *("parts", "usage", "model_name", "model_id", "timestamp", "kind", "provider_name"),
        *("provider_url", "canonical_system", "provider_details", "provider_response_id"),
        *("finish_reason", "run_id", "conversation_id", "metadata", "workspace_ref"),
        *("history_digest", "failed_attempts", "state"),
    }


# ── on the wire ──────────────────────────────────────────────────────────────────────────────────


class Wire:
    """What the framework's own client sends for a history, without sending it."""

    def __init__(self) -> None:
        self._sent: list[Any] = []
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(self._answer))
        openai = AsyncOpenAI(api_key="k", http_client=client, max_retries=0)
        self._model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(openai_client=openai))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self._sent.append(json.loads(request.content))
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "x"},
        }
        body = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }
        return httpx2.Response(200, json=body)

    async def of(self, history: list[ModelMessage]) -> object:
        """The request's body, or the type of the error that the framework raises instead."""
        self._sent.clear()
        try:
            await self._model.request(history, None, ModelRequestParameters())
        except (UserError, NotImplementedError, RuntimeError, ValueError, AssertionError) as error:
            return type(error)
        return self._sent[0]["messages"]


def without_instructions(history: list[ModelMessage]) -> list[ModelMessage]:
    documents = normal(history)
    return ModelMessagesTypeAdapter.validate_python(documents)


@pytest.mark.timeout(90)
def test_every_history_is_sent_equal() -> None:
    wire = Wire()
    equal = 0
    with asyncio.Runner() as runner:

        @settings(
            max_examples=UNIT // 2, deadline=None, database=None, suppress_health_check=ANY_SPEED
        )
        @given(histories)
        def check(history: list[ModelMessage]) -> None:
            nonlocal equal
            expected = runner.run(wire.of(without_instructions(history)))
            assert runner.run(wire.of(through_storage(history))) == expected
            equal += isinstance(expected, list)

        check()
    # Most are refused by the model before they are sent; enough have to be compared.
    assert equal > UNIT // 20


# ── by example ───────────────────────────────────────────────────────────────────────────────────

TURN: list[ModelMessage] = [
    ModelRequest(parts=[SystemPromptPart("SYSTEM"), UserPromptPart("QUESTION")]),
    ModelResponse(
        parts=[
            ThinkingPart("THOUGHT", signature="s", provider_name="p"),
            TextPart("LOOKING"),
            ToolCallPart("clock", {"zone": "UTC"}, "call_1"),
            ToolCallPart("clock", '{"zone": ', "call_2"),
        ]
    ),
    ModelRequest(
        parts=[
            ToolReturnPart("clock", {"hour": 12}, "call_1"),
            ToolReturnPart("clock", "AGAIN", "call_2", outcome="retried"),
        ]
    ),
    ModelResponse(parts=[TextPart("ANSWER")], finish_reason="stop", model_name="m"),
]


def test_roles_are_those_of_the_speakers() -> None:
    ours = to_conversation(TURN)

    assert [(message.role.value, message.content) for message in ours] == [
        ("user", "QUESTION"),
        ("assistant", "LOOKING"),
        ("tool_call", ""),
        ("tool_call", ""),
        ("tool_result", '{"hour":12}'),
        ("tool_result", "AGAIN"),
        ("assistant", "ANSWER"),
    ]
    assert "SYSTEM" not in repr(ours)


def test_ids_and_arguments_of_tool_calls_are_kept_as_sent() -> None:
    ours = to_conversation(TURN)

    assert ours[2].metadata == {
        "tool_name": "clock",
        "tool_call_id": "call_1",
        "args": {"zone": "UTC"},
    }
    assert ours[3].metadata["args"] == '{"zone": '
    assert ours[5].metadata == {
        "tool_name": "clock",
        "tool_call_id": "call_2",
        "outcome": "failed",
    }


def test_reasoning_is_not_answer_text_and_keeps_its_signature() -> None:
    ours = to_conversation(TURN)

    assert ours[1].pieces[0] == Reasoning("THOUGHT", "s", "p")
    assert "THOUGHT" not in ours[1].content


def test_an_empty_signature_is_none() -> None:
    (message,) = to_conversation([ModelResponse(parts=[ThinkingPart("x", signature="")])])

    assert message.pieces == (Reasoning("x", None, None),)


def test_a_retry_of_an_old_version_becomes_a_tool_result() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = RetryPromptPart("wrong", tool_name="clock", tool_call_id="c")  # pyright: ignore[reportDeprecated] - that is the point
    (message,) = to_conversation([ModelRequest(parts=[part])])

    assert message.role is Role.TOOL_RESULT
    assert message.tool_result is not None
    assert message.tool_result.outcome is Outcome.RETRIED


def test_pictures_and_bytes_survive() -> None:
    picture = BinaryContent(PICTURE, media_type="image/png")
    url = ImageUrl("https://example.org/a.png")
    back = through_storage(
        [
            ModelRequest(parts=[UserPromptPart(["look", picture, url, "and this"])]),
            ModelResponse(parts=[ToolCallPart("shot", {}, "c1")]),
            ModelRequest(parts=[ToolReturnPart("shot", picture, "c1")]),
        ]
    )

    prompt, result = back[0].parts[0], back[2].parts[0]
    assert isinstance(prompt, UserPromptPart)
    assert isinstance(result, ToolReturnPart)
    assert [type(item) for item in prompt.content] == [
        str,
        type(picture.narrow_type(picture)),
        ImageUrl,
        str,
    ]
    assert isinstance(prompt.content[1], BinaryContent)
    assert prompt.content[1].data == PICTURE
    assert isinstance(result.content, BinaryContent)
    assert result.content.data == PICTURE


def test_a_cut_off_response_marks_its_last_message_only() -> None:
    ours = to_conversation(
        [ModelResponse(parts=[TextPart("a"), ToolCallPart("t", '{"x', "c")], state="interrupted")]
    )

    assert [m.status for m in ours] == [MessageStatus.COMPLETE, MessageStatus.PARTIAL]


def test_messages_without_parts_keep_their_state() -> None:
    back = through_storage([ModelRequest(parts=[], state="interrupted"), ModelResponse(parts=[])])

    assert [type(message) for message in back] == [ModelRequest, ModelResponse]
    assert [message.state for message in back] == ["interrupted", "complete"]


def test_what_carries_no_words_is_not_shown() -> None:
    ours = to_conversation(
        [
            ModelRequest(parts=[]),
            ModelResponse(parts=[ThinkingPart("x"), ToolCallPart("t", {}, "c")]),
        ]
    )

    assert [message.is_shown for message in ours] == [False, False, True]


def test_a_message_of_our_own_making_is_a_request_by_itself() -> None:
    first, second = to_conversation([ModelRequest(parts=[UserPromptPart("a")])] * 2)

    assert len(to_model([first, second])) == 2


@pytest.mark.parametrize("strategy", [requests, responses])
def test_a_group_begins_with_its_envelope(strategy: Any) -> None:
    @settings(max_examples=200, deadline=None, database=None)
    @given(strategy)
    def check(message: ModelMessage) -> None:
        ours: tuple[ConversationMessage, ...] = to_conversation([message])
        assert [item.envelope is not None for item in ours] == [True] + [False] * (len(ours) - 1)

    check()


def odd(**fields: Any) -> ConversationMessage:
    """A stored response that the framework does not load as it stands."""
    (message,) = to_conversation([ModelResponse(parts=[TextPart("said")])])
    assert message.envelope is not None
    return replace(message, envelope=replace(message.envelope, **fields))


def test_what_the_framework_refuses_is_loaded_with_no_more_than_what_was_said() -> None:
    first, last = to_conversation([ModelRequest(parts=[UserPromptPart("a")])] * 2)

    back = to_model([first, odd(usage={"input_tokens": 1.5}), last])

    assert [type(message) for message in back] == [ModelRequest, ModelResponse, ModelRequest]
    assert isinstance(back[1], ModelResponse)
    assert back[1].text == "said"


def test_what_cannot_be_loaded_at_all_does_not_take_the_others_with_it() -> None:
    first, last = to_conversation([ModelRequest(parts=[UserPromptPart("a")])] * 2)

    assert len(to_model([first, odd(state="unheard of"), last])) == 2
