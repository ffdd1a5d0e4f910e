"""Bodies that are odd: a clear answer in the 400s, and nothing left behind."""

import httpx
import pytest

from app.api.pagination import encode_cursor
from app.bootstrap import Service
from tests.api.test_conversations import create
from tests.api.test_messages import history, send
from tests.scripted_model import ScriptedModel

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 422, "invalid_request"),
        (b"{", 400, "malformed_json"),
        (b"hello", 400, "malformed_json"),
        (b'{"content": NaN}', 400, "malformed_json"),
        (b'{"content": -Infinity}', 400, "malformed_json"),
        (b'{"content": 1e999}', 400, "malformed_json"),
        (b'{"content": "a\xff"}', 400, "malformed_json"),
        (b'\xef\xbb\xbf{"content": "a"}', 400, "malformed_json"),
        (b"[" * 100_000, 400, "malformed_json"),
        (b'{"content": ' + b"9" * 5000 + b"}", 400, "malformed_json"),
        (b"[]", 422, "invalid_request"),
        (b'"text"', 422, "invalid_request"),
        (b"null", 422, "invalid_request"),
        (b"{}", 422, "invalid_request"),
        (b'{"content": null}', 422, "invalid_request"),
        (b'{"content": 1}', 422, "invalid_request"),
        (b'{"content": ["a"]}', 422, "invalid_request"),
        (b'{"content": ""}', 422, "invalid_request"),
        (b'{"content": " \\n\\t "}', 422, "invalid_request"),
        (b'{"content": "a\\ud83d"}', 422, "invalid_request"),
        (b'{"content": "a\\u0000b"}', 422, "invalid_request"),
        (b'{"content": "a", "conversation_id": "../../etc"}', 422, "invalid_request"),
        (b'{"content": "a", "metadata": []}', 422, "invalid_request"),
        (b'{"content": "a", "metadata": {"a": "\\u0000"}}', 422, "invalid_request"),
        (b'{"content": "a", "metadata": {"\\ud800": 1}}', 422, "invalid_request"),
        (
            b'{"content": "a", "metadata": {"a": ' + b"[" * 50 + b"]" * 50 + b"}}",
            422,
            "invalid_request",
        ),
        (b'{"content": "a", "metadata": {"a": "' + b"x" * 17_000 + b'"}}', 422, "invalid_request"),
        (b'{"content": "' + b"x" * 200_001 + b'"}', 422, "invalid_request"),
        (b'{"content": "' + b"x" * 60_000_000 + b'"}', 413, "body_too_large"),
    ],
)
async def test_a_bad_send_is_refused_and_leaves_nothing(
    client: httpx.AsyncClient, model: ScriptedModel, body: bytes, status: int, code: str
) -> None:
    conversation = await create(client)

    response = await client.post(
        f"/v1/conversations/{conversation}/messages", content=body, headers=JSON
    )

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert model.requests == []
    assert await history(client, conversation) == []
    assert (await send(client, conversation, "fine")).json()["number"] == 1


async def test_a_fault_is_pointed_at_without_its_value(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/conversations", json={"title": "SECRET" * 100, "metadata": "SECRET", "a/b": "SECRET"}
    )

    problem = response.json()
    assert {fault["pointer"] for fault in problem["errors"]} == {"/title", "/metadata", "/a~1b"}
    assert "SECRET" not in response.text
    assert response.headers["x-should-retry"] == "false"


async def test_a_body_of_another_type_is_refused(client: httpx.AsyncClient) -> None:
    conversation = await create(client)
    path = f"/v1/conversations/{conversation}/messages"

    form = await client.post(path, data={"content": "a"})
    unnamed = await client.post(path, content=b'{"content": "a"}')

    assert (form.status_code, form.json()["code"]) == (415, "unsupported_media_type")
    assert unnamed.status_code == 415


async def test_the_longest_message_is_taken(client: httpx.AsyncClient) -> None:
    conversation = await create(client)

    response = await send(client, conversation, "\N{GRINNING FACE}" * 200_000)

    assert response.status_code == 200


async def test_six_characters_that_look_like_nul_are_text(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/conversations", json={"metadata": {"a": "\\u0000"}})

    assert response.status_code == 201
    assert response.json()["metadata"] == {"a": "\\u0000"}


async def test_nul_in_a_parameter_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/conversations?user_id=%00")

    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "2026-01-01"]
)
async def test_a_cursor_beyond_all_times_is_refused(client: httpx.AsyncClient, moment: str) -> None:
    cursor = encode_cursor("-updated_at", moment, "01a22ceb-138a-744c-b8db-a3cf2ca6064d")

    response = await client.get("/v1/conversations", params={"cursor": cursor})

    assert (response.status_code, response.json()["code"]) == (400, "bad_cursor")


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata": {"a": [' + b"[1]," * 900_000 + b"[1]]}}",
        b"{" + b",".join(b'"k%d":1' % n for n in range(350_000)) + b"}",
        b'{"config": {' + b",".join(b'"k%d":1' % n for n in range(300_000)) + b"}}",
    ],
    ids=["lists", "fields", "inner fields"],
)
async def test_a_body_of_very_many_values_is_refused_without_looking_at_each(
    client: httpx.AsyncClient, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}

    answer = await client.post("/v1/conversations", content=body, headers=headers)

    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "", "message": "must not hold more than 20000 values"}
    ]


async def test_of_very_many_faults_a_hundred_are_told(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/conversations", json={f"k{n}": n for n in range(5_000)})

    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 100


@pytest.mark.parametrize("media_type", ["application/json-patch+json", "text/plain", "x+json"])
async def test_other_kinds_of_json_are_not_taken_for_ours(
    client: httpx.AsyncClient, media_type: str
) -> None:
    conversation = (await client.post("/v1/conversations")).headers["location"]

    answer = await client.patch(conversation, content=b"{}", headers={"Content-Type": media_type})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_a_send_to_a_conversation_that_stays_locked_was_not_begun(
    client: httpx.AsyncClient, service: Service
) -> None:
    conversation = (await client.post("/v1/conversations")).json()["id"]
    async with service.database.statement() as driver, driver.transaction():
        await driver.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await driver.execute("SELECT FROM runs WHERE id = $1 FOR UPDATE", conversation)
        answer = await client.post(
            f"/v1/conversations/{conversation}/messages", json={"content": "hi"}
        )

    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert "x-turn-id" not in answer.headers
    assert "turn_id" not in answer.json()
