"""A stop button that stops, wherever the turn is, and a conversation that goes on at once."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from app.bootstrap import Service
from app.ids import new_worker_id
from tests.api.test_conversations import create
from tests.api.test_erasure import MARKER, tables_with
from tests.api.test_messages import history, send
from tests.api.test_streams import check, events_path, stream
from tests.scripted_model import CallTool, Gate, Hold, Reply, ScriptedModel, Step
from tests.sse import Block, read, text_of


async def begun(
    client: httpx.AsyncClient, model: ScriptedModel, *steps: Step
) -> tuple[str, asyncio.Future[list[Block]]]:
    """A conversation whose streamed turn has come as far as these steps, and no further."""
    gate = Gate()
    model.will_say(*steps, Hold(gate))
    conversation = await create(client)
    watching = asyncio.ensure_future(stream(client, conversation))
    await gate.reached()
    return conversation, watching


async def cancel(client: httpx.AsyncClient, conversation: str) -> httpx.Response:
    started = time.monotonic()
    answer = await client.post(f"/v1/conversations/{conversation}/cancel")
    assert time.monotonic() - started < 2
    return answer


@pytest.mark.parametrize("steps", [[], ["half ", "an answer"]], ids=["silent", "speaking"])
async def test_a_cancelled_turn_keeps_its_partial_text(
    live: httpx.AsyncClient, model: ScriptedModel, steps: list[Step]
) -> None:
    conversation, watching = await begun(live, model, *steps)

    stopped = await cancel(live, conversation)
    works = await send(live, conversation, "go on")
    found = await watching

    said = "".join(str(step) for step in steps)
    turn = stopped.json()
    assert stopped.status_code == 200
    assert (turn["status"], turn["output"]) == ("cancelled", said or None)
    assert works.status_code == 200
    assert model.requests[0].aborted
    assert model.requests[1].refusal is None
    check(found)
    assert (found[-1].type, found[-1].data["by"]) == ("turn.cancelled", "user")
    assert text_of(found) == said
    kept = [(m["content"], m["status"]) for m in await history(live, conversation)]
    assert kept[:-2] == [("hi", "complete"), *([(said, "partial")] if said else [])]
    told = [message["content"] for message in model.requests[1].messages[1:]]
    assert told == (["hi", said, "go on"] if said else ["go on"])


async def test_a_cancel_inside_a_tool_ends_its_call_too(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say("Looking. ", CallTool("c1", "sleep"), CallTool("c2", "echo", '{"text": "x"}'))
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    while not model.requests:
        await asyncio.sleep(0.01)
    # Started, said, message, both calls, and the result of the quick one.
    await read(live, "GET", await _events(live, conversation), stop_after=6)

    stopped = await cancel(live, conversation)
    found = await watching
    await send(live, conversation, "go on")

    assert stopped.json()["status"] == "cancelled"
    check(found)
    results = {b.data["tool_call_id"]: b.data for b in found if b.type == "tool_call.completed"}
    assert (results["c1"]["outcome"], results["c2"]["outcome"]) == ("cancelled", "success")
    kept = [m for m in stopped.json()["messages"] if m["role"] == "tool_result"]
    outcomes = {m["metadata"]["tool_call_id"]: m["metadata"]["outcome"] for m in kept}
    assert outcomes == {"c1": "cancelled", "c2": "success"}
    assert model.requests[-1].refusal is None
    assert model.requests[-1].roles == ["system", "user", "assistant", "tool", "tool", "user"]


async def test_a_turn_can_be_cancelled_by_its_id_and_again(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    _, watching = await begun(live, model, "half")
    path = (await live.get("/v1/conversations")).json()["data"][0]
    turn = f"/v1/conversations/{path['id']}/turns/{path['active_turn']['id']}"

    answers = await asyncio.gather(*(live.post(f"{turn}/cancel") for _ in range(5)))
    late = await live.post(f"{turn}/cancel")

    check(await watching)
    assert {answer.status_code for answer in [*answers, late]} == {200}
    assert len({answer.text for answer in [*answers, late]}) == 1
    assert late.json()["status"] == "cancelled"


async def test_a_finished_turn_is_returned_as_it_is(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(live)
    turn = (await send(live, conversation, "hi")).json()

    assert (await live.post(turn["links"]["cancel"])).json() == turn
    assert (await cancel(live, conversation)).status_code == 204


async def test_there_is_nothing_to_cancel_in_a_conversation_of_nobody(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation, other = await create(live), await create(live)
    turn = (await send(live, conversation, "hi")).json()

    assert (await cancel(live, "nonsense")).status_code == 404
    foreign = await live.post(f"/v1/conversations/{other}/turns/{turn['id']}/cancel")
    assert foreign.status_code == 404


async def test_a_blocking_send_whose_turn_is_cancelled_is_told(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("half", Hold(gate))
    conversation = await create(live)
    sending = asyncio.ensure_future(send(live, conversation, "hi"))
    await gate.reached()

    turn = (await cancel(live, conversation)).json()
    answer = await sending

    assert (answer.status_code, answer.json()["code"]) == (409, "turn_cancelled")
    assert answer.json()["turn_id"] == turn["id"]
    assert answer.headers["x-should-retry"] == "false"


async def test_a_turn_of_a_dead_owner_is_ended_by_force_with_what_was_shown(
    live: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    """The owner is made to vanish: the row names a worker that never was."""
    conversation, watching = await begun(live, model, "Looking. ", "Half an ans")
    found_so_far = await read(live, "GET", await _events(live, conversation), stop_after=2)
    async with service.database.statement() as driver:
        await driver.execute("UPDATE runs SET worker_id = $1, fence = fence + 1", new_worker_id())

    turn: dict[str, Any] = {}
    async with asyncio.timeout(10):
        while turn.get("status") != "cancelled":
            answer = await cancel(live, conversation)
            if answer.status_code == 204:
                path = events_path(found_so_far[0]).removesuffix("/events")
                turn = (await live.get(path)).json()
                break
            turn = answer.json()

    assert turn["status"] in ("cancelled", "failed")
    assert turn["output"] == "Looking. Half an ans"
    found = await watching
    check(found)
    assert found[-2].data["message"]["status"] == "partial"
    assert (await send(live, conversation, "go on")).status_code == 200
    assert model.requests[-1].refusal is None


async def _events(client: httpx.AsyncClient, conversation: str) -> str:
    turns = (await client.get(f"/v1/conversations/{conversation}/turns")).json()["data"]
    return turns[0]["links"]["events"]


async def test_erasure_ends_every_stream_of_a_running_turn(
    live: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    conversation, watching = await begun(live, model, f"{MARKER} ")
    other = asyncio.ensure_future(read(live, "GET", await _events(live, conversation)))
    await asyncio.sleep(0.1)

    answer = await live.delete(f"/v1/conversations/{conversation}")
    ends = [(await watching)[-1], (await other)[-1]]

    assert answer.status_code == 204
    for end in ends:
        assert (end.type, end.id) == ("turn.cancelled", None)
        assert end.data["by"] == "erasure"
        assert "turn" not in end.data
    assert model.requests[0].aborted
    await asyncio.sleep(3)
    assert await tables_with(service.database, MARKER) == []
    assert (await live.delete(f"/v1/conversations/{conversation}")).status_code == 204


async def test_a_cancelled_turn_never_becomes_anything_else(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    """Cancel and the model's end race; whatever wins is the one end, and the next send works."""
    for delay in (0, 0.005, 0.01, 0.02, 0.03, 0.05):
        model.will(Reply(["quick"]))
        conversation = await create(live)
        watching = asyncio.ensure_future(stream(live, conversation))
        await asyncio.sleep(delay)
        await cancel(live, conversation)
        found = await watching
        check(found)
        turn = (await live.get(events_path(found[0]).removesuffix("/events"))).json()
        assert f"turn.{turn['status']}" == found[-1].type
        assert (await send(live, conversation, "next")).status_code == 200
        model.forget()


