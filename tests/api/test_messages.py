"""Send and history: a conversation that remembers."""

import asyncio
from decimal import Decimal
from typing import Any

import httpx
import pytest

from app.bootstrap import Service
from tests.api.test_conversations import create
from tests.scripted_model import CallTool, Gate, Hold, Reply, ScriptedModel, Think


async def send(client: httpx.AsyncClient, conversation: str, content: str) -> httpx.Response:
    path = f"/v1/conversations/{conversation}/messages"
    return await client.post(path, json={"content": content})


async def history(client: httpx.AsyncClient, conversation: str, **params: int) -> list[Any]:
    response = await client.get(f"/v1/conversations/{conversation}/messages", params=params)
    assert response.status_code == 200
    return response.json()["data"]


async def test_an_answer_is_the_stored_turn(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say("Hello ", "there")
    conversation = await create(client)

    response = await send(client, conversation, "hi")

    turn = response.json()
    assert response.status_code == 200
    assert response.headers["x-turn-id"] == turn["id"]
    assert turn["object"] == "turn"
    assert turn["number"] == 1
    assert turn["status"] == "completed"
    assert turn["output"] == "Hello there"
    assert [(m["role"], m["content"]) for m in turn["messages"]] == [
        ("user", "hi"),
        ("assistant", "Hello there"),
    ]
    assert turn["usage"] == {
        "input_tokens": 10,
        "output_tokens": 5,
        "cache_read_tokens": None,
        "reasoning_tokens": None,
        "cost": None,
        "estimated": False,
    }
    assert turn["created_at"] <= turn["first_token_at"] <= turn["completed_at"]
    assert (await client.get(turn["links"]["self"])).json() == turn
    assert turn["messages"] == await history(client, conversation)


async def test_the_second_answer_builds_on_the_first(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say("Hello Ada")
    model.will_say("It is Ada")
    conversation = await create(client)

    await send(client, conversation, "I am Ada")
    await send(client, conversation, "Who am I?")

    assert [(m["role"], m["content"]) for m in model.requests[1].messages] == [
        ("system", "Be brief."),
        ("user", "I am Ada"),
        ("assistant", "Hello Ada"),
        ("user", "Who am I?"),
    ]


async def test_thirty_fast_turns_stay_in_order(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(client)
    for number in range(30):
        model.will_say(f"answer {number}")
        await send(client, conversation, f"question {number}")

    expected = [text for n in range(30) for text in (f"question {n}", f"answer {n}")]
    assert [m["content"] for m in await history(client, conversation, limit=200)] == expected
    assert await _all_pages(client, conversation) == expected


async def _all_pages(client: httpx.AsyncClient, conversation: str) -> list[str]:
    """Pages of three turns, from the latest back to the first."""
    texts: list[str] = []
    url = f"/v1/conversations/{conversation}/messages?limit=3"
    while True:
        response = await client.get(url)
        texts[:0] = [m["content"] for m in response.json()["data"]]
        if response.json()["next_cursor"] is None:
            return texts
        url = response.links["next"]["url"]


async def test_the_model_sees_the_instructions_once_and_only_the_last_turns(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(client, config={"max_context_turns": 2, "instructions": "Rhyme."})

    for number in range(6):
        await send(client, conversation, f"question {number}")

    assert all(request.refusal is None for request in model.requests)
    for request in model.requests:
        assert request.messages[0] == {"role": "system", "content": "Rhyme."}
        assert request.roles.count("system") == 1
        assert len(request.roles) <= 6
    assert "question 3" in model.requests[5].messages[1]["content"]


async def test_tool_calls_are_kept_in_pairs_and_in_place(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say("Let me look. ", CallTool("c1", "echo", '{"text": "x"}'), CallTool("c2", "fail"))
    model.will_say("Done.")
    conversation = await create(client)

    turn = (await send(client, conversation, "look")).json()
    await send(client, conversation, "and now?")

    assert [m["role"] for m in turn["messages"]] == [
        *("user", "assistant", "tool_call", "tool_call"),
        *("tool_result", "tool_result", "assistant"),
    ]
    call, result = turn["messages"][2]["metadata"], turn["messages"][4]["metadata"]
    assert call == {"tool_name": "echo", "tool_call_id": "c1", "args": '{"text": "x"}'}
    assert result == {"tool_name": "echo", "tool_call_id": "c1", "outcome": "success"}
    assert turn["messages"][5]["metadata"]["outcome"] == "failed"
    assert turn["output"] == "Done."
    assert [request.refusal for request in model.requests] == [None, None, None]
    assert model.requests[2].roles == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "user"),
    ]
    assert "hunter2" not in model.texts


async def test_tokens_are_summed_over_a_turn_and_over_the_conversation(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(client)
    for _ in range(2):
        model.will(Reply([CallTool("c1", "echo", '{"text": "x"}')], usage=(20, 5)))
        model.will(Reply(["done"], usage=(40, 7)))
        turn = (await send(client, conversation, "one")).json()
        assert (turn["usage"]["input_tokens"], turn["usage"]["output_tokens"]) == (60, 12)

    usage = (await client.get(f"/v1/conversations/{conversation}")).json()["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (120, 24)


async def test_a_provider_that_counts_nothing_leaves_usage_unknown(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will(Reply(["ok"], usage=None))
    conversation = await create(client)

    turn = (await send(client, conversation, "one")).json()

    assert turn["usage"]["input_tokens"] is None
    assert turn["usage"]["output_tokens"] is None


async def test_reasoning_is_kept_for_the_model_and_shown_to_nobody(
    client: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    model.will_say(Think("SECRET-THOUGHT"), "Answer")
    conversation = await create(client)

    turn = await send(client, conversation, "think")

    assert turn.json()["output"] == "Answer"
    assert "SECRET-THOUGHT" not in turn.text
    assert "SECRET-THOUGHT" not in str(await history(client, conversation))
    async with service.database.statement() as driver:
        rows = await driver.fetch("SELECT metadata::text AS text FROM messages")
    assert any("SECRET-THOUGHT" in row["text"] for row in rows)


@pytest.mark.parametrize("answer", ['"hi"', '{"a":1}', "1e3", "null", "```json\n{}\n```"])
async def test_an_answer_is_never_parsed(
    client: httpx.AsyncClient, model: ScriptedModel, answer: str
) -> None:
    model.will_say(answer)
    conversation = await create(client)

    assert (await send(client, conversation, "say it")).json()["output"] == answer


async def test_what_cannot_be_stored_is_replaced_in_what_a_model_or_tool_says(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say(CallTool("c1", "odd_values"))
    model.will_say("a\x00b", "\ud83d", "\ude00")
    conversation = await create(client)

    turn = (await send(client, conversation, "odd")).json()

    assert turn["output"] == "a\ufffdb\ufffd\ufffd"
    assert turn["messages"][2]["content"] == (
        '{"nan":null,"large":10000000000000000000000000000000000000000,'
        '"text":"a\ufffdb\ufffd","bytes":"_w=="}'
    )


async def test_metadata_of_a_message_comes_back_in_its_order(client: httpx.AsyncClient) -> None:
    conversation = await create(client)
    metadata = {"z": 1, "a": {"y": 12345678901234567890123, "b": 0.5}}

    await client.post(
        f"/v1/conversations/{conversation}/messages",
        json={"content": "hi", "metadata": metadata},
    )

    found = (await history(client, conversation))[0]["metadata"]
    assert found == metadata
    assert list(found) == ["z", "a"]


async def test_a_running_turn_shows_its_user_message(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say(Hold(gate), "done")
    conversation = await create(client)
    sending = asyncio.ensure_future(send(client, conversation, "hi"))
    await gate.reached()

    document = (await client.get(f"/v1/conversations/{conversation}")).json()
    path = f"/v1/conversations/{conversation}/turns/{document['active_turn']['id']}"
    turn = (await client.get(path)).json()

    gate.open()
    assert document["active_turn"]["number"] == 1
    assert turn["status"] == "running"
    assert turn["output"] is None
    assert turn["completed_at"] is None
    assert [m["content"] for m in turn["messages"]] == ["hi"]
    assert (await sending).status_code == 200
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["active_turn"] is None


async def test_a_client_that_leaves_does_not_stop_the_turn(
    client: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    gate = Gate()
    model.will_say("all ", Hold(gate), "of it")
    conversation = await create(client)
    sending = asyncio.ensure_future(send(client, conversation, "hi"))
    await gate.reached()

    sending.cancel()
    await asyncio.wait([sending])
    (turn_id,) = service.engine.held
    gate.open()
    await service.engine.wait(turn_id, 10)

    assert [m["content"] for m in await history(client, conversation)] == ["hi", "all of it"]


async def test_turns_are_listed_newest_first(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(client)
    for number in range(5):
        model.will_say(f"answer {number}")
        await send(client, conversation, f"question {number}")

    first = (await client.get(f"/v1/conversations/{conversation}/turns?limit=3")).json()
    second = await client.get(
        f"/v1/conversations/{conversation}/turns", params={"cursor": first["next_cursor"]}
    )

    assert [turn["number"] for turn in first["data"]] == [5, 4, 3]
    assert [turn["output"] for turn in first["data"]] == ["answer 4", "answer 3", "answer 2"]
    assert [turn["number"] for turn in second.json()["data"]] == [2, 1]
    assert second.json()["next_cursor"] is None
    assert "messages" not in first["data"][0]


async def test_a_turn_is_only_found_in_its_own_conversation(client: httpx.AsyncClient) -> None:
    conversation, other = await create(client), await create(client)
    turn = (await send(client, conversation, "hi")).json()

    assert (await client.get(f"/v1/conversations/{other}/turns/{turn['id']}")).status_code == 404


async def test_a_sum_of_costs_is_exact(client: httpx.AsyncClient, service: Service) -> None:
    conversation = await create(client)
    await send(client, conversation, "hi")
    async with service.database.statement() as driver:
        await driver.execute("UPDATE runs SET cost = $1", Decimal("0.1000000000000000055511151231"))

    usage = (await client.get(f"/v1/conversations/{conversation}")).json()["usage"]

    assert usage["cost"] == "0.1000000000000000055511151231"
