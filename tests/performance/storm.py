"""A thousand readers resume in one moment; what those notice who are in the middle of an answer."""

import asyncio
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from tests.process.service import RunningService

RESUMES = 1_000
LIVE = 8
# Seconds of calm before it.
CALM = 2.0


@dataclass(frozen=True)
class Storm:
    """Of live turns: lags in milliseconds, in the calm before and during the storm.

    `seconds`: from its begin until each reader had what it had missed.
    """

    same_process: bool
    seconds: float
    calm_p50: float
    p50: float
    p99: float
    most: float

    @property
    def line(self) -> str:
        where = "the process of" if self.same_process else "another replica than"
        return (
            f"{RESUMES} resumes at {where} {LIVE} live turns, over in {self.seconds:.1f} s: lag p50 "
            f"{self.p50:.0f} ms (before {self.calm_p50:.0f}), p99 {self.p99:.0f} ms, most {self.most:.0f} ms"
        )


async def of_resumes(runs: RunningService, stormed: RunningService) -> Storm:
    """The live turns, whose deltas are stamps, run at `runs`; the storm breaks over `stormed`."""
    events = await _ended_turn(runs)
    live = [asyncio.ensure_future(_lags(runs)) for _ in range(LIVE)]
    await asyncio.sleep(1 + CALM)
    began = time.monotonic()
    url = stormed.client.base_url
    await asyncio.gather(*(_resumed(url, events) for _ in range(RESUMES)))
    ended = time.monotonic()
    lags = [lag for found in await asyncio.gather(*live) for lag in found]
    calm = [lag for made, lag in lags if began - CALM < made < began - 0.2]
    during = [lag for made, lag in lags if began <= made <= ended]
    return Storm(
        same_process=runs is stormed,
        seconds=ended - began,
        calm_p50=_percentile(calm, 50),
        p50=_percentile(during, 50),
        p99=_percentile(during, 99),
        most=max(during) * 1_000,
    )


def _percentile(seconds: Sequence[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100)[percent - 1] * 1_000


async def _ended_turn(running: RunningService) -> str:
    """Where its events are."""
    conversation = (await running.client.post("/v1/conversations")).json()["id"]
    path = f"/v1/conversations/{conversation}/messages"
    answer = await running.client.post(path, json={"content": "hi"}, timeout=60)
    return answer.json()["links"]["events"]


async def _lags(running: RunningService) -> list[tuple[float, float]]:
    """When each delta of a streamed turn was made, and how long it took to come."""
    conversation = (await running.client.post("/v1/conversations")).json()["id"]
    path = f"/v1/conversations/{conversation}/messages/stream"
    found: list[tuple[float, float]] = []
    async with running.client.stream("POST", path, json={"content": "hi"}, timeout=120) as answer:
        async for line in answer.aiter_lines():
            if line.startswith('data: {"type":"text.delta"'):
                now = time.monotonic()
                text = line.partition('"delta":"')[2]
                made = [float(stamp) for stamp in re.findall(r"[\d.]+(?= )", text)]
                found += [(each, now - each) for each in made]
    return found


async def _resumed(url: httpx.URL, path: str) -> None:
    """Reads to the end by a plain connection, which costs this side little."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1-2\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    assert b"event: turn.completed" in answer
    writer.close()
