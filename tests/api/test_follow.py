"""Following a conversation: turn after turn, from any place, to its end."""

import asyncio
from typing import Any

import httpx
import pytest

from app.bootstrap import Service
from app.ids import new_conversation_id
from tests.api.test_conversations import create
from tests.api.test_messages import send
from tests.api.test_streams import TOOL_TURN, script, stream
from tests.scripted_model import Gate, Hold, ScriptedModel
from tests.sse import Block, read


def path_of(conversation: str) -> str:
    return f"/v1/conversations/{conversation}"


def follow(
    client: httpx.AsyncClient, conversation: str, after: str | None = None, **options: Any
) -> "asyncio.Future[list[Block]]":
    headers = {} if after is None else {"Last-Event-ID": after}
    path = f"{path_of(conversation)}/events"
    return asyncio.ensure_future(read(client, "GET", path, headers=headers, **options))


async def until_followed(service: Service, streams: int = 1) -> None:
    async with asyncio.timeout(5):
        while service.conversation_watch.streams < streams:
            await asyncio.sleep(0.01)


async def close(client: httpx.AsyncClient, conversation: str) -> None:
    assert (await client.post(f"{path_of(conversation)}/close")).status_code == 200


async def test_a_follower_sees_every_turn_byte_for_byte_and_the_closing(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    conversation = await create(live, title="Oslo")
    following = follow(live, conversation)
    await until_followed(service)

    script(model, TOOL_TURN)
    first = await stream(live, conversation)
    model.will_say("second")
    second = await stream(live, conversation)
    await close(live, conversation)
    found = await following

    assert [block.raw for block in found[:-1]] == [block.raw for block in [*first, *second]]
    last = found[-1]
    assert (last.type, last.id) == ("conversation.updated", None)
    assert last.data["conversation"] == {
        "id": conversation,
        "title": "Oslo",
        "metadata": {},
        "status": "closed",
    }
    assert [last.data[name] for name in ("seq", "turn_id", "turn_number")] == [None] * 3


async def test_it_begins_with_the_running_turn_s_first_event(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("over")
    model.will_say("a ", Hold(gate), "b")
    conversation = await create(live)
    await send(live, conversation, "one")
    streaming = asyncio.ensure_future(stream(live, conversation, "two"))
    await gate.reached()

    following = follow(live, conversation, stop_after=4)
    await asyncio.sleep(0.2)
    gate.open()

    assert [block.raw for block in (await streaming)[:4]] == [
        block.raw for block in await following
    ]


async def test_any_cursor_goes_on_exactly_there_over_all_turns(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(live, title="Oslo")
    script(model, TOOL_TURN)
    model.will_say("second")
    whole = [*await stream(live, conversation), *await stream(live, conversation)]
    followers = [follow(live, conversation, block.id) for block in whole]
    await asyncio.sleep(0.5)
    await close(live, conversation)

    for place, following in enumerate(followers, 1):
        found = await following
        assert [block.raw for block in found[:-1]] == [block.raw for block in whole[place:]]
        assert found[-1].data["conversation"]["status"] == "closed"


async def test_what_changes_beside_the_turns_is_told_at_once(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a ", Hold(gate), "b")
    conversation = await create(live)
    following = follow(live, conversation)
    await until_followed(service)
    await live.patch(path_of(conversation), json={"metadata": {"n": 1}})
    await asyncio.sleep(0.2)
    sending = asyncio.ensure_future(send(live, conversation, "The first message"))
    await gate.reached()
    await asyncio.sleep(0.2)
    await live.patch(path_of(conversation), json={"metadata": {"n": True}})
    await asyncio.sleep(0.2)
    gate.open()
    await sending
    await close(live, conversation)

    found = await following

    news = [(block.type, block.data.get("conversation")) for block in found]
    told = [described for kind, described in news if kind == "conversation.updated"]
    assert [(each["title"], each["metadata"], each["status"]) for each in told if each] == [
        (None, {"n": 1}, "open"),
        ("The first message", {"n": 1}, "open"),
        ("The first message", {"n": True}, "open"),
        ("The first message", {"n": True}, "closed"),
    ]
    assert [kind for kind, _ in news] == [
        *("conversation.updated", "conversation.updated", "turn.started", "text.delta"),
        *("conversation.updated", "text.delta", "message.completed", "turn.completed"),
        "conversation.updated",
    ]


async def test_a_closed_conversation_has_nothing_to_follow(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(live)
    model.will_say("over")
    whole = await stream(live, conversation)
    await close(live, conversation)
    path = f"{path_of(conversation)}/events"

    assert (await live.get(path)).status_code == 204
    at_its_end = await live.get(path, headers={"Last-Event-ID": whole[-1].id or ""})
    assert at_its_end.status_code == 204
    rest = await follow(live, conversation, whole[0].id)
    assert [block.raw for block in rest[:-1]] == [block.raw for block in whole[1:]]


@pytest.mark.parametrize("runs", [False, True])
async def test_erasure_ends_a_follow_stream_and_then_there_is_nothing(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, runs: bool
) -> None:
    gate = Gate()
    model.will_say("a ", Hold(gate))
    conversation = await create(live)
    following = follow(live, conversation)
    await until_followed(service)
    sending: list[asyncio.Future[httpx.Response]] = []
    if runs:
        sending.append(asyncio.ensure_future(send(live, conversation, "hi")))
        await gate.reached()

    assert (await live.delete(path_of(conversation))).status_code == 204
    found = await following

    assert found[-1].type == "stream.closing"
    assert found[-1].data["reason"] == "deleted"
    assert found[-1].id is None
    assert [block.type for block in found].count("stream.closing") == 1
    assert not any(block.type == "turn.cancelled" for block in found)
    assert (await live.get(f"{path_of(conversation)}/events")).status_code == 404
    assert [(await answer).status_code for answer in sending] == [404] * runs


@pytest.mark.parametrize("cursor", ["1-99", "2-1", "9-1", "0-1", "1-0", "x", "1-1-1", "-1"])
async def test_a_cursor_that_we_have_not_given_is_refused(
    live: httpx.AsyncClient, model: ScriptedModel, cursor: str
) -> None:
    conversation = await create(live)
    model.will_say("over")
    await send(live, conversation, "hi")

    path = f"{path_of(conversation)}/events"
    by_header = await live.get(path, headers={"Last-Event-ID": cursor})
    by_query = await live.get(path, params={"after": cursor})
    for answer in (by_header, by_query):
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_last_event_id")


async def test_a_follower_that_leaves_is_forgotten(
    live: httpx.AsyncClient, service: Service
) -> None:
    conversation = await create(live)
    followers = [follow(live, conversation) for _ in range(5)]
    await until_followed(service, 5)

    for following in followers:
        following.cancel()
    await asyncio.wait(followers)

    async with asyncio.timeout(5):
        while service.conversation_watch.streams:
            await asyncio.sleep(0.01)


async def test_one_who_joins_does_not_take_the_news_from_others(
    live: httpx.AsyncClient, service: Service
) -> None:
    """A change of another process: who joins sees it at once, and the others have to as well."""
    conversation = await create(live)
    first = follow(live, conversation)
    await until_followed(service)
    await asyncio.sleep(0.6)
    async with service.database.statement() as driver:
        await driver.execute(
            "UPDATE runs SET status = 'closed', closed_at = now(), version = version + 1 "
            "WHERE id = $1",
            conversation,
        )
    model_run = await live.get(f"{path_of(conversation)}/events")

    (told,) = await first

    assert model_run.status_code == 204
    assert told.data["conversation"]["status"] == "closed"


async def test_a_newcomer_rings_for_those_who_are_there(service: Service) -> None:
    watch, run_id = service.conversation_watch, new_conversation_id()
    with watch.following(run_id, 1) as first, watch.following(run_id, 1):
        watch.saw(run_id, 1)
        assert not first.is_set()
        watch.saw(run_id, 2)
        assert first.is_set()


async def test_that_it_is_closed_comes_last_also_for_one_who_is_behind(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a ", Hold(gate), "b")
    conversation = await create(live, title="Oslo")
    following = follow(live, conversation)
    await until_followed(service)
    sending = asyncio.ensure_future(send(live, conversation, "hi"))
    await gate.reached()
    await asyncio.sleep(0.2)
    # As another process does it that has seen the turn's end already.
    async with service.database.statement() as driver:
        await driver.execute(
            "UPDATE runs SET status = 'closed', closed_at = now(), version = version + 1 "
            "WHERE id = $1",
            conversation,
        )
    await asyncio.sleep(0.8)
    gate.open()
    await sending

    assert [block.type for block in await following] == [
        *("turn.started", "text.delta", "text.delta", "message.completed", "turn.completed"),
        "conversation.updated",
    ]


async def test_a_turn_that_begins_elsewhere_is_found_without_being_told(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    """The poll alone, as for a change that another process has made."""
    conversation = await create(live)
    following = follow(live, conversation, stop_after=1)
    await until_followed(service)
    async with service.database.statement() as driver:
        await driver.execute(
            "UPDATE runs SET title = 'elsewhere', version = version + 1 WHERE id = $1",
            conversation,
        )

    (told,) = await following

    assert told.data["conversation"]["title"] == "elsewhere"
