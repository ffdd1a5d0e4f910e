"""Real processes that are killed, frozen and stopped while their turns run; others go on."""

import asyncio
import json
import signal
import time
from pathlib import Path
from uuid import uuid4

import pytest

from tests.following import Following, last_attempt
from tests.process.conftest import Starter
from tests.process.service import RunningService
from tests.process.test_life import create, history, send
from tests.scripted_model import CallTool, Gate, Hold, Pause, Reply, ScriptedModel
from tests.sse import text_of

pytestmark = pytest.mark.process

TOOLS = "tests.tools"


def note(path: Path, call_id: str = "c1") -> CallTool:
    return CallTool(call_id, "note", json.dumps({"path": str(path)}))


def following(conversation: str, *services: RunningService) -> Following:
    """Begins at the first of them and then keeps to any that lives."""

    def alive() -> list[RunningService]:
        return [service for service in services if service.process.returncode is None]

    follower = Following(
        lambda: [s.client for s in (alive()[:1] if not follower.found else alive())],
        conversation,
        "hi",
        str(uuid4()),
    )
    return follower


async def turns(service: RunningService, conversation: str) -> list[tuple[str, int]]:
    answer = await service.client.get(f"/v1/conversations/{conversation}/turns")
    return [(turn["status"], turn["attempt"]) for turn in answer.json()["data"]]


