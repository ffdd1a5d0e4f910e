"""What one caller, and one process, may do at once; more is refused at once and leaves no trace."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from app.api.limits import RateLimit
from app.bootstrap import Service, running_service
from app.settings import Settings
from tests.api.test_conversations import create
from tests.api.test_isolation import user
from tests.api.test_messages import history, send
from tests.conftest import client_of, delete_all
from tests.scripted_model import Gate, Hold, Reply, ScriptedModel


@asynccontextmanager
async def limited(
    settings: Settings, postgres_url: str, **limits: object
) -> AsyncGenerator[Service]:
    own = settings.model_copy(update=limits)
    async with running_service(own, postgres_url) as service:
        yield service
        await service.engine.stop_all()
        await delete_all(service.database)


async def test_a_caller_s_sends_are_counted_and_one_too_many_is_refused(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    async with limited(settings, postgres_url, chat_rate_limit=3) as service:
        client = client_of(service)
        conversation = await create(client)

        answers = [await send(client, conversation, f"n{n}") for n in range(4)]

        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"sends";q=3;w=60'}
        left = [answer.headers["ratelimit"].partition(";t=")[0] for answer in answers]
        assert left == [f'"sends";r={n}' for n in (2, 1, 0, 0)]
        refused = answers[3]
        assert refused.json()["code"] == "rate_limited"
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert "turn_id" not in refused.json()
        assert len(await history(client, conversation)) == 6
        assert len(model.requests) == 3
        # Only what begins turns is counted.
        assert "ratelimit" not in (await client.get("/v1/conversations")).headers


async def test_each_caller_has_limits_of_its_own(settings: Settings, postgres_url: str) -> None:
    async with limited(settings, postgres_url, chat_auth="keys", chat_request_limit=1) as service:
        ada, eve = await user(service, "ada"), await user(service, "eve")

        first, second = await ada.get("/v1/conversations"), await ada.get("/v1/conversations")

        assert (first.status_code, second.status_code) == (200, 429)
        assert second.headers["retry-after"] == "1"
        assert (await eve.get("/v1/conversations")).status_code == 200
        assert (await client_of(service).get("/v1/conversations")).status_code == 401
        assert (await ada.get("/health/ready")).status_code == 200


async def test_open_streams_are_counted_and_given_back(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_always(Reply(["a", Hold(gate), "b"]))
    async with limited(settings, postgres_url, chat_streams_per_caller=2) as service:
        client = client_of(service)
        names = [await create(client) for _ in range(3)]
        paths = [f"/v1/conversations/{name}/messages/stream" for name in names]
        streams = [
            asyncio.ensure_future(client.post(path, json={"content": "hi"})) for path in paths[:2]
        ]
        await gate.reached(2)

        refused = await client.post(paths[2], json={"content": "hi"})
        following = await client.get(f"/v1/conversations/{names[2]}/events")
        gate.open()
        await asyncio.wait(streams)

        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert refused.headers["retry-after"] == "5"
        assert following.status_code == 429
        assert await history(client, names[2]) == []
        for _ in range(5):
            assert (await client.post(paths[2], json={"content": "hi"})).status_code == 200


async def test_more_turns_than_may_run_are_refused_at_once(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_always(Reply(["a", Hold(gate), "b"]))
    async with limited(settings, postgres_url, chat_max_turns_per_process=2) as service:
        client = client_of(service)
        names = [await create(client) for _ in range(3)]
        key = {"Idempotency-Key": "once"}
        path = f"/v1/conversations/{names[0]}/messages"
        body = {"content": "hi"}
        first = asyncio.ensure_future(client.post(path, json=body, headers=key))
        running = [first, asyncio.ensure_future(send(client, names[1], "hi"))]
        await gate.reached(2)

        refused = await send(client, names[2], "hi")
        busy, unknown = await send(client, names[0], "hi"), await send(client, "nonsense", "hi")
        # Who repeats a request attaches to its turn, which runs already.
        repeated = asyncio.ensure_future(client.post(path, json=body, headers=key))
        await asyncio.sleep(0.1)
        assert not repeated.done()
        gate.open()
        await asyncio.wait(running)

        assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert busy.json()["code"] == "turn_in_progress"
        assert unknown.status_code == 404
        assert "turn_id" not in refused.json()
        assert await history(client, names[2]) == []
        assert (await repeated).json()["id"] == first.result().json()["id"]
        assert (await send(client, names[2], "hi")).status_code == 200


@pytest.mark.parametrize("limit", [1, 3, 60])
def test_in_no_window_is_more_allowed(limit: int) -> None:
    now = 0.0
    counter = RateLimit("sends", limit=limit, window=60, clock=lambda: now)
    allowed: list[float] = []
    for _ in range(3_000):
        quota = counter.take("ada")
        assert quota is not None
        if not quota.wait:
            allowed.append(now)
        now += 0.1

    assert len(allowed) == limit * 5
    for first, last in zip(allowed, allowed[limit:], strict=False):
        assert last - first > 59.999


def test_who_waits_as_told_is_let_in() -> None:
    now = 0.0
    counter = RateLimit("sends", limit=2, window=60, clock=lambda: now)
    counter.take("ada")
    now += 10
    counter.take("ada")
    now += 10
    refused = counter.take("ada")
    assert refused is not None
    assert refused.wait == 40
    now += refused.wait

    again = counter.take("ada")

    assert again is not None
    assert again.wait == 0


def test_who_has_been_quiet_is_forgotten() -> None:
    now = 0.0
    limit = RateLimit("sends", limit=10, window=60, clock=lambda: now)
    for n in range(5_000):
        limit.take(f"user {n}")
        now += 1

    assert limit.remembered <= 1_002
