"""Every route of the description, called for another user's things: they do not exist."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.bootstrap import Service
from app.ids import new_conversation_id, new_turn_id
from app.storage.database import Database
from tests.api.test_conversations import create
from tests.api.test_isolation import user
from tests.api.test_messages import send
from tests.conftest import client_of
from tests.scripted_model import Gate, Hold, ScriptedModel

DOCUMENT = json.loads((Path(__file__).parents[2] / "openapi" / "openapi.json").read_text())
# Routes that name nothing of anybody's. A new one has to be looked at, and listed here.
WITHOUT_IDS = {
    ("get", "/health/live"),
    ("get", "/health/ready"),
    ("get", "/v1/conversations"),
    ("post", "/v1/conversations"),
}
OPEN = {("get", "/health/live"), ("get", "/health/ready")}


def operations() -> Iterator[tuple[str, str]]:
    for path, described in DOCUMENT["paths"].items():
        for method in described:
            yield method, path


def body_of(method: str, path: str) -> Any:
    """The example of the route's body; None where it takes none."""
    described = DOCUMENT["paths"][path][method].get("requestBody")
    if described is None:
        return None
    name = described["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return DOCUMENT["components"]["schemas"][name]["examples"][0]


async def call(
    client: httpx.AsyncClient, method: str, path: str, ids: dict[str, str]
) -> httpx.Response:
    """Fails for a route with an id that nobody has thought of here."""
    return await client.request(method, path.format_map(ids), json=body_of(method, path))


class Ada:
    """Has a conversation with one turn that has ended and one that runs."""

    def __init__(self, ids: dict[str, str], database: Database, model: ScriptedModel) -> None:
        self.ids = ids
        self._database = database
        self._model = model

    async def everything(self) -> object:
        """All rows of all tables that hold what is anybody's, and all that the model was asked."""
        tables = ("runs", "turns", "messages", "events", "idempotency_keys")
        async with self._database.statement() as driver:
            rows = [
                await driver.fetch(f"SELECT t::text FROM {name} AS t ORDER BY 1")  # noqa: S608 - our tables
                for name in tables
            ]
        return rows, self._model.texts


@pytest.fixture
async def ada(keyed: Service, model: ScriptedModel) -> Ada:
    client = await user(keyed, "ada")
    conversation = await create(client, title="SECRET")
    await send(client, conversation, "SECRET")
    gate = Gate()
    model.will_say("SECRET ", Hold(gate))
    path = f"/v1/conversations/{conversation}/messages"
    body = {"content": "SECRET"}
    running = await client.post(path, json=body, headers={"Prefer": "respond-async"})
    await gate.reached()
    await asyncio.sleep(0.2)
    ids = {"conversation_id": conversation, "turn_id": running.json()["id"]}
    return Ada(ids, keyed.database, model)


def unknown() -> dict[str, str]:
    return {"conversation_id": str(new_conversation_id()), "turn_id": str(new_turn_id())}


def said(answer: httpx.Response) -> tuple[int, dict[str, Any]]:
    body = answer.json()
    return answer.status_code, {k: body[k] for k in body if k not in ("instance", "request_id")}


async def test_what_is_another_user_s_is_like_what_never_was(keyed: Service, ada: Ada) -> None:
    eve = await user(keyed, "eve")
    before = await ada.everything()
    tried = 0

    for method, path in operations():
        if (method, path) in WITHOUT_IDS:
            continue
        answer = await call(eve, method, path, ada.ids)
        assert answer.status_code == 404, (method, path)
        assert said(answer) == said(await call(eve, method, path, unknown())), (method, path)
        assert "SECRET" not in answer.text
        tried += 1

    assert tried >= 13
    assert await ada.everything() == before


async def test_without_credentials_nothing_is_told_or_done(keyed: Service, ada: Ada) -> None:
    nobody = client_of(keyed)
    before = await ada.everything()

    for method, path in operations():
        answer = await call(nobody, method, path, ada.ids)
        expected = 200 if (method, path) in OPEN else 401
        assert answer.status_code == expected, (method, path)

    assert await ada.everything() == before


async def test_a_list_holds_one_s_own_only(keyed: Service, ada: Ada) -> None:
    eve = await user(keyed, "eve-2")
    own = await create(eve)

    listed = (await eve.get("/v1/conversations")).json()["data"]

    assert [item["id"] for item in listed] == [own]
