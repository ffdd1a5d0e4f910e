"""A turn whose model fails is a failed turn: said, stored, and no hindrance to the next one."""

import time

import httpx
import pytest

from app.bootstrap import running_service
from app.settings import Settings
from tests.api.test_conversations import create
from tests.api.test_messages import history, send
from tests.conftest import client_of
from tests.scripted_model import (
    CallTool,
    CutConnection,
    Gate,
    Hold,
    InBandError,
    Reply,
    ScriptedModel,
)

SECRET = {"error": {"message": "key sk-SECRET is bad", "type": "x", "code": None}}


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (Reply(status=500, body=SECRET), 502, "model_error"),
        (Reply(status=400, body=SECRET), 502, "model_error"),
        (Reply(status=401, body=SECRET), 502, "model_error"),
        (Reply(status=429, body=SECRET), 503, "model_rate_limited"),
        (Reply([]), 502, "model_error"),
        (Reply([], finish=None), 502, "model_error"),
        (Reply([CutConnection()]), 502, "model_error"),
        (Reply([InBandError("sk-SECRET")]), 502, "model_error"),
    ],
)
async def test_a_failure_before_any_text(
    client: httpx.AsyncClient, model: ScriptedModel, reply: Reply, status: int, code: str
) -> None:
    model.will(reply)
    conversation = await create(client)

    failed = await send(client, conversation, "first")
    works = await send(client, conversation, "second")

    problem = failed.json()
    assert (failed.status_code, problem["code"]) == (status, code)
    assert problem["turn_id"] == failed.headers["x-turn-id"]
    turn = (await client.get(problem["links"]["self"])).json()
    assert (turn["status"], turn["error"], turn["output"]) == ("failed", problem, None)
    assert problem["request_id"] == failed.headers["x-request-id"]
    assert "SECRET" not in failed.text
    assert works.status_code == 200
    assert [m["content"] for m in model.requests[-1].messages[1:]] == ["second"]
    assert [m["content"] for m in await history(client, conversation)][:2] == ["first", "second"]


@pytest.mark.parametrize("last", [CutConnection(), InBandError("sk-SECRET")])
async def test_a_failure_in_the_middle_keeps_the_partial_text(
    client: httpx.AsyncClient, model: ScriptedModel, last: CutConnection | InBandError
) -> None:
    model.will_say("half an ", "answer", last)
    conversation = await create(client)

    failed = await send(client, conversation, "first")
    await send(client, conversation, "second")

    assert failed.json()["code"] == "model_error"
    partial = (await history(client, conversation))[1]
    assert (partial["content"], partial["status"]) == ("half an answer", "partial")
    turn = (await client.get(failed.json()["links"]["self"])).json()
    assert (turn["status"], turn["output"]) == ("failed", "half an answer")
    assert turn["usage"]["estimated"] is True
    assert [m["content"] for m in model.requests[-1].messages[1:]] == [
        *("first", "half an answer", "second"),
    ]


async def test_a_stream_without_a_finish_reason_is_never_a_complete_answer(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will(Reply(["looks whole."], finish=None))
    conversation = await create(client)

    assert (await send(client, conversation, "first")).json()["code"] == "model_error"


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "output_limit"), ("content_filter", "content_filter")]
)
async def test_a_cut_answer_is_incomplete(
    client: httpx.AsyncClient, model: ScriptedModel, finish: str, reason: str
) -> None:
    model.will(Reply(["as far as"], finish=finish))
    conversation = await create(client)

    response = await send(client, conversation, "first")

    turn = response.json()
    assert response.status_code == 200
    assert (turn["status"], turn["reason"]) == ("incomplete", reason)
    assert turn["output"] == "as far as"


async def test_a_waiting_time_of_the_provider_is_passed_on(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will(Reply(status=429, headers={"retry-after": "7"}))
    conversation = await create(client)

    response = await send(client, conversation, "first")

    assert response.headers["retry-after"] == "7"
    assert len(model.requests) == 1


async def test_a_failure_after_a_tool_call_leaves_a_usable_history(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say("Looking. ", CallTool("c1", "echo", '{"text": "x"}'))
    model.will(Reply(status=500))
    conversation = await create(client)

    failed = await send(client, conversation, "first")
    works = await send(client, conversation, "second")

    assert failed.status_code == 502
    assert works.status_code == 200
    assert model.requests[-1].refusal is None
    assert model.requests[-1].roles == ["system", "user", "assistant", "tool", "user"]


async def test_no_first_token_in_time(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    model.will_say(Hold(Gate()))
    limited = settings.model_copy(update={"chat_first_token_timeout": 0.3})
    async with running_service(limited, postgres_url) as service, client_of(service) as client:
        conversation = await create(client)

        response = await send(client, conversation, "first")

        assert (response.status_code, response.json()["code"]) == (504, "model_timeout")
        assert (await send(client, conversation, "second")).status_code == 200
        assert model.requests[0].aborted


async def test_a_turn_over_its_time_limit_is_incomplete_with_what_there_is(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    model.will_say("so far", Hold(Gate()))
    limited = settings.model_copy(update={"chat_turn_timeout": 0.5})
    async with running_service(limited, postgres_url) as service, client_of(service) as client:
        conversation = await create(client)

        response = await send(client, conversation, "first")

        turn = response.json()
        assert response.status_code == 200
        assert (turn["status"], turn["reason"]) == ("incomplete", "time_limit")
        assert turn["output"] == "so far"


async def test_a_request_is_tried_again_before_the_first_token_only(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    limited = settings.model_copy(update={"chat_model_retries": 2})
    async with running_service(limited, postgres_url) as service, client_of(service) as client:
        conversation = await create(client)

        model.will(Reply(status=500), Reply(status=503), Reply(["third time"]))
        assert (await send(client, conversation, "a")).json()["output"] == "third time"
        assert len(model.requests) == 3

        model.will(*[Reply(status=500)] * 4)
        assert (await send(client, conversation, "b")).json()["code"] == "model_error"
        assert len(model.requests) == 6

        model.forget()
        model.will_say("begun", CutConnection())
        assert (await send(client, conversation, "c")).json()["code"] == "model_error"
        assert len(model.requests) == 1


async def test_a_model_that_cannot_be_reached(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    nowhere = settings.model_copy(update={"chat_model_base_url": "http://127.0.0.1:9/v1"})
    async with running_service(nowhere, postgres_url) as service, client_of(service) as client:
        conversation = await create(client)
        started = time.monotonic()

        response = await send(client, conversation, "first")

        assert response.json()["code"] == "model_error"
        assert time.monotonic() - started < 10


async def test_a_conversation_whose_model_is_gone_says_so_and_keeps_its_history(
    client: httpx.AsyncClient, settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    conversation = await create(client)
    await send(client, conversation, "first")
    other = settings.model_copy(update={"chat_model": "demo", "chat_model_base_url": None})
    async with running_service(other, postgres_url) as service, client_of(service) as changed:
        response = await send(changed, conversation, "second")

        assert response.json()["code"] == "model_error"
        assert len(await history(changed, conversation)) == 3


async def test_a_conversation_keeps_its_model_when_another_is_configured_on_the_same_server(
    client: httpx.AsyncClient, settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    conversation = await create(client)
    await send(client, conversation, "first")
    other = settings.model_copy(update={"chat_model": "another:8b"})
    async with running_service(other, postgres_url) as service, client_of(service) as changed:
        assert (await send(changed, conversation, "second")).status_code == 200
        assert (await send(changed, await create(changed), "new")).status_code == 200

    assert [request.body["model"] for request in model.requests] == [
        *("scripted", "scripted", "another:8b")
    ]