@pytest.mark.parametrize("lease", [2, 15], ids=["short lease", "as configured"])
async def test_a_kill_after_a_tools_effect_and_during_the_second_request(
    started: Starter,
    model: ScriptedModel,
    directory: Path,
    lease: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gate, notes = Gate(), directory.parent / "notes"
    model.will(Reply([note(notes)]), Reply(["half", Hold(gate)]))
    first, second = [await started(chat_lease=lease, chat_tools=TOOLS) for _ in range(2)]
    conversation = await create(first.client)
    follower = following(conversation, first, second)
    watching = asyncio.ensure_future(follower.to_the_end(60))
    elsewhere = asyncio.ensure_future(_follow_elsewhere(second, conversation, follower))
    await gate.reached()
    await asyncio.sleep(0.2)
    killed = time.monotonic()
    await first.kill()
    model.will_say("It is noted.")

    found = await watching

    took = time.monotonic() - killed
    with capsys.disabled():
        print(f"\nlease {lease} s: begun again, ended {took:.1f} s after")  # noqa: T201 - the figure
    assert took < lease + 5
    assert len(notes.read_text().splitlines()) == 1
    assert [len(request.messages) for request in model.requests] == [1, 3, 3]
    assert found[-1].type == "turn.completed"
    assert text_of(list(last_attempt(found))) == "It is noted."
    # Who followed at the other process has seen it happen, on one stream.
    assert await elsewhere == [block.raw for block in found]
    assert await turns(second, conversation) == [("completed", 2)]
    assert [role for role, _ in await history(second.client, conversation)] == [
        *("user", "tool_call", "tool_result", "assistant")
    ]


async def _follow_elsewhere(
    service: RunningService, conversation: str, follower: Following
) -> list[bytes]:
    async with asyncio.timeout(20):
        while not follower.found:
            await asyncio.sleep(0.02)
    path = f"/v1/conversations/{conversation}/turns/{follower.found[0].data['turn_id']}/events"
    response = await service.client.get(path, timeout=60)
    texts = response.content.split(b"\n\n")[:-1]
    return [text + b"\n\n" for text in texts if not text.startswith(b":")]


async def test_what_is_handed_over_goes_on_within_two_seconds(
    started: Starter, model: ScriptedModel, directory: Path
) -> None:
    gate, notes = Gate(), directory.parent / "notes"
    model.will(Reply([note(notes)]), Reply(["half", Hold(gate)]))
    settings = {"chat_lease": 60, "chat_tools": TOOLS, "chat_shutdown_grace": 0.5}
    first, second = [await started(**settings) for _ in range(2)]
    conversation = await create(first.client)
    follower = following(conversation, first, second)
    watching = asyncio.ensure_future(follower.to_the_end(30))
    await gate.reached()
    await asyncio.sleep(0.2)
    model.will_say("It is noted.")
    began = time.monotonic()
    assert await first.terminate() == 0

    found = await watching

    assert time.monotonic() - began < 0.5 + 2 + 2
    (restarted,) = [block.data for block in found if block.type == "turn.restarted"]
    assert (restarted["reason"], restarted["attempt"]) == ("handed_over", 2)
    assert text_of(list(last_attempt(found))) == "It is noted."
    assert follower.cuts == 0
    assert len(notes.read_text().splitlines()) == 1


async def test_a_frozen_process_does_no_harm_when_it_wakes(
    started: Starter, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("frozen ", Hold(gate), "late")
    first, second = await started(chat_lease=2), await started(chat_lease=2)
    conversation = await create(first.client)
    sending = asyncio.ensure_future(send(first.client, conversation, "hi"))
    await gate.reached()
    await asyncio.sleep(0.2)
    model.will_say("by another")
    first.process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(20):
        while await turns(second, conversation) != [("completed", 2)]:
            await asyncio.sleep(0.1)
    following_turn = await send(second.client, conversation, "go on")

    gate.open()
    first.process.send_signal(signal.SIGCONT)
    answer = await sending
    await asyncio.sleep(1)

    assert (answer.status_code, answer.json()["output"]) == (200, "by another")
    assert following_turn.status_code == 200
    assert [text for _, text in await history(second.client, conversation)] == [
        *("hi", "by another", "go on", "I saw 3 messages.")
    ]
    assert await turns(second, conversation) == [("completed", 1), ("completed", 2)]
    async with asyncio.timeout(10):
        while (await first.client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.1)
    assert (await send(first.client, conversation, "and you?")).status_code == 200


async def test_a_turn_whose_processes_keep_dying_fails_with_its_partial_text(
    started: Starter, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_always(Reply(["half ", "an answer", Hold(gate)]))
    first = await started(chat_lease=2)
    conversation = await create(first.client)
    sending = asyncio.ensure_future(send(first.client, conversation, "hi"))
    for attempt in (1, 2):
        await gate.reached()
        async with asyncio.timeout(10):
            while await turns(first, conversation) != [("running", attempt)]:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        await first.kill()
        first = await started(chat_lease=2)
    await asyncio.wait([sending])
    async with asyncio.timeout(20):
        while await turns(first, conversation) == [("running", 2)]:
            await asyncio.sleep(0.1)

    (turn,) = (await first.client.get(f"/v1/conversations/{conversation}/turns")).json()["data"]
    assert (turn["status"], turn["error"]["code"]) == ("failed", "worker_lost")
    assert turn["error"]["retryable"] is True
    assert turn["output"] == "half an answer"
    gate.open()
    assert (await send(first.client, conversation, "go on")).status_code == 200
    assert model.requests[-1].refusal is None


async def test_a_rolling_restart_under_50_streams_loses_and_doubles_nothing(
    started: Starter, model: ScriptedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"w{n} " for n in range(60)]
    model.will_always(Reply([step for word in words for step in (word, Pause(0.15))]))
    settings = {"chat_shutdown_grace": 1, "chat_lease": 15, "chat_max_turns_per_process": 60}
    services = [await started(**settings) for _ in range(2)]

    def alive() -> list[RunningService]:
        return [each for each in services if each.process.returncode is None]

    followers = [
        Following(
            lambda: [service.client for service in alive()],
            await create(services[place % 2].client),
            "hi",
            str(uuid4()),
        )
        for place in range(50)
    ]
    watching = [asyncio.ensure_future(each.to_the_end(90)) for each in followers]
    async with asyncio.timeout(30):
        while not all(len(each.found) > 2 for each in followers):
            await asyncio.sleep(0.05)
    for place in (0, 1):
        assert await services[place].terminate() == 0
        services[place] = await started(**settings)
        await asyncio.sleep(1)
    await asyncio.gather(*watching)

    restarts = 0
    for follower in followers:
        ids = [block.id for block in follower.found]
        assert ids == [f"1-{seq}" for seq in range(1, len(ids) + 1)]
        assert follower.found[-1].type == "turn.completed"
        assert text_of(list(last_attempt(follower.found))) == "".join(words)
        assert follower.cuts == 0
        restarts += sum(block.type == "turn.restarted" for block in follower.found)
        path = f"/v1/conversations/{follower.conversation}/turns/"
        path += follower.found[0].data["turn_id"] + "/events"
        stored = (await services[0].client.get(path)).content
        assert stored == b"".join(block.raw for block in follower.found)
    with capsys.disabled():
        print(f"\n50 streams, two restarts: {restarts} turns begun again")  # noqa: T201 - the figure
    assert restarts > 0
