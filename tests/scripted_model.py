"""An OpenAI-compatible server on loopback that says what a test tells it to, over real HTTP.

    model.will_say("Hello ", "there")                  the next request is answered so
    model.will(Reply(["a", Hold(gate), "b"]))          waits at the gate in the middle
    model.requests                                     what the service has sent

With nothing left to say it answers with how many messages it saw. It refuses, as strict providers
do, histories whose tool calls and results do not pair up or that do not begin with a user.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Gate:
    """Where replies wait until a test opens it."""

    _opened: asyncio.Event = field(default_factory=asyncio.Event)
    _arrivals: asyncio.Condition = field(default_factory=asyncio.Condition)
    waiting: int = 0

    async def pass_through(self) -> None:
        async with self._arrivals:
            self.waiting += 1
            self._arrivals.notify_all()
        try:
            await self._opened.wait()
        finally:
            self.waiting -= 1

    async def reached(self, count: int = 1) -> None:
        async with asyncio.timeout(20), self._arrivals:
            await self._arrivals.wait_for(lambda: self.waiting >= count)

    def open(self) -> None:
        self._opened.set()


@dataclass(frozen=True)
class Hold:
    gate: Gate


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Stamp:
    """The time at which it is sent, by the machine's monotonic clock, and a blank."""


@dataclass(frozen=True)
class Think:
    text: str


@dataclass(frozen=True)
class CallTool:
    id: str
    name: str
    args: str = "{}"


@dataclass(frozen=True)
class Raw:
    """Any JSON value where a chunk is expected."""

    value: Any


@dataclass(frozen=True)
class InBandError:
    """An error object inside the stream."""

    message: str = "scripted"
    type: str = "server_error"


@dataclass(frozen=True)
class CutConnection:
    pass


Step = str | Hold | Pause | Stamp | Think | CallTool | Raw | InBandError | CutConnection


@dataclass(frozen=True)
class Reply:
    """`finish` None: the finish reason is never sent. `usage`: prompt and completion tokens."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    finish: str | None = "stop"
    usage: tuple[int, int] | None = (10, 5)


@dataclass
class ModelRequest:
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    refusal: str | None = None
    aborted: bool = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]

    @property
    def roles(self) -> list[str]:
        return [message["role"] for message in self.messages]


class ScriptedModel:
    def __init__(self) -> None:
        self.base_url = ""
        self.requests: list[ModelRequest] = []
        self._replies: deque[Reply] = deque()
        self._always: Reply | None = None
        self._by_request: Callable[[ModelRequest], Reply] | None = None

    def will(self, *replies: Reply) -> None:
        """One reply for each of the next requests."""
        self._replies.extend(replies)

    def will_say(self, *steps: Step) -> None:
        self.will(Reply(steps))

    def will_always(self, reply: Reply) -> None:
        """The same for every request that has no reply of its own."""
        self._always = reply

    def will_answer(self, answer: Callable[[ModelRequest], Reply]) -> None:
        """What this says to every request that has no reply of its own."""
        self._by_request = answer

    def forget(self) -> None:
        self.requests.clear()
        self._replies.clear()
        self._always = self._by_request = None

    @property
    def refused(self) -> list[str]:
        """Why histories were refused."""
        return [request.refusal for request in self.requests if request.refusal]

    @property
    def texts(self) -> str:
        """All that was ever sent to the model, to look for what must not be there."""
        return json.dumps([request.body for request in self.requests], ensure_ascii=False)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["ScriptedModel"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24, backlog=1024)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")[1:]
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        request = ModelRequest(body, headers)
        self.requests.append(request)
        request.refusal = refusal(request.messages)
        reply = Reply(status=400) if request.refusal else self._next(request)
        if reply.status != 200:
            await _send_plain(writer, reply, request.refusal or "scripted")
            return True
        return await _stream(reader, writer, reply, request)

    def _next(self, request: ModelRequest) -> Reply:
        if self._replies:
            return self._replies.popleft()
        if self._by_request is not None:
            return self._by_request(request)
        return self._always or Reply([f"I saw {len(request.messages)} messages."])


async def _send_plain(writer: asyncio.StreamWriter, reply: Reply, message: str) -> None:
    body = json.dumps(reply.body or {"error": {"message": message}}).encode()
    head = [f"HTTP/1.1 {reply.status} X", f"content-length: {len(body)}"]
    head += ["content-type: application/json"]
    head += [f"{name}: {value}" for name, value in reply.headers.items()]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    await writer.drain()


async def _stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply, request: ModelRequest
) -> bool:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    watch = asyncio.ensure_future(reader.read(1))
    talk = asyncio.ensure_future(_talk(writer, reply, request))
    await asyncio.wait([watch, talk], return_when=asyncio.FIRST_COMPLETED)
    if not talk.done():
        request.aborted = True
        talk.cancel()
        await asyncio.wait([watch, talk])
        watch.exception()  # a reset connection, when the service was killed
        return False
    watch.cancel()
    await asyncio.wait([watch])
    return await talk


async def _talk(writer: asyncio.StreamWriter, reply: Reply, request: ModelRequest) -> bool:
    calls = 0
    for step in reply.steps:
        match step:
            case Hold(gate):
                await gate.pass_through()
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case CutConnection():
                writer.transport.abort()
                return False
            case Stamp():
                await _send_delta(writer, request, {"content": f"{time.monotonic():.6f} "})
            case Raw(value):
                await _send_event(writer, value)
            case InBandError():
                error = {"message": step.message, "type": step.type}
                await _send_event(writer, {"error": error})
            case CallTool():
                await _send_delta(writer, request, {"tool_calls": [_call(calls, step)]})
                calls += 1
            case Think(text):
                await _send_delta(writer, request, {"reasoning_content": text})
            case str():
                await _send_delta(writer, request, {"content": step})
    if reply.finish is not None:
        finish = "tool_calls" if calls and reply.finish == "stop" else reply.finish
        await _send_delta(writer, request, {}, finish)
    if reply.usage is not None:
        await _send_event(writer, _chunk(request, []) | {"usage": _usage(*reply.usage)})
    await _send(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _call(index: int, call: CallTool) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.args}
    return {"index": index, "id": call.id, "type": "function", "function": function}


def _usage(prompt: int, completion: int) -> dict[str, int]:
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def _chunk(request: ModelRequest, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": request.body["model"],
        "choices": choices,
    }


async def _send_delta(
    writer: asyncio.StreamWriter,
    request: ModelRequest,
    delta: dict[str, Any],
    finish: str | None = None,
) -> None:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    await _send_event(writer, _chunk(request, [choice]))


async def _send_event(writer: asyncio.StreamWriter, event: Any) -> None:
    await _send(writer, f"data: {json.dumps(event)}\n\n".encode())


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


def refusal(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a strict provider would refuse this history."""
    talk = [message for message in messages if message["role"] != "system"]
    if not talk or talk[0]["role"] != "user":
        return "the first message is not a user's"
    pending: set[str] = set()
    for message in talk:
        if message["role"] == "tool":
            if message["tool_call_id"] not in pending:
                return "a tool result answers no call"
            pending.discard(message["tool_call_id"])
            continue
        if pending:
            return "a tool call has no result"
        pending = {call["id"] for call in message.get("tool_calls") or ()}
        if message["role"] == "assistant" and not pending and not message.get("content"):
            return "an assistant message is empty"
    return "a tool call has no result" if pending else None
