"""A turn runs on one replica; everything else may come to another one, with or without notifications."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import event

from app.bootstrap import Service, running_service
from app.settings import Settings
from app.storage.database import Database
from tests.api.test_cancel import begun, cancel
from tests.api.test_conversations import create
from tests.api.test_follow import close, follow, path_of, until_followed
from tests.api.test_messages import history, send
from tests.api.test_streams import TOOL_TURN, check, events_path, script, stream, stream_path
from tests.conftest import on_a_socket
from tests.relay import relay_to
from tests.scripted_model import Gate, Hold, Pause, ScriptedModel
from tests.sse import Block, blocks, read, text_of

ONE_QUERY = "array_agg(frames"
LISTENERS = """
FROM pg_stat_activity WHERE application_name = 'chat-workflow'
    AND (query ILIKE 'LISTEN%' OR query = 'SELECT 1')
"""


@pytest.fixture(scope="module", params=["notified", "deaf"])
async def _other(
    request: pytest.FixtureRequest, settings: Settings, postgres_url: str, direct_url: str
) -> AsyncGenerator[tuple[Service, str]]:
    """A deaf one listens on a link that has died: every notification is lost on it."""
    async with relay_to(direct_url) as (relay, relayed_url):
        its_own = settings.model_copy(update={"database_direct_url": SecretStr(relayed_url)})
        async with (
            running_service(its_own, postgres_url) as service,
            on_a_socket(service, its_own) as url,
        ):
            relay.is_frozen = request.param == "deaf"
            yield service, url
            relay.is_frozen = False


@pytest.fixture
def other(_other: tuple[Service, str]) -> Service:
    """Another process on the same database, as far as there can be one within this one."""
    return _other[0]


@pytest.fixture
async def there(_other: tuple[Service, str]) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of that one."""
    service, url = _other
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=20, limits=limits) as client:
        yield client
    await service.engine.stop_all()


def follow_turn(
    client: httpx.AsyncClient, first: Block, after: str | None = None, **options: Any
) -> "asyncio.Future[list[Block]]":
    headers = {} if after is None else {"Last-Event-ID": after}
    return asyncio.ensure_future(
        read(client, "GET", events_path(first), headers=headers, **options)
    )


def raw(found: list[Block]) -> list[bytes]:
    return [block.raw for block in found]


async def test_resumed_on_the_other_after_every_event_while_it_runs_and_after(
    live: httpx.AsyncClient, there: httpx.AsyncClient, model: ScriptedModel
) -> None:
    """Each event of a turn with tools comes, then its reader goes on elsewhere."""
    gates = [Gate() for _ in range(4)]
    holds = iter([Hold(gate) for gate in gates])
    first, second = TOOL_TURN
    model.will_say(first[0], next(holds), *first[1:])
    model.will_say(next(holds), *second[:2], next(holds), *second[2:], next(holds))
    conversation = await create(live)
    following: list[tuple[int, asyncio.Future[list[Block]]]] = []
    seen: list[Block] = []
    async with live.stream("POST", stream_path(conversation), json={"content": "hi"}) as answer:
        async for block in blocks(answer):
            seen.append(block)
            if block.type != "turn.completed":
                following.append((len(seen), follow_turn(there, seen[0], block.id)))
            await asyncio.sleep(0.05)
            for gate in gates:
                gate.open()

    check(seen)
    for place, rest in following:
        assert raw(await rest) == raw(seen[place:])
    for place, block in enumerate(seen[:-1], 1):
        assert raw(await follow_turn(there, seen[0], block.id)) == raw(seen[place:])
    over = await there.get(events_path(seen[0]), headers={"Last-Event-ID": seen[-1].id or ""})
    assert over.status_code == 204


class Follower:
    """What has come so far."""

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self.seen: list[Block] = []
        self.done = asyncio.ensure_future(self._read(client, path))

    async def _read(self, client: httpx.AsyncClient, path: str) -> None:
        async with client.stream("GET", path) as answer:
            async for block in blocks(answer):
                self.seen.append(block)

    async def has(self, text: str) -> None:
        """Within a second, and what a busy machine adds."""
        async with asyncio.timeout(3):
            while not text_of(self.seen).endswith(text):
                await asyncio.sleep(0.005)


async def followed(client: httpx.AsyncClient, conversation: str) -> Follower:
    """Its latest turn, from the first event on."""
    turns = (await client.get(f"{path_of(conversation)}/turns")).json()["data"]
    return Follower(client, turns[0]["links"]["events"])


