"""Two sends at once: exactly one runs, the others are told so and leave no trace."""

import asyncio
import time

import httpx
import pytest

from app.bootstrap import Service
from app.storage.database import Database
from tests.api.test_conversations import create
from tests.api.test_messages import history, send
from tests.scripted_model import Gate, Hold, Reply, ScriptedModel

ROUNDS = 20
SENDERS = 100


@pytest.mark.timeout(120)
async def test_of_a_hundred_simultaneous_sends_exactly_one_runs(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    for round_number in range(ROUNDS):
        await _one_round(client, model, round_number)


async def _one_round(client: httpx.AsyncClient, model: ScriptedModel, round_number: int) -> None:
    model.forget()
    gate = Gate()
    model.will_always(Reply([Hold(gate), "done"]))
    conversation = await create(client)
    texts = [f"text-{round_number}-{n}-" for n in range(SENDERS)]
    sends = [asyncio.ensure_future(send(client, conversation, text)) for text in texts]
    done: set[asyncio.Future[httpx.Response]] = set()
    waiting = set(sends)
    async with asyncio.timeout(30):
        while len(waiting) > 1:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= ended
    gate.open()
    (winner,) = waiting
    won = (await winner).json()

    refused = [future.result() for future in done]
    assert {response.status_code for response in refused} == {409}
    assert len(refused) == SENDERS - 1
    for response in refused:
        problem = response.json()
        assert problem["code"] == "turn_in_progress"
        assert problem["turn_id"] == won["id"]
        assert problem["links"] == won["links"]
        assert response.headers["retry-after"] == "1"
        assert response.headers["x-should-retry"] == "false"
        assert "x-turn-id" not in response.headers
    assert len(model.requests) == 1
    told = won["messages"][0]["content"]
    assert [m["content"] for m in await history(client, conversation)] == [told, "done"]
    assert all(text not in model.texts for text in texts if text != told)


async def test_different_conversations_do_not_wait_for_each_other(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will(Reply([Hold(gate), "slow"]), Reply(["fast"]))
    slow, fast = await create(client), await create(client)
    waiting = asyncio.ensure_future(send(client, slow, "hi"))
    await gate.reached()

    assert (await send(client, fast, "hi")).json()["output"] == "fast"

    gate.open()
    assert (await waiting).json()["output"] == "slow"


async def _only_two_are_out(database: Database) -> None:
    async with asyncio.timeout(2):
        while database.checked_out != 2:
            await asyncio.sleep(0.005)


@pytest.mark.timeout(120)
async def test_turns_that_wait_for_the_model_hold_no_connection(
    client: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    """200 turns on a pool of five, of which the lease and the recorder own one each."""
    gate = Gate()
    model.will_always(Reply([Hold(gate), "done"]))
    conversations = [await create(client) for _ in range(200)]
    sends = [asyncio.ensure_future(send(client, name, "hi")) for name in conversations]
    await gate.reached(200)

    await _only_two_are_out(service.database)
    started = time.monotonic()
    assert (await client.get("/health/ready")).status_code == 200
    assert time.monotonic() - started < 1

    gate.open()
    responses = await asyncio.gather(*sends)
    assert [response.status_code for response in responses] == [200] * 200
    assert {response.json()["output"] for response in responses} == {"done"}


async def test_requests_that_wait_leave_connections_to_the_turns(
    client: httpx.AsyncClient, service: Service
) -> None:
    """More of them than there are connections wait for one row; a turn's own statements do not."""
    conversation = await create(client)
    path = f"/v1/conversations/{conversation}"
    async with service.database.statement() as driver, driver.transaction():
        await driver.execute("SELECT FROM runs WHERE id = $1 FOR UPDATE", conversation)
        waiting = [
            asyncio.ensure_future(client.patch(path, json={"title": f"{number}"}))
            for number in range(20)
        ]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(2), service.database.statement() as other:
            assert await other.fetchval("SELECT 1") == 1

    assert {(await each).status_code for each in waiting} == {200}
