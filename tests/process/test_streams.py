"""Streams of the real service: quiet ones, frozen readers, shutdown and kill in the middle."""

import asyncio
import re
import time

import psutil
import pytest

from tests.following import last_attempt
from tests.process.conftest import Starter
from tests.process.service import RunningService
from tests.process.test_life import create, send
from tests.scripted_model import Gate, Hold, Reply, ScriptedModel
from tests.sse import Block, read, text_of

pytestmark = pytest.mark.process

PIECE = "x" * 160_000
PIECES = 100


def stream_path(conversation: str) -> str:
    return f"/v1/conversations/{conversation}/messages/stream"


async def test_a_quiet_stream_says_that_it_lives(started: Starter, model: ScriptedModel) -> None:
    gate = Gate()
    model.will_say(Hold(gate), "done")
    running = await started(chat_heartbeat=0.5)
    conversation = await create(running.client)
    raw, gaps, last = b"", [0.0], time.monotonic()
    async with running.client.stream(
        "POST", stream_path(conversation), json={"content": "hi"}
    ) as response:
        async for chunk in response.aiter_raw():
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
            raw += chunk
            if len(re.findall(rb"^:", raw, re.MULTILINE)) >= 4:
                gate.open()

    assert max(gaps) < 1.5
    events = re.findall(rb"^event: (\S+)$", raw, re.MULTILINE)
    assert events == [b"turn.started", b"text.delta", b"message.completed", b"turn.completed"]
    assert raw.endswith(b"\n\n")
    assert raw.rsplit(b"event: turn.completed", 1)[1].count(b"\n:") == 0


async def test_a_frozen_reader_disturbs_nobody_and_can_resume(
    started: Starter, model: ScriptedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 MB while one reader takes nothing; memory is bounded by windows, not by the answer."""
    gate = Gate()
    model.will_say(Hold(gate), *[PIECE] * PIECES)
    running = await started(chat_send_timeout=2)
    process = psutil.Process(running.process.pid)
    conversation = await create(running.client)
    url = running.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=4096)
    body = b'{"content": "hi"}'
    writer.write(
        f"POST {stream_path(conversation)} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await reader.readuntil(b"event: turn.started")
    await gate.reached()
    before = process.memory_info().rss
    path = await _events_of(running, conversation)
    watching = asyncio.ensure_future(read(running.client, "GET", path))
    memory = [before]
    measuring = asyncio.ensure_future(_measure(process, memory))

    gate.open()
    whole = await watching
    other = await create(running.client)
    began = time.monotonic()
    assert (await send(running.client, other, "quick")).status_code == 200
    latency = time.monotonic() - began
    async with asyncio.timeout(15):
        while not running.events("reader_cut_off"):
            await asyncio.sleep(0.05)
    measuring.cancel()
    await asyncio.wait([measuring])

    assert text_of(whole) == PIECE * PIECES
    assert latency < 2
    grown = (max(memory) - before) / 1e6
    with capsys.disabled():
        print(f"\n16 MB past a frozen reader: {grown:.0f} MB more memory at the peak")  # noqa: T201 - the figure
    resumed = await read(running.client, "GET", path, headers={"Last-Event-ID": "1-1"})
    assert resumed == whole[1:]
    writer.close()


async def _measure(process: psutil.Process, memory: list[int]) -> None:
    while True:
        memory.append(process.memory_info().rss)
        await asyncio.sleep(0.02)


async def _events_of(running: RunningService, conversation: str) -> str:
    turns = (await running.client.get(f"/v1/conversations/{conversation}/turns")).json()["data"]
    return turns[0]["links"]["events"]


async def test_on_shutdown_a_stream_is_never_cut_in_silence(
    started: Starter, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("half ", Hold(gate))
    running = await started(chat_shutdown_grace=0.5)
    conversation = await create(running.client)
    watching = asyncio.ensure_future(
        read(running.client, "POST", stream_path(conversation), json={"content": "hi"})
    )
    await gate.reached()

    assert await running.terminate() == 0
    found: list[Block] = await watching

    assert [block.type for block in found] == ["turn.started", "text.delta", "stream.closing"]
    assert found[-1].id is None
    assert found[-1].data["reason"] == "shutdown"


async def test_a_stream_of_a_killed_process_goes_on_at_the_next_one(
    started: Starter, model: ScriptedModel
) -> None:
    """Who resumes is told that the turn was begun again, and then all of it."""
    gate = Gate()
    model.will(Reply(["half ", "an answer", Hold(gate)]))
    first = await started(chat_lease=2)
    conversation = await create(first.client)
    before = await read(
        first.client,
        "POST",
        stream_path(conversation),
        json={"content": "hi"},
        stop_after=2,
    )
    await gate.reached()
    await asyncio.sleep(0.2)
    await first.kill()

    second = await started(chat_lease=2)
    path = await _events_of(second, conversation)
    rest = await read(second.client, "GET", path, headers={"Last-Event-ID": before[-1].id or ""})

    whole = before + rest
    assert [block.id for block in whole] == [f"1-{seq}" for seq in range(1, len(whole) + 1)]
    assert text_of(list(last_attempt(whole))) == "I saw 1 messages."
    assert rest[-1].type == "turn.completed"
    assert (await send(second.client, conversation, "go on")).status_code == 200
    assert model.requests[-1].refusal is None


async def test_a_turn_can_be_followed_and_cancelled_from_another_process(
    started: Starter, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a ", Hold(gate), "b")
    first, second = await started(), await started()
    conversation = await create(first.client)
    watching = asyncio.ensure_future(
        read(first.client, "POST", stream_path(conversation), json={"content": "hi"})
    )
    await gate.reached()
    path = await _events_of(second, conversation)
    following = asyncio.ensure_future(read(second.client, "GET", path))
    await asyncio.sleep(0.3)

    began = time.monotonic()
    answer = await second.client.post(f"/v1/conversations/{conversation}/cancel")

    assert time.monotonic() - began < 2
    assert answer.json()["status"] == "cancelled"
    assert answer.json()["output"] == "a "
    assert await watching == await following
    assert (await send(second.client, conversation, "go on")).status_code == 200
