"""What comes by notification: nobody looks by itself here, so that each one that is missing shows."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest

from app.bootstrap import Service, running_service
from app.engine import recovery, watch
from app.settings import Settings
from app.streaming import conversation_watch, foreign_turns
from tests.api.test_cancel import begun
from tests.api.test_conversations import create
from tests.api.test_follow import close, follow, path_of, until_followed
from tests.api.test_messages import send
from tests.api.test_replicas import followed, raw
from tests.api.test_streams import stream
from tests.conftest import delete_all, on_a_socket
from tests.scripted_model import CallTool, Gate, Hold, ScriptedModel
from tests.sse import text_of

LOOKERS = (recovery, watch, conversation_watch, foreign_turns)
# Seconds: longer than any test may take.
NEVER = 600.0


@pytest.fixture
async def replicas(
    settings: Settings, postgres_url: str, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[list[tuple[Service, httpx.AsyncClient]]]:
    """Two, after they have looked for the first time."""
    for module in LOOKERS:
        monkeypatch.setattr(module, "INTERVAL", NEVER)
    async with (
        running_service(settings, postgres_url) as first,
        running_service(settings, postgres_url) as second,
        on_a_socket(first, settings) as url,
        on_a_socket(second, settings) as other_url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
        httpx.AsyncClient(base_url=other_url, timeout=20) as other,
    ):
        await asyncio.sleep(0.5)
        yield [(first, client), (second, other)]
        for service in (first, second):
            await service.engine.stop_all()
        await delete_all(first.database)


@pytest.mark.timeout(20)
async def test_each_flush_and_the_end(
    replicas: list[tuple[Service, httpx.AsyncClient]], model: ScriptedModel
) -> None:
    (_, here), (_, there) = replicas
    gates = [Gate() for _ in range(3)]
    model.will_say(*(step for n, gate in enumerate(gates) for step in (Hold(gate), f"word {n} ")))
    conversation = await create(here)
    watching = asyncio.ensure_future(stream(here, conversation))
    await gates[0].reached()
    follower = await followed(there, conversation)
    for number, gate in enumerate(gates):
        gate.open()
        await follower.has(f"word {number} ")
    await follower.done

    assert raw(follower.seen) == raw(await watching)


@pytest.mark.timeout(20)
async def test_a_cancel_reaches_the_owner(
    replicas: list[tuple[Service, httpx.AsyncClient]], model: ScriptedModel
) -> None:
    (owner, here), (_, there) = replicas
    conversation, watching = await begun(here, model, "half ")

    answer = await there.post(f"{path_of(conversation)}/cancel")

    assert answer.json()["status"] == "cancelled"
    assert (await watching)[-1].data["by"] == "user"
    assert owner.engine.held == frozenset()


@pytest.mark.timeout(20)
async def test_an_end_by_force_reaches_the_owner_s_own_readers(
    replicas: list[tuple[Service, httpx.AsyncClient]], model: ScriptedModel
) -> None:
    (owner, here), (_, there) = replicas
    model.will_say(CallTool("c", "slow_to_stop"))
    conversation = await create(here)
    watching = asyncio.ensure_future(stream(here, conversation))
    while not model.requests:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)

    answer = await there.post(f"{path_of(conversation)}/cancel")
    found = await watching

    assert answer.json()["status"] == "cancelled"
    assert found[-1].type == "turn.cancelled"
    assert owner.engine.held, "the tool has stopped already: this shows nothing"


@pytest.mark.timeout(20)
async def test_an_erasure_reaches_owner_and_followers(
    replicas: list[tuple[Service, httpx.AsyncClient]], model: ScriptedModel
) -> None:
    (owner, here), (_, there) = replicas
    conversation, watching = await begun(here, model, "half ")
    follower = await followed(there, conversation)
    await follower.has("half ")

    assert (await there.delete(path_of(conversation))).status_code == 204
    await follower.done

    assert (await watching)[-1].data["by"] == follower.seen[-1].data["by"] == "erasure"
    async with asyncio.timeout(5):
        while owner.engine.held:
            await asyncio.sleep(0.02)


@pytest.mark.timeout(20)
async def test_a_followed_conversation_s_turns_and_changes(
    replicas: list[tuple[Service, httpx.AsyncClient]], model: ScriptedModel
) -> None:
    (_, here), (second, there) = replicas
    conversation = await create(here, title="Oslo")
    following = follow(there, conversation)
    await until_followed(second)
    model.will_say("one")
    first = await stream(here, conversation)
    await asyncio.sleep(0.3)
    await here.patch(path_of(conversation), json={"title": "Bergen"})
    await asyncio.sleep(0.3)
    await close(here, conversation)

    found = await following
    assert raw(found[: len(first)]) == raw(first)
    news = [block.data["conversation"] for block in found[len(first) :]]
    assert [(each["title"], each["status"]) for each in news] == [
        ("Bergen", "open"),
        ("Bergen", "closed"),
    ]


@pytest.mark.timeout(20)
async def test_a_hand_over(
    replicas: list[tuple[Service, httpx.AsyncClient]], model: ScriptedModel
) -> None:
    (owner, here), (_, there) = replicas
    conversation, watching = await begun(here, model, "half ")
    model.will_say("and whole")
    follower = await followed(there, conversation)
    await follower.has("half ")

    await owner.drain(0)

    async with asyncio.timeout(10):
        await follower.done
    assert text_of(follower.seen) == "half and whole"
    assert (await watching)[-1].type == "stream.closing"


@pytest.mark.timeout(20)
async def test_more_than_one_page_comes_without_being_told_twice(
    replicas: list[tuple[Service, httpx.AsyncClient]],
    model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (_, here), (_, there) = replicas
    monkeypatch.setattr(foreign_turns, "PAGE", 500)
    gate = Gate()
    model.will_say("a ", Hold(gate), *["x" * 2_000] * 20)
    conversation = await create(here)
    watching = asyncio.ensure_future(stream(here, conversation))
    await gate.reached()
    follower = await followed(there, conversation)
    await follower.has("a ")
    gate.open()
    await follower.done

    assert raw(follower.seen) == raw(await watching)
    turn = await send(here, conversation, "go on")
    assert turn.status_code == 200
