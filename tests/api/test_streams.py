"""Streams over a real connection: what they hold, and that every cut can be mended exactly."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from app.bootstrap import Service
from app.events.projection import project
from tests.api.test_conversations import create
from tests.api.test_messages import history, send
from tests.scripted_model import (
    CallTool,
    CutConnection,
    Gate,
    Hold,
    Reply,
    ScriptedModel,
    Step,
    Think,
)
from tests.sse import Block, read, text_of

TERMINAL = {"turn.completed", "turn.incomplete", "turn.cancelled", "turn.failed"}
TOOL_TURN: list[list[Step]] = [
    [
        *("Let me ", "look. "),
        CallTool("c1", "echo", '{"text": "x"}'),
        CallTool("c2", "fail"),
    ],
    [Think("Both are back."), "Here ", "it is."],
]


def stream_path(conversation: str) -> str:
    return f"/v1/conversations/{conversation}/messages/stream"


async def stream(
    client: httpx.AsyncClient, conversation: str, content: str = "hi", **options: Any
) -> list[Block]:
    return await read(
        client, "POST", stream_path(conversation), json={"content": content}, **options
    )


def events_path(block: Block) -> str:
    names = block.data
    return f"/v1/conversations/{names['conversation_id']}/turns/{names['turn_id']}/events"


def script(model: ScriptedModel, turn: list[list[Step]]) -> None:
    for steps in turn:
        model.will_say(*steps)


def check(found: list[Block]) -> None:
    """What holds for every whole stream of a turn."""
    numbers = [block.id for block in found]
    assert numbers == [f"{found[0].data['turn_number']}-{n}" for n in range(1, len(found) + 1)]
    assert [block.type in TERMINAL for block in found] == [False] * (len(found) - 1) + [True]
    for seq, block in enumerate(found, 1):
        assert block.data["type"] == block.type
        assert block.data["seq"] == seq
        assert ("retry" in block.fields) == (seq == 1)
    opened = [b.data["tool_call_id"] for b in found if b.type == "tool_call.started"]
    closed = [b.data["tool_call_id"] for b in found if b.type == "tool_call.completed"]
    assert sorted(opened) == sorted(closed)


async def test_a_stream_tells_the_whole_turn(
    live: httpx.AsyncClient, model: ScriptedModel, through_proxies: bool
) -> None:
    script(model, TOOL_TURN)
    conversation = await create(live)
    async with live.stream("POST", stream_path(conversation), json={"content": "hi"}) as response:
        await response.aread()

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    # Between the service and nginx, which keeps it.
    assert response.headers.get("x-accel-buffering") == (None if through_proxies else "no")
    assert "content-encoding" not in response.headers
    found = await read(live, "GET", await _events_of(live, conversation))
    check(found)
    assert b"".join(block.raw for block in found) == response.content
    assert [block.type for block in found if block.type != "text.delta"] == [
        *("turn.started", "message.completed", "tool_call.started", "tool_call.started"),
        *("tool_call.completed", "tool_call.completed", "message.completed", "turn.completed"),
    ]
    assert response.headers["x-turn-id"] == found[0].data["turn_id"]


async def _events_of(client: httpx.AsyncClient, conversation: str) -> str:
    turns = (await client.get(f"/v1/conversations/{conversation}/turns")).json()["data"]
    return turns[0]["links"]["events"]


async def test_what_a_stream_shows_is_what_is_kept(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    script(model, TOOL_TURN)
    conversation = await create(live)

    found = await stream(live, conversation)

    kept = await history(live, conversation)
    completed = [block.data["message"] for block in found if block.type == "message.completed"]
    assert completed == [m for m in kept if m["role"] == "assistant"]
    for message in completed:
        deltas = [b.data for b in found if b.type == "text.delta"]
        own = [delta["delta"] for delta in deltas if delta["message_id"] == message["id"]]
        assert "".join(own) == message["content"]
    assert found[0].data["user_message"] == kept[0]
    turn = (await live.get(events_path(found[0]).removesuffix("/events"))).json()
    del turn["messages"]
    assert found[-1].data["turn"] == turn


async def test_reasoning_is_told_only_where_it_is_shown(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    for reasoning, expected in (("shown", ["Both are back."]), ("hidden", [])):
        script(model, TOOL_TURN)
        conversation = await create(live, config={"reasoning": reasoning})
        found = await stream(live, conversation)
        told = [block.data["delta"] for block in found if block.type == "reasoning.delta"]
        assert told == expected


@pytest.mark.timeout(90)
async def test_cut_after_every_event_of_a_live_turn_it_goes_on_byte_for_byte(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    """At each cut the model is held, so that the rest is still to come."""
    cut = 0
    while True:
        cut += 1
        gate = Gate()
        first, second = TOOL_TURN
        model.will_say(*first)
        model.will_say(*second[:2], Hold(gate), *second[2:])
        conversation = await create(live, config={"reasoning": "shown"})
        watching = asyncio.ensure_future(stream(live, conversation))
        await gate.reached()
        path = await _events_of(live, conversation)
        before = await read(live, "GET", path, stop_after=cut) if cut <= 9 else []
        if len(before) < cut:
            gate.open()
            await watching
            break
        resuming = asyncio.ensure_future(
            read(live, "GET", path, headers={"Last-Event-ID": before[-1].id or ""})
        )
        await asyncio.sleep(0.02)
        gate.open()

        whole = await watching
        check(whole)
        assert before + await resuming == whole
    assert cut > 8


@pytest.mark.timeout(90)
async def test_cut_after_every_event_of_a_finished_turn_it_goes_on_byte_for_byte(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    script(model, TOOL_TURN)
    conversation = await create(live, config={"reasoning": "shown"})
    whole = await stream(live, conversation)
    path = events_path(whole[0])

    assert await read(live, "GET", path) == whole
    for place, block in enumerate(whole[:-1], 1):
        assert await read(live, "GET", path, params={"after": block.id}) == whole[place:]
        assert (
            await read(live, "GET", path, headers={"Last-Event-ID": block.id or ""})
            == whole[place:]
        )


async def test_at_the_end_there_is_nothing_and_beyond_it_an_error(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(live)
    whole = await stream(live, conversation)
    path, last = events_path(whole[0]), whole[-1].id or ""

    assert (await live.get(path, headers={"Last-Event-ID": last})).status_code == 204
    # The header wins: a browser that reconnects keeps the URL.
    mended = await live.get(path, params={"after": "1-1"}, headers={"Last-Event-ID": last})
    assert mended.status_code == 204
    for bad in (f"1-{len(whole) + 1}", "2-1", "1-0", "1", "x", "1-1-1", "01-1", "1-1 "):
        answer = await live.get(path, params={"after": bad})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_last_event_id"), bad


async def test_an_event_that_is_not_committed_yet_cannot_be_resumed_at(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a", Hold(gate), "b")
    conversation = await create(live)
    first = await stream(live, conversation, stop_after=2)
    await gate.reached()

    answer = await live.get(events_path(first[0]), params={"after": "1-3"})

    assert answer.json()["code"] == "bad_last_event_id"
    gate.open()


async def test_any_number_of_clients_follow_one_live_turn(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a", Hold(gate), *[f"{n} " for n in range(200)])
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    await gate.reached()
    path = await _events_of(live, conversation)
    others = [asyncio.ensure_future(read(live, "GET", path)) for _ in range(10)]
    await asyncio.sleep(0.1)

    gate.open()

    whole = await watching
    assert all(other == whole for other in await asyncio.gather(*others))
    assert len(model.requests) == 1


async def test_a_client_that_leaves_stops_nothing(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("all ", Hold(gate), "of it")
    conversation = await create(live)
    before = await stream(live, conversation, stop_after=2)
    await gate.reached()
    gate.open()

    rest = await read(
        live, "GET", events_path(before[0]), headers={"Last-Event-ID": before[-1].id or ""}
    )

    assert text_of(before + rest) == "all of it"
    assert [m["content"] for m in await history(live, conversation)] == ["hi", "all of it"]


async def test_a_refused_stream_is_an_error_before_the_first_byte(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say(Hold(gate), "done")
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    await gate.reached()

    refused = await live.post(stream_path(conversation), json={"content": "x"})

    gate.open()
    assert (refused.status_code, refused.json()["code"]) == (409, "turn_in_progress")
    assert refused.json()["links"]["events"] == events_path((await watching)[0])


async def test_who_has_seen_the_terminal_event_can_send_at_once(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(live)
    for _ in range(20):
        await stream(live, conversation)
    assert len(await history(live, conversation, limit=200)) == 40


@pytest.mark.parametrize(
    ("last", "code"), [(CutConnection(), "model_error"), (None, "model_rate_limited")]
)
async def test_a_failure_is_told_as_the_problem_that_an_answer_would_have_had(
    live: httpx.AsyncClient, model: ScriptedModel, last: Step | None, code: str
) -> None:
    model.will(Reply(["half ", last]) if last else Reply(status=429))
    conversation = await create(live)

    found = await stream(live, conversation)

    check(found)
    assert found[-1].type == "turn.failed"
    assert found[-1].data["error"]["code"] == code
    turn = (await live.get(events_path(found[0]).removesuffix("/events"))).json()
    assert found[-1].data["error"] == turn["error"] == found[-1].data["turn"]["error"]
    if last:
        assert found[-2].data["message"]["status"] == "partial"


async def test_an_incomplete_turn_says_why(live: httpx.AsyncClient, model: ScriptedModel) -> None:
    model.will(Reply(["so far"], finish="length"))

    found = await stream(live, await create(live))

    assert found[-1].type == "turn.incomplete"
    assert found[-1].data["reason"] == "output_limit"


async def test_every_character_comes_through_for_clients_that_split_lines_otherwise(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj\nk\r\nl\x7fm\x9f: n\N{GRINNING FACE}"
    model.will_say(odd, " ", ": x")

    found = await stream(live, await create(live))

    assert text_of(found) == odd + " : x"
    for block in found:
        for line in block.raw.decode().splitlines():
            assert line == "" or line.split(":", 1)[0] in ("id", "event", "data", "retry")


SCRIPTS: list[list[list[Step]]] = [
    [["one"]],
    [["a ", "b ", "c"]],
    TOOL_TURN,
    [[CallTool("c1", "echo", '{"text": "x"}')], ["done"]],
    [["first "], *[]],
    [[CallTool("c1", "odd_values")], ["a\x00b"]],
    [[CallTool("c1", "no_such_tool")], ["I was wrong"]],
    [[CallTool("c1", "echo", "{not json")], ["sorry"]],
    [[Think("hm"), "thought"]],
    [["half ", CutConnection()]],
    [["look ", CallTool("c1", "echo", '{"text": "x"}')], ["then ", CutConnection()]],
    [[CallTool("c1", "sleep", '{"seconds": 0.3}'), CallTool("c2", "fail")], ["c2 was first"]],
]


@pytest.mark.parametrize("turn", SCRIPTS, ids=range(len(SCRIPTS)))
async def test_the_projection_of_the_log_is_the_transcript(
    live: httpx.AsyncClient, model: ScriptedModel, turn: list[list[Step]]
) -> None:
    script(model, turn)
    conversation = await create(live)

    found = await stream(live, conversation)

    check(found)
    projection = project(block.data for block in found)
    shown = [(m.role, m.content, m.status, dict(m.metadata)) for m in projection.messages]
    kept = [
        (m["role"], m["content"], m["status"], m["metadata"])
        for m in (await history(live, conversation))[1:]
    ]
    assert shown == kept
    assert f"turn.{projection.status.value}" == found[-1].type
    assert all(request.refusal is None for request in model.requests)


@pytest.mark.timeout(60)
async def test_sixty_streams_that_wait_leave_the_service_quick(
    live: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    """On a pool of five, of which the lease and the recorder own one each."""
    gate = Gate()
    model.will_always(Reply([Hold(gate), "done"]))
    conversations = [await create(live) for _ in range(60)]
    streams = [asyncio.ensure_future(stream(live, name)) for name in conversations]
    await gate.reached(60)

    for path in ("/health/ready", f"/v1/conversations/{conversations[0]}/messages"):
        started = time.monotonic()
        assert (await live.get(path)).status_code == 200
        assert time.monotonic() - started < 1
    assert service.database.checked_out <= 3

    gate.open()
    assert all(found[-1].type == "turn.completed" for found in await asyncio.gather(*streams))


@pytest.mark.timeout(60)
async def test_fifty_equal_sends_with_one_key_are_one_turn(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("one ", Hold(gate), "answer")
    conversation = await create(live)
    headers = {"Idempotency-Key": "k-1"}

    async def post() -> httpx.Response:
        path = f"/v1/conversations/{conversation}/messages"
        return await live.post(path, json={"content": "hi"}, headers=headers)

    sends = [asyncio.ensure_future(post()) for _ in range(45)]
    await gate.reached()
    streams = [asyncio.ensure_future(stream(live, conversation, headers=headers)) for _ in range(5)]
    await asyncio.sleep(0.3)
    gate.open()
    answers, told = await asyncio.gather(*sends), await asyncio.gather(*streams)
    late = await post()

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in [*answers, late]}) == 1
    assert late.headers["idempotency-replayed"] == "true"
    assert all(found == told[0] for found in told)
    check(told[0])
    assert len(model.requests) == 1
    assert len(await history(live, conversation)) == 2


async def test_a_key_stands_for_one_request_of_one_conversation(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    first, second = await create(live), await create(live)
    headers = {"Idempotency-Key": "k-1"}

    async def post(conversation: str, content: str) -> httpx.Response:
        path = f"/v1/conversations/{conversation}/messages"
        return await live.post(path, json={"content": content}, headers=headers)

    assert (await post(first, "hi")).status_code == 200
    other = await post(first, "ho")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert "idempotency-replayed" not in (await post(second, "hi")).headers
    assert len(await history(live, first)) == 2


async def test_a_stored_failure_is_replayed_too(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will(Reply(status=500))
    conversation = await create(live)
    path = f"/v1/conversations/{conversation}/messages"

    async def post() -> httpx.Response:
        return await live.post(path, json={"content": "hi"}, headers={"Idempotency-Key": "k"})

    first, second = await post(), await post()

    assert first.status_code == second.status_code == 502
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert len(model.requests) == 1


async def test_a_closed_conversation_still_answers_for_a_known_key(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    conversation = await create(live)
    path = f"/v1/conversations/{conversation}/messages"
    options: dict[str, Any] = {"json": {"content": "hi"}, "headers": {"Idempotency-Key": "k"}}
    first = await live.post(path, **options)
    await live.post(f"/v1/conversations/{conversation}/close")

    assert (await live.post(path, **options)).json() == first.json()


async def test_creates_with_one_key_are_one_conversation(live: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k-1"}

    answers = await asyncio.gather(
        *(live.post("/v1/conversations", json={"title": "a"}, headers=headers) for _ in range(20))
    )
    other = await live.post("/v1/conversations", json={"title": "b"}, headers=headers)

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 19
    assert other.json()["code"] == "idempotency_mismatch"


@pytest.mark.parametrize("key", ["", "a b", "\u00e4", "x" * 256])
async def test_a_bad_key_is_refused(live: httpx.AsyncClient, key: str) -> None:
    headers = {"Idempotency-Key": key.encode()}

    answer = await live.post("/v1/conversations", headers=headers)  # pyright: ignore[reportArgumentType] - bytes as they are

    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [("respond-async", "respond-async"), ("wait=0", "wait=0"), ("respond-async, wait=0", "wait=0")],
)
async def test_a_client_need_not_wait(
    live: httpx.AsyncClient, model: ScriptedModel, prefer: str, applied: str
) -> None:
    gate = Gate()
    model.will_say(Hold(gate), "done")
    conversation = await create(live)

    answer = await live.post(
        f"/v1/conversations/{conversation}/messages",
        json={"content": "hi"},
        headers={"Prefer": prefer},
    )

    assert answer.status_code == 202
    assert answer.json()["status"] == "running"
    assert answer.headers["preference-applied"] == applied
    assert answer.headers["location"] == answer.json()["links"]["self"]
    gate.open()
    found = await read(live, "GET", answer.json()["links"]["events"])
    assert found[-1].type == "turn.completed"
    assert (await live.get(answer.headers["location"])).json()["output"] == "done"


async def test_a_client_may_wait_for_a_while(live: httpx.AsyncClient, model: ScriptedModel) -> None:
    conversation = await create(live)

    answer = await live.post(
        f"/v1/conversations/{conversation}/messages",
        json={"content": "hi"},
        headers={"Prefer": "wait=10"},
    )

    assert (answer.status_code, answer.json()["status"]) == (200, "completed")


async def test_a_pruned_turn_is_told_again_from_the_transcript(
    live: httpx.AsyncClient, model: ScriptedModel, service: Service
) -> None:
    script(model, TOOL_TURN)
    conversation = await create(live)
    whole = await stream(live, conversation)
    async with service.database.statement() as driver:
        await driver.execute("UPDATE turns SET completed_at = completed_at - interval '25 hours'")
    await service.pruning.prune()

    again = await read(live, "GET", events_path(whole[0]), params={"after": "1-2"})

    assert again[0].data["rebuilt"] is True
    assert [block.type for block in again] == [
        *("turn.started", "message.completed", "tool_call.started", "tool_call.started"),
        *("tool_call.completed", "tool_call.completed", "message.completed", "turn.completed"),
    ]
    assert [block.id for block in again] == [None] * 7 + [whole[-1].id]
    assert all(block.data["seq"] is None for block in again[:-1])
    end = await live.get(events_path(whole[0]), params={"after": whole[-1].id})
    assert end.status_code == 204
    assert json.dumps(await history(live, conversation))


async def test_a_blocking_send_leaves_the_same_log(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    script(model, TOOL_TURN)
    conversation = await create(live)
    turn = (await send(live, conversation, "hi")).json()

    found = await read(live, "GET", turn["links"]["events"])

    check(found)
    assert found[-1].type == "turn.completed"
