"""What a load balancer asks."""

import asyncio

import httpx

from app.bootstrap import Service, running_service
from app.settings import Settings
from tests.conftest import client_of
from tests.scripted_model import ScriptedModel


async def test_ready_names_the_model(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health/ready")

    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "model": "scripted", "reason": None}


async def test_live_asks_nobody(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health/live")).json() == {"status": "alive"}


async def test_a_draining_service_is_not_ready_and_takes_no_sends(
    settings: Settings, postgres_url: str, service: Service
) -> None:
    async with running_service(settings, postgres_url) as draining, client_of(draining) as client:
        conversation = (await client.post("/v1/conversations")).json()["id"]
        await draining.engine.drain(0)

        ready = await client.get("/health/ready")
        refused = await client.post(
            f"/v1/conversations/{conversation}/messages", json={"content": "hi"}
        )

        assert (ready.status_code, ready.json()["reason"]) == (503, "draining")
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        assert "turn_id" not in refused.json()
        assert (await client.get(f"/v1/conversations/{conversation}")).status_code == 200


async def test_a_claim_in_flight_at_the_drain_is_waited_for(
    settings: Settings, postgres_url: str, service: Service, model: ScriptedModel
) -> None:
    async with running_service(settings, postgres_url) as draining, client_of(draining) as client:
        conversation = (await client.post("/v1/conversations")).json()["id"]
        async with service.database.statement() as driver:
            transaction = driver.transaction()
            await transaction.start()
            await driver.execute("UPDATE runs SET title = 't'")
            path = f"/v1/conversations/{conversation}/messages"
            sending = asyncio.ensure_future(client.post(path, json={"content": "hi"}))
            await asyncio.sleep(0.2)
            stopping = asyncio.ensure_future(draining.drain(10))
            await asyncio.sleep(0.2)
            await transaction.rollback()

        assert (await sending).status_code == 200
        await stopping