async def test_followed_elsewhere_it_is_live(
    live: httpx.AsyncClient, there: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gates = [Gate() for _ in range(4)]
    model.will_say(*(step for n, gate in enumerate(gates) for step in (Hold(gate), f"word {n} ")))
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    await gates[0].reached()
    follower = await followed(there, conversation)

    for number, gate in enumerate(gates):
        gate.open()
        await follower.has(f"word {number} ")
    await follower.done

    assert raw(follower.seen) == raw(await watching)


async def test_cancelled_from_the_other(
    live: httpx.AsyncClient, there: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation, watching = await begun(live, model, "half ")
    follower = await followed(there, conversation)
    await follower.has("half ")

    stopped = await cancel(there, conversation)
    await follower.done

    assert (stopped.json()["status"], stopped.json()["output"]) == ("cancelled", "half ")
    found = await watching
    assert raw(found) == raw(follower.seen)
    assert found[-1].data["by"] == "user"
    assert model.requests[0].aborted


async def test_deleted_from_the_other(
    live: httpx.AsyncClient, there: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation, watching = await begun(live, model, "half ")
    follower = await followed(there, conversation)
    of_all = follow(there, conversation)
    await follower.has("half ")

    assert (await there.delete(path_of(conversation))).status_code == 204
    found = await watching
    await follower.done

    for seen in (found, follower.seen):
        assert (seen[-1].type, seen[-1].id, seen[-1].data["by"]) == (
            "turn.cancelled",
            None,
            "erasure",
        )
    assert (await of_all)[-1].data["reason"] == "deleted"
    assert (await live.get(path_of(conversation))).status_code == 404


async def test_a_deletion_here_ends_what_follows_it_elsewhere(
    live: httpx.AsyncClient, there: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation, watching = await begun(live, model, "half ")
    follower = await followed(there, conversation)
    await follower.has("half ")

    assert (await live.delete(path_of(conversation))).status_code == 204
    await watching
    async with asyncio.timeout(3):
        await follower.done

    assert follower.seen[-1].data["by"] == "erasure"


async def test_a_repeated_send_attaches_from_the_other(
    live: httpx.AsyncClient, there: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("once ", Hold(gate), "only")
    conversation = await create(live)
    request: dict[str, Any] = {"json": {"content": "hi"}, "headers": {"Idempotency-Key": "k"}}
    here = asyncio.ensure_future(read(live, "POST", stream_path(conversation), **request))
    await gate.reached()
    streamed = asyncio.ensure_future(read(there, "POST", stream_path(conversation), **request))
    waiting = asyncio.ensure_future(there.post(f"{path_of(conversation)}/messages", **request))
    busy = await send(there, conversation, "another")
    gate.open()

    assert (busy.status_code, busy.json()["code"]) == (409, "turn_in_progress")
    assert raw(await streamed) == raw(await here)
    assert (await waiting).json()["output"] == "once only"
    assert len(model.requests) == 1
    assert len(await history(there, conversation)) == 2


async def test_a_conversation_followed_on_the_other_shows_every_turn_and_change(
    live: httpx.AsyncClient, there: httpx.AsyncClient, other: Service, model: ScriptedModel
) -> None:
    conversation = await create(live)
    following = follow(there, conversation)
    await until_followed(other)

    script(model, TOOL_TURN)
    first = await stream(live, conversation)
    model.will_say("second")
    second = await stream(live, conversation)
    await live.patch(path_of(conversation), json={"title": "Oslo"})
    await asyncio.sleep(0.8)
    await close(live, conversation)

    found = await following
    turns = [block.raw for block in found if block.type != "conversation.updated"]
    assert turns == raw([*first, *second])
    news = [b.data["conversation"] for b in found if b.type == "conversation.updated"]
    assert [(each["title"], each["status"]) for each in news][-2:] == [
        ("Oslo", "open"),
        ("Oslo", "closed"),
    ]


async def test_one_query_serves_all_streams_of_all_turns(
    live: httpx.AsyncClient, there: httpx.AsyncClient, other: Service, model: ScriptedModel
) -> None:
    """Fifty streams of ten turns: at most one query every 20 ms, and none per stream."""
    gate = Gate()
    for _ in range(10):
        model.will_say("a ", Hold(gate), *(step for _ in range(20) for step in ("b ", Pause(0.05))))
    conversations = [await create(live) for _ in range(10)]
    watching = [asyncio.ensure_future(stream(live, each)) for each in conversations]
    await gate.reached(10)
    followers = [await followed(there, each) for each in conversations for _ in range(5)]
    await asyncio.gather(*(follower.has("a ") for follower in followers))
    await asyncio.sleep(0.6)
    with counted(other.database) as queries:
        began = time.monotonic()
        gate.open()
        await asyncio.gather(*(follower.done for follower in followers))
        took = time.monotonic() - began

    wanted = [raw(await each) for each in watching for _ in range(5)]
    assert [raw(follower.seen) for follower in followers] == wanted
    assert len([query for query in queries if ONE_QUERY in query]) <= took / 0.02 + 1
    assert not [query for query in queries if "WHERE before < $4 ORDER BY" in query]


@contextmanager
def counted(database: Database) -> Generator[list[str]]:
    """The statements of the driver, as they end."""
    queries: list[str] = []

    def note(record: Any) -> None:
        queries.append(record.query)

    def checked_out(connection: Any, *_: object) -> None:
        connection.driver_connection.add_query_logger(note)

    def checked_in(connection: Any, *_: object) -> None:
        connection.driver_connection.remove_query_logger(note)

    engine = database.engine.sync_engine
    event.listen(engine, "checkout", checked_out)
    event.listen(engine, "checkin", checked_in)
    yield queries
    event.remove(engine, "checkout", checked_out)
    event.remove(engine, "checkin", checked_in)


async def test_a_listener_that_is_lost_comes_back(
    live: httpx.AsyncClient, there: httpx.AsyncClient, other: Service, model: ScriptedModel
) -> None:
    """The server ends it in the middle of a followed turn; nothing is lost, and it listens again."""
    gate = Gate()
    conversation, watching = await _followed(live, model, gate)
    follower = await followed(there, conversation)
    await follower.has("a ")
    async with other.database.statement() as driver:
        ended = await driver.fetch(f"SELECT pg_terminate_backend(pid) {LISTENERS}")

    gate.open()
    await follower.done

    assert ended
    assert raw(follower.seen) == raw(await watching)
    async with asyncio.timeout(5):
        while True:
            async with other.database.statement() as driver:
                if len(await driver.fetch(f"SELECT pid {LISTENERS}")) == len(ended):
                    break
            await asyncio.sleep(0.05)


async def _followed(
    client: httpx.AsyncClient, model: ScriptedModel, gate: Gate
) -> "tuple[str, asyncio.Future[list[Block]]]":
    model.will_say("a ", Hold(gate), "b")
    conversation = await create(client)
    watching = asyncio.ensure_future(stream(client, conversation))
    await gate.reached()
    return conversation, watching
