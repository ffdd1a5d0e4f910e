"""Reads Server-Sent Events as the HTML standard says, and keeps the bytes."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Block:
    """One event of a stream: its fields, and the bytes that they came in."""

    raw: bytes
    fields: dict[str, str]

    @property
    def id(self) -> str | None:
        return self.fields.get("id")

    @property
    def type(self) -> str:
        return self.fields["event"]

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.fields["data"])


def parse(raw: bytes) -> Block:
    lines = [line for line in raw.decode().split("\n") if line and not line.startswith(":")]
    fields = {name: value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(fields) == len(lines), "a field stands twice"
    return Block(raw, fields)


async def blocks(response: httpx.Response) -> AsyncGenerator[Block]:
    """Without the heartbeats. Looks at each byte once, however large an event is."""
    buffer, looked = bytearray(), 0
    async for chunk in response.aiter_raw():
        buffer += chunk
        while (end := buffer.find(b"\n\n", max(0, looked - 1))) >= 0:
            raw = bytes(buffer[: end + 2])
            del buffer[: end + 2]
            looked = 0
            if not raw.startswith(b":"):
                yield parse(raw)
        looked = len(buffer)
    assert buffer == b"", "the stream ended in the middle of an event"


async def read(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    stop_after: int | None = None,
    **options: Any,
) -> list[Block]:
    """The events of a stream to its end, or the first few of them; then the client is gone."""
    found: list[Block] = []
    async with client.stream(method, path, **options) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        async with aclosing(blocks(response)) as stream:
            async for block in stream:
                found.append(block)
                if len(found) == stop_after:
                    break
    return found


def text_of(found: list[Block]) -> str:
    return "".join(block.data["delta"] for block in found if block.type == "text.delta")
