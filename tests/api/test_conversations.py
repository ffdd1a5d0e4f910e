"""Create, read, list, close: what an owner can do with a conversation."""

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.scripted_model import Gate, Hold, ScriptedModel


async def create(client: httpx.AsyncClient, **body: object) -> str:
    response = await client.post("/v1/conversations", json=body)
    assert response.status_code == 201
    return response.json()["id"]


async def test_a_new_conversation_is_open_and_empty(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/conversations",
        json={"title": "Oslo", "metadata": {"b": 1, "a": [True, None]}, "session_id": "s1"},
    )

    document = response.json()
    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/conversations/{document['id']}"
    assert document["object"] == "conversation"
    assert document["status"] == "open"
    assert document["title"] == "Oslo"
    assert list(document["metadata"].items()) == [("b", 1), ("a", [True, None])]
    assert document["session_id"] == "s1"
    assert document["turn_count"] == 0
    assert document["active_turn"] is None
    assert document["user_id"] == "local"
    assert (await client.get(response.headers["location"])).json() == document


async def test_a_body_is_not_needed_to_create(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/conversations")

    assert response.status_code == 201


async def test_the_configuration_is_a_snapshot_with_the_client_s_overrides(
    client: httpx.AsyncClient,
) -> None:
    response = await client.post(
        "/v1/conversations",
        json={"profile": "default", "config": {"instructions": "Rhyme.", "max_context_turns": 3}},
    )

    config = response.json()["config"]
    assert config["instructions"] == "Rhyme."
    assert config["max_context_turns"] == 3
    assert config["model"] == "scripted"


async def test_a_model_of_the_client_s_choice_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/conversations", json={"config": {"model": "gpt-9"}})

    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/config/model"


async def test_the_first_message_gives_the_title(client: httpx.AsyncClient) -> None:
    conversation = await create(client)

    await client.post(
        f"/v1/conversations/{conversation}/messages", json={"content": "Where\n is " + "x" * 200}
    )

    title = (await client.get(f"/v1/conversations/{conversation}")).json()["title"]
    assert title == ("Where is " + "x" * 200)[:80]


async def test_a_given_title_stays(client: httpx.AsyncClient) -> None:
    conversation = await create(client, title="Mine")

    await client.post(f"/v1/conversations/{conversation}/messages", json={"content": "hello"})

    assert (await client.get(f"/v1/conversations/{conversation}")).json()["title"] == "Mine"


async def test_times_are_rfc3339_in_utc_and_now(client: httpx.AsyncClient) -> None:
    document = (await client.post("/v1/conversations")).json()

    created = datetime.fromisoformat(document["created_at"])
    assert document["created_at"].endswith("Z")
    assert abs(datetime.now(UTC) - created) < timedelta(seconds=5)  # noqa: TID251 - compares clocks


async def test_conversations_created_at_once_are_listed_once_each(
    client: httpx.AsyncClient,
) -> None:
    created = set(await asyncio.gather(*(create(client) for _ in range(25))))

    for sort in ("-updated_at", "-created_at"):
        assert sorted(await _all_pages(client, sort)) == sorted(created)


async def _all_pages(client: httpx.AsyncClient, sort: str) -> list[str]:
    found: list[str] = []
    response = await client.get("/v1/conversations", params={"limit": 7, "sort": sort})
    while True:
        page = response.json()
        found += [item["id"] for item in page["data"]]
        assert page["has_more"] == (page["next_cursor"] is not None)
        if not page["has_more"]:
            return found
        response = await client.get(response.links["next"]["url"])


async def test_the_latest_activity_comes_first(client: httpx.AsyncClient) -> None:
    first, second = await create(client), await create(client)

    await client.post(f"/v1/conversations/{first}/messages", json={"content": "hello"})

    listed = (await client.get("/v1/conversations")).json()["data"]
    assert [item["id"] for item in listed] == [first, second]


async def test_the_list_can_be_limited_to_a_status(client: httpx.AsyncClient) -> None:
    closed, opened = await create(client), await create(client)
    await client.post(f"/v1/conversations/{closed}/close")

    for status, expected in (("open", opened), ("closed", closed)):
        listed = (await client.get("/v1/conversations", params={"status": status})).json()
        assert [item["id"] for item in listed["data"]] == [expected]


@pytest.mark.parametrize("cursor", ["%%%", "e30", "WyJ0dXJucyIsIjMiXQ", "", "WzFd", "x" * 400])
async def test_a_cursor_of_another_list_is_refused(client: httpx.AsyncClient, cursor: str) -> None:
    response = await client.get("/v1/conversations", params={"cursor": cursor})

    assert response.status_code == 400
    assert response.json()["code"] == "bad_cursor"


async def test_a_cursor_of_another_order_is_refused(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await create(client)
    page = (await client.get("/v1/conversations", params={"limit": 1})).json()

    response = await client.get(
        "/v1/conversations", params={"cursor": page["next_cursor"], "sort": "-created_at"}
    )

    assert response.json()["code"] == "bad_cursor"


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("limit", 101), ("status", "asleep")])
async def test_parameters_are_checked(client: httpx.AsyncClient, name: str, value: object) -> None:
    response = await client.get("/v1/conversations", params={name: str(value)})

    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == f"/query/{name}"


