"""Deletion that is real."""

import asyncio

import httpx

from app.bootstrap import Service
from app.storage.database import Database
from tests.api.test_conversations import create
from tests.api.test_messages import send
from tests.scripted_model import CallTool, Gate, Hold, ScriptedModel

MARKER = "MARKER-77"


async def tables_with(database: Database, text: str) -> list[str]:
    """Every table of the database that holds this text anywhere."""
    found: list[str] = []
    async with database.statement() as driver:
        names = await driver.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for name in (row["tablename"] for row in names):
            query = f"SELECT count(*) FROM {name} AS t WHERE t::text LIKE $1"  # noqa: S608 - our tables
            if await driver.fetchval(query, f"%{text}%"):
                found.append(name)
    return found


async def test_nothing_of_an_erased_conversation_is_left(
    client: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    model.will_say(CallTool("c1", "echo", f'{{"text": "{MARKER}"}}'))
    model.will_say(f"answer {MARKER}")
    conversation = await create(
        client, metadata={"k": MARKER}, session_id=MARKER, config={"instructions": MARKER}
    )
    await send(client, conversation, f"question {MARKER}")
    assert set(await tables_with(service.database, MARKER)) == {"runs", "messages", "events"}

    response = await client.delete(f"/v1/conversations/{conversation}")

    assert response.status_code == 204
    assert await tables_with(service.database, MARKER) == []
    assert (await client.get(f"/v1/conversations/{conversation}")).status_code == 404
    assert (await client.get("/v1/conversations")).json()["data"] == []
    assert (await send(client, conversation, "hi")).status_code == 404


async def test_erasing_again_is_fine_for_its_owner(client: httpx.AsyncClient) -> None:
    conversation = await create(client)

    answers = [await client.delete(f"/v1/conversations/{conversation}") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]


async def test_erasure_wins_over_a_running_turn(
    client: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    gate = Gate()
    model.will_say(f"{MARKER} ", Hold(gate), "late")
    conversation = await create(client)
    sending = asyncio.ensure_future(send(client, conversation, MARKER))
    await gate.reached()

    response = await client.delete(f"/v1/conversations/{conversation}")
    answer = await sending
    gate.open()

    assert response.status_code == 204
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert model.requests[0].aborted
    assert service.engine.held == frozenset()
    assert await tables_with(service.database, MARKER) == []


async def test_a_long_conversation_is_purged_in_batches(
    client: httpx.AsyncClient, service: Service
) -> None:
    conversation = await create(client)
    await send(client, conversation, "hi")
    async with service.database.statement() as driver:
        await driver.execute(
            "INSERT INTO messages SELECT run_id, 2 + n, id, 1, role, status, content, metadata, "
            "created_at FROM messages, generate_series(1, 4500) AS n WHERE seq = 1"
        )
        await driver.execute("UPDATE runs SET next_message_seq = 4503")

    await client.delete(f"/v1/conversations/{conversation}")

    async with service.database.statement() as driver:
        assert await driver.fetchval("SELECT count(*) FROM messages") == 0
        assert await driver.fetchval("SELECT count(*) FROM turns") == 0
