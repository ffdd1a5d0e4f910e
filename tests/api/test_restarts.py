"""A turn that is begun again goes on behind what it had finished, and tells so."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.bootstrap import Service
from app.ids import TurnId
from tests.api.test_cancel import cancel
from tests.api.test_conversations import create
from tests.api.test_messages import history, send
from tests.api.test_streams import check, events_path, stream
from tests.invariants import violations
from tests.scripted_model import CallTool, Gate, Hold, ScriptedModel, Step
from tests.sse import Block, read, text_of


def call(name: str, path: Path, call_id: str = "c1", **more: object) -> CallTool:
    return CallTool(call_id, name, json.dumps({"path": str(path), **more}))


def effects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def stopped(service: Service) -> TurnId:
    """Stops the one running turn as if its process had died, without an end."""
    (turn_id,) = service.engine.held
    await service.engine.stop(turn_id, 5)
    return turn_id


async def interrupted(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, *requests: list[Step]
) -> tuple[str, "asyncio.Future[list[Block]]"]:
    """A streamed turn that was stopped at the end of the last of these replies of the model."""
    gate = Gate()
    for steps in requests[:-1]:
        model.will_say(*steps)
    model.will_say(*requests[-1], Hold(gate))
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    await gate.reached()
    await stopped(service)
    return conversation, watching


async def test_a_restart_is_shown_and_all_is_told_anew(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    conversation, watching = await interrupted(live, service, model, ["first ", "try"])
    model.will_say("second try")

    found = await watching

    restarted = next(block for block in found if block.type == "turn.restarted").data
    check(found)
    assert (restarted["attempt"], restarted["reason"]) == (2, "worker_lost")
    assert restarted["discard_after"] == 1
    after = [block for block in found if block.data["seq"] > restarted["seq"]]
    assert text_of(after) == "second try"
    assert found[-1].data["turn"]["attempt"] == 2
    assert found[-1].data["turn"]["usage"]["estimated"] is True
    kept = await history(live, conversation)
    assert [message["content"] for message in kept] == ["hi", "second try"]
    again = await read(live, "GET", events_path(found[0]))
    assert [block.raw for block in again] == [block.raw for block in found]


async def test_a_finished_tool_call_is_not_made_again_nor_is_its_request(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    conversation, watching = await interrupted(
        live, service, model, ["Let me note. ", call("note", notes)], ["half an "]
    )
    model.will_say("It is noted.")

    found = await watching

    assert len(effects(notes)) == 1
    assert [len(request.messages) for request in model.requests] == [2, 4, 4]
    assert model.requests[1].messages == model.requests[2].messages
    types = [block.type for block in found]
    second = found[types.index("turn.restarted") + 1 :]
    assert [block.type for block in second] == [
        "text.delta",
        "message.completed",
        "tool_call.started",
        "tool_call.completed",
        "text.delta",
        "message.completed",
        "turn.completed",
    ]
    assert second[0].data["delta"] == "Let me note. "
    assert second[3].data["content"] == "noted"
    assert second[3].data["duration_ms"] is None
    said = [block.data for block in found if block.type == "text.delta"]
    ids = {block["message_id"] for block in said if "Let me" in block["delta"]}
    assert len(ids) == 2
    assert [message["role"] for message in await history(live, conversation)] == [
        *("user", "assistant", "tool_call", "tool_result", "assistant")
    ]
    usage = found[-1].data["turn"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (20, 10)


async def test_a_tool_call_that_had_failed_has_failed(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    _, watching = await interrupted(live, service, model, [call("note_and_fail", notes)], ["so "])
    model.will_say("It failed.")

    found = await watching

    assert len(effects(notes)) == 1
    outcomes = [b.data["outcome"] for b in found if b.type == "tool_call.completed"]
    assert outcomes == ["failed", "failed"]
    assert found[-1].type == "turn.completed"


async def test_an_unfinished_call_is_made_again_with_the_same_key_and_a_finished_one_is_not(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, tmp_path: Path
) -> None:
    done, open_ = tmp_path / "done", tmp_path / "open"
    model.will_say(call("note", done, "a"), call("note", open_, "b", seconds=2))
    conversation = await create(live)
    watching = asyncio.ensure_future(stream(live, conversation))
    async with asyncio.timeout(10):
        while not (open_.exists() and done.exists()):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
    await stopped(service)
    model.will_say("Both.")

    found = await watching

    assert found[-1].type == "turn.completed"
    assert len(effects(done)) == 1
    first, second = effects(open_)
    assert first["key"] == second["key"] != effects(done)[0]["key"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert len(model.requests) == 2


async def test_calls_of_one_id_are_told_apart(
    live: httpx.AsyncClient, model: ScriptedModel, tmp_path: Path
) -> None:
    """Some providers count their calls from one in every response."""
    notes = tmp_path / "notes"
    model.will_say(call("note", notes, "call_0"))
    model.will_say(call("note", notes, "call_0"))
    model.will_say("Twice.")

    await stream(live, await create(live))

    keys = [effect["key"] for effect in effects(notes)]
    assert len(set(keys)) == len(keys) == 2


async def test_a_tool_knows_for_whom_it_works_and_the_model_does_not(
    live: httpx.AsyncClient, model: ScriptedModel, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    model.will_say(call("note", notes, "c7"))
    model.will_say("done")
    conversation = await create(live)

    turn = (await send(live, conversation, "hi")).json()

    (effect,) = effects(notes)
    assert effect["conversation_id"] == conversation
    assert effect["turn_id"] == turn["id"]
    assert (effect["user_id"], effect["call_id"], effect["attempt"]) == ("local", "c7", 1)
    assert effect["key"].startswith(turn["id"])
    (schema,) = [
        tool["function"]
        for tool in model.requests[0].body["tools"]
        if tool["function"]["name"] == "note"
    ]
    assert set(schema["parameters"]["properties"]) == {"path", "seconds"}
    assert schema["description"].startswith("Leaves a line")


async def test_a_turn_that_waits_to_be_begun_again_can_be_cancelled(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    conversation, watching = await interrupted(live, service, model, ["half"])

    answer = await cancel(live, conversation)
    found = await watching

    assert answer.json()["status"] == "cancelled"
    assert found[-1].type == "turn.cancelled"
    assert await send(live, conversation, "go on")


async def test_an_erased_turn_is_not_begun_again(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, tmp_path: Path
) -> None:
    conversation, watching = await interrupted(
        live, service, model, [call("note", tmp_path / "notes")], ["half"]
    )

    assert (await live.delete(f"/v1/conversations/{conversation}")).status_code == 204

    found = await watching
    assert found[-1].data["by"] == "erasure"
    async with service.database.statement() as driver:
        assert await driver.fetchval("SELECT count(*) FROM journal") == 0
    assert len(model.requests) == 2


async def test_a_waiting_send_gets_the_answer_of_the_second_attempt(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("first", Hold(gate))
    conversation = await create(live)
    sending = asyncio.ensure_future(send(live, conversation, "hi"))
    await gate.reached()
    await stopped(service)
    model.will_say("second")

    answer = await sending

    assert (answer.status_code, answer.json()["output"]) == (200, "second")
    assert answer.json()["attempt"] == 2


async def test_a_cut_anywhere_around_a_restart_can_be_mended_exactly(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, tmp_path: Path
) -> None:
    _, watching = await interrupted(
        live, service, model, ["a ", call("note", tmp_path / "notes")], ["b "]
    )
    model.will_say("c ", "d")
    whole = await watching
    assert "turn.restarted" in [block.type for block in whole]

    for cut in range(1, len(whole)):
        after = {"Last-Event-ID": str(whole[cut - 1].id)}
        rest = await read(live, "GET", events_path(whole[0]), headers=after)
        assert [block.raw for block in rest] == [block.raw for block in whole[cut:]]


ODD_IDS = {
    "NUL": "a\x00b",
    "long": "x" * 9000,
    "surrogate": "a\ud800",
    "empty": "",
    "blank": "a b/c",
}


@pytest.mark.parametrize("call_id", ODD_IDS.values(), ids=ODD_IDS)
async def test_a_model_may_give_its_calls_any_name(
    live: httpx.AsyncClient, model: ScriptedModel, tmp_path: Path, call_id: str
) -> None:
    notes = tmp_path / "notes"
    model.will_say(call("note", notes, call_id))
    model.will_say("done")

    found = await stream(live, await create(live))

    # Half of a character cannot be sent back to the model.
    assert found[-1].type == ("turn.failed" if "\ud800" in call_id else "turn.completed")
    (effect,) = effects(notes)
    assert re.fullmatch(r"[\w/:.-]+", effect["key"])
    check(found)


async def test_two_calls_of_one_name_in_one_response_leave_log_and_history_equal(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    model.will_say(call("note", notes, "c"), call("note", notes, "c"))
    model.will_say("done")

    found = await stream(live, await create(live))

    assert found[-1].type in ("turn.completed", "turn.failed")
    async with service.database.statement() as driver:
        assert await violations(driver) == []


@pytest.mark.parametrize(
    ("tool", "args", "content"),
    [
        ("tool_return", {"text": "value"}, "value"),
        ("unsendable_return", {}, '{"error":"The tool failed."}'),
        (
            "like_a_file",
            {},
            '{"found":[{"kind":"binary","data":"aGk=","media_type":"image/png"}]}',
        ),
    ],
)
async def test_the_frameworks_own_results_are_results_like_any(
    live: httpx.AsyncClient,
    service: Service,
    model: ScriptedModel,
    tool: str,
    args: dict[str, Any],
    content: str,
) -> None:
    model.will_say(CallTool("c", tool, json.dumps(args)))
    model.will_say("done")
    conversation = await create(live)

    found = await stream(live, conversation)

    assert found[-1].type == "turn.completed"
    assert [m["role"] for m in model.requests[1].messages][-1] == "tool"
    assert model.requests[1].messages[-1]["content"] == content
    kept = await history(live, conversation)
    assert [m["role"] for m in kept] == ["user", "tool_call", "tool_result", "assistant"]
    async with service.database.statement() as driver:
        assert await violations(driver) == []


async def test_a_large_return_value_is_cut_as_any(
    live: httpx.AsyncClient, model: ScriptedModel
) -> None:
    model.will_say(CallTool("c", "tool_return", json.dumps({"text": "x" * 300_000})))
    model.will_say("done")

    await stream(live, await create(live))

    assert model.requests[1].messages[-1]["content"].endswith("[cut: 200000 of 300000 characters]")
