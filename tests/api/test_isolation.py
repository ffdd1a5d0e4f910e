"""With keys: another user's conversation does not exist, on every route."""

import httpx
import pytest

from app.bootstrap import Service
from tests.api.test_conversations import create
from tests.api.test_erasure import tables_with
from tests.api.test_messages import history, send
from tests.conftest import client_of
from tests.scripted_model import ScriptedModel


async def user(service: Service, name: str, *scopes: str) -> httpx.AsyncClient:
    _, token = await service.keys.create(name, scopes)
    return client_of(service, {"Authorization": f"Bearer {token}"})


async def test_each_verb_of_another_user_finds_nothing(
    keyed: Service, model: ScriptedModel
) -> None:
    ada, eve = await user(keyed, "ada"), await user(keyed, "eve")
    conversation = await create(ada)
    turn = (await send(ada, conversation, "hi")).json()
    before = (await ada.get(f"/v1/conversations/{conversation}")).json()
    path = f"/v1/conversations/{conversation}"

    answers = [
        await eve.get(path),
        await eve.get(f"{path}/messages"),
        await eve.get(f"{path}/turns"),
        await eve.get(f"{path}/turns/{turn['id']}"),
        await send(eve, conversation, "let me in"),
        await eve.post(f"{path}/close"),
        await eve.delete(path),
    ]

    unknown = await eve.get("/v1/conversations/nonsense")
    for answer in answers:
        assert answer.status_code == 404
        assert _without_names(answer) == _without_names(unknown)
    assert (await eve.get("/v1/conversations")).json()["data"] == []
    for name in ("ada", "nobody-at-all"):
        refused = await eve.get(f"/v1/conversations?user_id={name}")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await eve.get("/v1/conversations?user_id=eve")).json()["data"] == []
    assert len(model.requests) == 1
    assert (await ada.get(path)).json() == before


def _without_names(answer: httpx.Response) -> dict[str, object]:
    return {k: v for k, v in answer.json().items() if k not in ("instance", "request_id")}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer cw_nonsense"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic YTpi"},
    ],
)
async def test_without_a_valid_key_nothing_is_told(keyed: Service, headers: dict[str, str]) -> None:
    nobody = client_of(keyed, headers)

    for method, path in (
        ("GET", "/v1/conversations"),
        ("POST", "/v1/conversations"),
        ("GET", "/v1/conversations/nonsense"),
        ("GET", "/v1/conversations?token=cw_nonsense"),
    ):
        answer = await nobody.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_who_is_not_let_in_is_not_listened_to(keyed: Service) -> None:
    nobody = client_of(keyed)

    for body, headers in (
        (b"{", {"content-type": "application/json"}),
        (b"x", {"content-type": "text/plain"}),
        (b"x" * 5_000_000, {"content-type": "application/json"}),
    ):
        answer = await nobody.post("/v1/conversations", content=body, headers=headers)
        assert answer.status_code == 401


async def test_health_needs_no_key(keyed: Service) -> None:
    nobody = client_of(keyed)

    assert (await nobody.get("/health/live")).status_code == 200
    assert (await nobody.get("/health/ready")).status_code == 200


async def test_a_key_in_the_query_is_not_accepted(keyed: Service) -> None:
    _, token = await keyed.keys.create("ada", ())
    nobody = client_of(keyed)

    for name in ("token", "access_token", "api_key"):
        assert (await nobody.get("/v1/conversations", params={name: token})).status_code == 401


async def test_a_revoked_key_opens_nothing(keyed: Service) -> None:
    key_id, token = await keyed.keys.create("ada", ())
    client = client_of(keyed, {"Authorization": f"Bearer {token}"})
    assert (await client.get("/v1/conversations")).status_code == 200

    assert await keyed.keys.revoke(key_id)

    assert (await client.get("/v1/conversations")).status_code == 401
    assert not await keyed.keys.revoke(key_id)


async def test_only_a_hash_of_a_key_is_stored(keyed: Service) -> None:
    _, token = await keyed.keys.create("ada", ())

    assert await tables_with(keyed.database, token) == []
    assert await tables_with(keyed.database, token.removeprefix("cw_")) == []


async def test_the_use_of_a_key_is_noted(keyed: Service) -> None:
    key_id, token = await keyed.keys.create("ada", ())
    (before,) = [key for key in await keyed.keys.list() if key.id == key_id]

    await client_of(keyed, {"Authorization": f"Bearer {token}"}).get("/v1/conversations")

    (after,) = [key for key in await keyed.keys.list() if key.id == key_id]
    assert before.last_used_at is None
    assert after.last_used_at is not None


async def test_a_scope_opens_exactly_its_own_action(keyed: Service) -> None:
    ada = await user(keyed, "ada-2")
    reader = await user(keyed, "reader", "conversations:read:any")
    writer = await user(keyed, "writer", "conversations:write:any")
    eraser = await user(keyed, "eraser", "conversations:delete:any")
    conversation = await create(ada)
    path = f"/v1/conversations/{conversation}"

    assert (await reader.get(path)).status_code == 200
    listed = (await reader.get("/v1/conversations?user_id=ada-2")).json()["data"]
    assert [item["id"] for item in listed] == [conversation]
    assert (await reader.get("/v1/conversations")).json()["data"] == []
    assert (await send(reader, conversation, "hi")).status_code == 404
    assert (await reader.delete(path)).status_code == 404
    assert (await writer.get(path)).status_code == 404
    assert (await writer.delete(path)).status_code == 404
    assert (await eraser.get(path)).status_code == 404
    assert (await eraser.delete(path)).status_code == 204
    assert (await ada.get(path)).status_code == 404


async def test_a_writer_for_anyone_gets_the_answer_of_its_own_send(keyed: Service) -> None:
    ada = await user(keyed, "ada-3")
    writer = await user(keyed, "writer-2", "conversations:write:any")
    conversation = await create(ada)

    answer = await send(writer, conversation, "for ada")

    assert answer.status_code == 200
    assert (await history(ada, conversation))[0]["content"] == "for ada"


@pytest.mark.parametrize(
    "headers",
    [
        *({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}),
        *({"Host": "localhost.evil.example"}, {"Host": "evil.example@localhost"}),
        *({"Host": "localhost:abc"}, {"Host": "localhost/x"}, {"Host": ""}),
    ],
    ids=str,
)
async def test_without_authentication_foreign_pages_are_kept_out(
    client: httpx.AsyncClient, headers: dict[str, str], through_proxies: bool
) -> None:
    answer = await client.post("/v1/conversations", headers=headers)

    if through_proxies and headers in ({"Host": "localhost/x"}, {"Host": ""}):
        assert answer.status_code == 400  # by nginx, which takes no such host
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert (await client.get("/v1/conversations")).json()["data"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "127.0.0.1:8000"},
        {"Host": "[::1]:8000", "Origin": "http://localhost:3000"},
        {"Authorization": "Bearer whatever"},
    ],
)
async def test_without_authentication_this_machine_may_do_all(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await client.post("/v1/conversations", headers=headers)).status_code == 201
