"""Clients that vanish without a word, links that carry nothing, windows of a few hundred bytes."""

import asyncio
import ctypes
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from app.storage import embedded
from tests.process.conftest import Starter
from tests.process.service import RunningService
from tests.process.test_life import create, send
from tests.relay import relay_to
from tests.scripted_model import Gate, Hold, Pause, Reply, ScriptedModel
from tests.sse import Block, parse, read, text_of

pytestmark = pytest.mark.process

SO_ATTACH_FILTER = 26
BPF_RETURN = 0x06
# Seconds: CHAT_SEND_TIMEOUT of these tests, and what it may take longer.
LIMIT = 3
MORE = 4


def request(method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def stream_path(conversation: str) -> str:
    return f"/v1/conversations/{conversation}/messages/stream"


class Client:
    """A plain socket, of which the kernel can be made to hear nothing any more."""

    def __init__(self, running: RunningService, window: int | None = None) -> None:
        url = running.client.base_url
        self._socket = socket.socket()
        if window is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._socket.connect((url.host, url.port))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def receive(self, size: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, size)

    async def until(self, wanted: bytes) -> bytes:
        data = b""
        while wanted not in data:
            data += await self.receive(4096)
        return data

    def vanish(self) -> None:
        """Every segment that arrives is dropped before the kernel would answer it: as when the
        machine were switched off."""
        filters = ctypes.create_string_buffer(struct.pack("HBBI", BPF_RETURN, 0, 0, 0))
        program = struct.pack("HP", 1, ctypes.addressof(filters))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def close(self) -> None:
        self._socket.close()


def is_connected(running: RunningService, client: Client) -> bool:
    """At the service's end."""
    process = psutil.Process(running.process.pid)
    ends = [each.raddr.port for each in process.net_connections() if each.raddr]
    return client.port in ends


async def until_dropped(running: RunningService, client: Client) -> float:
    """Seconds until the service has let go of the connection."""
    began = time.monotonic()
    async with asyncio.timeout(LIMIT + MORE):
        while is_connected(running, client):
            await asyncio.sleep(0.1)
    return time.monotonic() - began


async def _streaming(client: Client, conversation: str, _gate: Gate) -> None:
    await client.send(request("POST", stream_path(conversation), b'{"content": "hi"}'))
    await client.until(b"event: turn.started")


async def _blocking(client: Client, conversation: str, gate: Gate) -> None:
    path = f"/v1/conversations/{conversation}/messages"
    await client.send(request("POST", path, b'{"content": "hi"}'))
    await gate.reached()


async def _following(client: Client, conversation: str, _gate: Gate) -> None:
    await client.send(request("GET", f"/v1/conversations/{conversation}/events"))
    await client.until(b"200 OK")


@pytest.mark.parametrize("begin", [_streaming, _blocking, _following])
async def test_a_client_that_vanishes_is_noticed_and_its_turn_goes_on(
    started: Starter, model: ScriptedModel, begin: Callable[[Client, str, Gate], Awaitable[None]]
) -> None:
    """No FIN, no RST: a switched-off machine. Also where the service has nothing to say."""
    gate = Gate()
    model.will_say("a ", Hold(gate), "b")
    running = await started(chat_send_timeout=LIMIT, chat_heartbeat=1)
    conversation = await create(running.client)
    client = Client(running)
    await begin(client, conversation, gate)
    assert is_connected(running, client)

    client.vanish()
    took = await until_dropped(running, client)

    assert took > LIMIT / 3
    gate.open()
    path = f"/v1/conversations/{conversation}/turns"
    if begin != _following:
        async with asyncio.timeout(10):
            while (turn := (await running.client.get(path)).json()["data"][0])["output"] != "a b":
                await asyncio.sleep(0.05)
        assert turn["status"] == "completed"
    client.close()


async def test_a_tiny_window_on_a_slow_link_gets_every_byte_and_slows_nobody(
    started: Starter, model: ScriptedModel
) -> None:
    running = await started(chat_send_timeout=LIMIT)
    model.will_always(Reply([step for n in range(100) for step in (f"word {n} ", Pause(0.01))]))
    conversation, other = await create(running.client), await create(running.client)
    client = Client(running, window=1024)
    await client.send(request("POST", stream_path(conversation), b'{"content": "hi"}'))
    slow = asyncio.ensure_future(_slowly(client))
    began = time.monotonic()
    quick = await read(running.client, "POST", stream_path(other), json={"content": "hi"})
    took = time.monotonic() - began

    found = await slow

    assert time.monotonic() - began > 2 * took
    assert text_of(found) == text_of(quick) == "".join(f"word {n} " for n in range(100))
    path = f"/v1/conversations/{conversation}/turns/{found[0].data['turn_id']}/events"
    assert [block.raw for block in found] == [
        block.raw for block in await read(running.client, "GET", path)
    ]
    client.close()


async def _slowly(client: Client) -> list[Block]:
    """A few kilobytes a second, in bytes of a chunked body."""
    data = b""
    while b"\r\n0\r\n\r\n" not in data:
        data += await client.receive(24)
        await asyncio.sleep(0.005)
    body, chunks = b"", data.partition(b"\r\n\r\n")[2]
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        body, chunks = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    events = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
    return [parse(event) for event in events if not event.startswith(b":")]


async def test_a_listener_on_a_dead_link_is_noticed_and_nothing_waits_for_it(
    started: Starter, model: ScriptedModel, directory: Path
) -> None:
    """Notifications stop without a word; streams go on by looking, and then it listens again."""
    postgres = await asyncio.to_thread(embedded.start, directory)
    async with relay_to(postgres.url) as (relay, direct):
        first = await started()
        second = await started(database_url=postgres.url, database_direct_url=direct)
        gate = Gate()
        model.will_say("a ", Hold(gate), "b ", *[s for _ in range(20) for s in ("c ", Pause(0.1))])
        conversation = await create(first.client)
        sending = asyncio.ensure_future(send(first.client, conversation, "hi"))
        await gate.reached()
        relay.is_frozen = True
        turn = (await second.client.get(f"/v1/conversations/{conversation}/turns")).json()["data"][
            0
        ]
        following = asyncio.ensure_future(read(second.client, "GET", turn["links"]["events"]))
        gate.open()

        answer, began = await sending, time.monotonic()
        found = await following

        assert time.monotonic() - began < 3
        assert text_of(found) == answer.json()["output"]
        async with asyncio.timeout(30):
            while not second.events("listener_lost"):
                await asyncio.sleep(0.1)
        relay.is_frozen = False
        assert (await second.client.get("/health/ready")).status_code == 200
        await second.terminate()
    await asyncio.to_thread(postgres.release)
