"""A client that keeps to one turn over any number of services, however often they break."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.sse import Block, blocks

TERMINAL = {"turn.completed", "turn.incomplete", "turn.cancelled", "turn.failed"}
PAUSE = 0.1


@dataclass
class Following:
    """Sends a message, which begins a turn, and reads its stream to the end.

    `services` gives those that may be alive now. The send is repeated with its key until it is
    known to have arrived; from the first event on the stream is resumed behind the last one.
    `cuts`: how often a stream broke off without a word.
    """

    services: Callable[[], Sequence[httpx.AsyncClient]]
    conversation: str
    content: str
    key: str
    found: list[Block] = field(default_factory=list[Block])
    cuts: int = 0
    refusals: dict[int, int] = field(default_factory=dict[int, int])

    async def to_the_end(self, limit: float) -> list[Block]:
        """The events, each once. Raises TimeoutError after `limit` seconds."""
        async with asyncio.timeout(limit):
            while not self._has_ended:
                if services := self.services():
                    with suppress(httpx.TransportError):
                        await self._read(random.choice(services))  # noqa: S311 - any will do
                if not self._has_ended:
                    await asyncio.sleep(PAUSE)
        return self.found

    @property
    def _has_ended(self) -> bool:
        return bool(self.found) and self.found[-1].type in TERMINAL

    async def _read(self, client: httpx.AsyncClient) -> None:
        method, path, options = self._request()
        async with client.stream(method, path, **options) as response:
            if response.status_code != 200:
                status = response.status_code
                assert status not in (400, 422), await response.aread()  # no try will mend that
                self.refusals[status] = self.refusals.get(status, 0) + 1
                return
            try:
                async for block in blocks(response):
                    if block.type == "stream.closing":
                        return
                    self.found.append(block)
            except (httpx.TransportError, AssertionError):
                # Maybe in the middle of an event: it will come again.
                self.cuts += 1

    def _request(self) -> tuple[str, str, Mapping[str, Any]]:
        if not self.found:
            headers = {"Idempotency-Key": self.key}
            path = f"/v1/conversations/{self.conversation}/messages/stream"
            return "POST", path, {"json": {"content": self.content}, "headers": headers}
        last = self.found[-1]
        path = f"/v1/conversations/{self.conversation}/turns/{last.data['turn_id']}/events"
        return "GET", path, {"headers": {"Last-Event-ID": last.id}}


def last_attempt(found: Sequence[Block]) -> Sequence[Block]:
    """What counts of a whole stream: the events after the last restart."""
    starts = [place for place, block in enumerate(found) if block.type == "turn.restarted"]
    return found[starts[-1] + 1 :] if starts else found