async def test_a_closed_conversation_takes_no_messages(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(client)

    closed = await client.post(f"/v1/conversations/{conversation}/close")
    refused = await client.post(
        f"/v1/conversations/{conversation}/messages", json={"content": "hello"}
    )

    assert closed.json()["status"] == "closed"
    assert closed.json()["closed_at"] is not None
    assert refused.status_code == 409
    assert refused.json()["code"] == "conversation_closed"
    assert refused.headers["x-should-retry"] == "false"
    assert model.requests == []


async def test_closing_again_changes_nothing(client: httpx.AsyncClient) -> None:
    conversation = await create(client)

    first = await client.post(f"/v1/conversations/{conversation}/close")
    second = await client.post(f"/v1/conversations/{conversation}/close")

    assert second.status_code == 200
    assert second.json() == first.json()


async def test_closing_is_refused_while_a_turn_runs(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say(Hold(gate), "done")
    conversation = await create(client)
    sending = asyncio.ensure_future(
        client.post(f"/v1/conversations/{conversation}/messages", json={"content": "hello"})
    )
    await gate.reached()

    refused = await client.post(f"/v1/conversations/{conversation}/close")

    gate.open()
    assert refused.status_code == 409
    assert refused.json()["code"] == "turn_in_progress"
    assert refused.json()["turn_id"] == (await sending).json()["id"]


@pytest.mark.parametrize(
    "name",
    ["nonsense", "0", "01a22ceb-138a-744c-b8db-a3cf2ca6064d", "01A22CEB138A744CB8DBA3CF2CA6064D"],
)
async def test_ids_of_nothing_are_not_found(client: httpx.AsyncClient, name: str) -> None:
    path = f"/v1/conversations/{name}"

    answers = [
        await client.get(path),
        await client.delete(path),
        await client.post(f"{path}/close"),
        await client.get(f"{path}/messages"),
        await client.get(f"{path}/turns"),
        await client.get(f"{path}/turns/{name}"),
        await client.post(f"{path}/messages", json={"content": "hello"}),
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert {answer.json()["code"] for answer in answers} == {"not_found"}
    assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}


async def test_a_request_id_is_kept_when_it_is_sane(client: httpx.AsyncClient) -> None:
    kept = await client.get("/v1/conversations/x", headers={"X-Request-ID": "abc-1"})
    replaced = await client.get("/v1/conversations/x", headers={"X-Request-ID": "a b"})

    assert kept.headers["x-request-id"] == kept.json()["request_id"] == "abc-1"
    assert replaced.headers["x-request-id"] == replaced.json()["request_id"] != "a b"


async def test_unknown_paths_and_methods_are_problems(client: httpx.AsyncClient) -> None:
    nowhere, wrong = await client.get("/v2"), await client.put("/v1/conversations")

    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"]


async def test_a_conversation_has_the_tools_that_it_was_created_with(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    everything = await client.post("/v1/conversations")
    some = await client.post("/v1/conversations", json={"config": {"tools": ["echo", "sleep"]}})
    none = await client.post("/v1/conversations", json={"config": {"tools": []}})

    for created in (everything, some, none):
        path = f"{created.headers['location']}/messages"
        assert (await client.post(path, json={"content": "hi"})).status_code == 200

    offered = [tool["function"]["name"] for tool in model.requests[0].body["tools"]]
    assert everything.json()["config"]["tools"] == offered
    assert [t["function"]["name"] for t in model.requests[1].body["tools"]] == ["echo", "sleep"]
    assert some.json()["config"]["tools"] == ["echo", "sleep"]
    assert not model.requests[2].body.get("tools")


async def test_a_tool_that_is_not_offered_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/conversations", json={"config": {"tools": ["echo", "rm"]}})

    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "/config/tools/1", "message": "there is no such tool"}
    ]
