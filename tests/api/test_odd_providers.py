"""Providers and tools that answer nonsense: the turn ends, and the conversation goes on."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from app.bootstrap import running_service
from app.settings import Settings
from tests.api.test_conversations import create
from tests.api.test_messages import history, send
from tests.conftest import client_of
from tests.scripted_model import CallTool, Raw, Reply, ScriptedModel


def chunk(**fields: Any) -> Raw:
    base: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [],
    }
    return Raw({**base, **fields})


def usage(**counts: Any) -> Raw:
    return chunk(usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, **counts})


@pytest.mark.parametrize(
    "odd",
    [
        usage(prompt_tokens=1.5),
        usage(prompt_tokens=2**63 - 1),
        usage(prompt_tokens=10**30),
        usage(prompt_tokens=-5),
        usage(prompt_tokens="LEAKMARK"),
        usage(prompt_tokens_details={"cached_tokens": 0.5}),
        usage(completion_tokens_details={"reasoning_tokens": 10**23}),
        chunk(usage=[1]),
    ],
    ids=range(8),
)
async def test_odd_counts_never_break_a_conversation(
    client: httpx.AsyncClient, model: ScriptedModel, odd: Raw
) -> None:
    conversation = await create(client)
    for _ in range(2):
        model.will(Reply(["fine ", odd], usage=None))
        answer = await send(client, conversation, "hi")
        assert answer.status_code in (200, 502)
        assert "LEAKMARK" not in answer.text

    answer = await send(client, conversation, "and now?")

    assert answer.status_code == 200
    total = (await client.get(f"/v1/conversations/{conversation}")).json()["usage"]
    assert total["input_tokens"] is None or 0 <= total["input_tokens"] < 2**53


@pytest.mark.parametrize(
    "odd",
    [
        *(Raw(["x"]), Raw("x"), Raw(None), Raw(5)),
        chunk(choices={"a": 1}),
        chunk(choices=["x"]),
        chunk(choices=[{"index": 0, "delta": {"tool_calls": "x"}}]),
        chunk(created="never"),
    ],
    ids=range(8),
)
async def test_garbage_in_the_middle_is_a_model_error_that_keeps_what_was_said(
    client: httpx.AsyncClient, model: ScriptedModel, odd: Raw
) -> None:
    model.will(Reply(["so far ", odd, "so good"]))
    conversation = await create(client)

    answer = await send(client, conversation, "hi")

    if answer.status_code == 200:  # a chunk that the client passes over
        assert answer.json()["output"] == "so far so good"
    else:
        assert (answer.status_code, answer.json()["code"]) == (502, "model_error")
        kept = await history(client, conversation)
        assert [m["content"] for m in kept] == ["hi", "so far "]
    assert (await send(client, conversation, "and now?")).status_code == 200
    assert model.requests[-1].refusal is None


@pytest.mark.parametrize("tool", ["cancelled_inside", "leave", "huge_number"])
async def test_a_tool_that_misbehaves_has_failed_and_no_more(
    client: httpx.AsyncClient, model: ScriptedModel, tool: str
) -> None:
    model.will_say(CallTool("c1", tool))
    model.will_say("I see.")
    conversation = await create(client)

    turn = (await send(client, conversation, "hi")).json()

    assert turn["output"] == "I see."
    assert turn["messages"][2]["metadata"]["outcome"] in ("failed", "success")
    assert (await send(client, conversation, "and now?")).status_code == 200


async def test_a_tool_s_answer_of_5_mb_is_cut_and_says_so(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say(CallTool("c1", "long_text", '{"length": 5000000}'))
    model.will_say("That is long.")
    conversation = await create(client)

    turn = (await send(client, conversation, "hi")).json()

    result = turn["messages"][2]["content"]
    assert result == "x" * 200_000 + "\n[cut: 200000 of 5000000 characters]"
    assert model.requests[1].messages[-1]["content"] == result
    assert model.requests[1].refusal is None


async def test_a_tool_that_fails_for_ever_ends_the_turn(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_always(Reply([CallTool("c1", "echo", "{not json")]))
    conversation = await create(client)

    answer = await send(client, conversation, "hi")

    assert answer.json()["code"] == "model_error"
    assert len(model.requests) < 10
    model.forget()
    assert (await send(client, conversation, "and now?")).status_code == 200
    assert model.requests[-1].refusal is None


async def test_a_tool_that_is_called_for_ever_is_a_limit(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_always(Reply([CallTool("c1", "fail")]))
    conversation = await create(client)

    turn = (await send(client, conversation, "hi")).json()

    assert (turn["status"], turn["reason"]) == ("incomplete", "request_limit")
    assert len(model.requests) == 50


async def test_a_plain_function_does_not_hold_up_the_service(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say(
        CallTool("c1", "block", '{"seconds": 1}'), CallTool("c2", "block", '{"seconds": 1}')
    )
    model.will_say("Both are done.")
    conversation = await create(client)
    began = time.monotonic()
    sending = asyncio.ensure_future(send(client, conversation, "hi"))
    latencies: list[float] = []
    while not sending.done():
        asked = time.monotonic()
        assert (await client.get("/health/live")).status_code == 200
        latencies.append(time.monotonic() - asked)
        await asyncio.sleep(0.02)

    assert (await sending).json()["output"] == "Both are done."
    assert time.monotonic() - began < 1.9, "the two calls did not run at the same time"
    assert max(latencies) < 0.5


async def test_a_tool_over_its_time_has_failed(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    short = settings.model_copy(update={"chat_tool_timeout": 0.2})
    async with running_service(short, postgres_url) as service, client_of(service) as client:
        for tool in ("sleep", "block"):
            model.will_say(CallTool("c1", tool, '{"seconds": 2}'))
            model.will_say("Too slow.")
            conversation = await create(client)

            turn = (await send(client, conversation, "hi")).json()

            result = turn["messages"][2]
            assert (result["content"], result["metadata"]["outcome"]) == (
                *("The tool took too long.", "failed"),
            )
            assert turn["output"] == "Too slow."