@pytest.mark.timeout(90)
async def test_what_is_told_and_what_is_kept_are_one_whenever_a_cancel_comes(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    """Around the first token, where the framework may have taken in more than it has handed on."""
    for step in range(40):
        model.will(Reply([f"t{n} " for n in range(30)]))
        conversation = await create(live)
        watching = asyncio.ensure_future(stream(live, conversation))
        await asyncio.sleep(step * 0.002)
        await cancel(live, conversation)
        found = await watching
        check(found)
        said = text_of(found)
        turn = (await live.get(events_path(found[0]).removesuffix("/events"))).json()
        assert (turn["output"] or "") == said
        completed = [b.data["message"] for b in found if b.type == "message.completed"]
        assert [m["content"] for m in completed] == ([said] if said else [])
        assert completed == [m for m in turn["messages"] if m["role"] == "assistant"]
        model.forget()


async def test_a_tool_that_is_slow_to_stop_holds_up_nobody(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say(CallTool("c1", "slow_to_stop"))
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    while not model.requests:
        await asyncio.sleep(0.01)
    await read(live, "GET", await _events(live, conversation), stop_after=2)

    stopped = await cancel(live, conversation)
    began = time.monotonic()
    found = await watching

    assert time.monotonic() - began < 1
    assert stopped.json()["status"] == "cancelled"
    check(found)
    assert (await send(live, conversation, "go on")).status_code == 200


@pytest.mark.timeout(90)
async def test_erasure_reaches_readers_of_a_turn_that_has_ended(
    live: httpx.AsyncClient, model: ScriptedModel, through_proxies: bool
) -> None:
    """A reader that is far behind when the conversation goes ends too, and gets no more of it."""
    # More than all sockets on the way can hold.
    model.will_say(*["x" * 200_000] * (120 if through_proxies else 60))
    conversation = await create(live)
    async with live.stream(
        "POST", f"/v1/conversations/{conversation}/messages/stream", json={"content": "hi"}
    ) as response:
        chunks = response.aiter_raw()
        await anext(chunks)
        async with asyncio.timeout(60):
            while (await live.get(f"/v1/conversations/{conversation}")).json()["active_turn"]:
                await asyncio.sleep(0.05)
        assert (await live.delete(f"/v1/conversations/{conversation}")).status_code == 204
        rest = b"".join([chunk async for chunk in chunks])

    assert b"event: turn.cancelled" in rest[-1000:]
    assert b'"by":"erasure"' in rest[-1000:]


async def test_a_cancel_during_a_takeover_ends_the_turn_of_the_new_owner(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    """It waits for the takeover, and still saw the fence of before."""
    model.will_say(CallTool("c", "slow_to_stop"))
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    async with asyncio.timeout(10):
        while not model.requests or not service.engine.held:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
    async with service.database.statement() as driver, driver.transaction():
        await driver.execute("UPDATE runs SET fence = fence + 1 WHERE id = $1", conversation)
        await driver.execute(
            "UPDATE turns SET attempt = attempt + 1 WHERE run_id = $1", conversation
        )
        cancelling = asyncio.ensure_future(live.post(f"/v1/conversations/{conversation}/cancel"))
        await asyncio.sleep(0.3)

    answer = await cancelling

    assert answer.json()["status"] == "cancelled"
    assert (await watching)[-1].type == "turn.cancelled"
