"""What the log's one writer does under 64 streams of 50 tokens a second; part of `make bench`.

Each token is the time at which the model sent it, so that its reader knows how old it is. The clock
is the machine's monotonic one, which all processes share.
"""

import asyncio
import json
import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.storage.database import opened_database
from tests.process import service
from tests.scripted_model import Pause, Reply, ScriptedModel, Stamp, Step

STREAMS = 64
TOKENS = 250
PACE = 0.02


@dataclass(frozen=True)
class Flushes:
    """Ages in milliseconds, from the model's send to the client's read."""

    streams: int
    tokens_per_second: float
    commits_per_second: float
    frames_per_token: float
    age_p50: float
    age_p99: float

    @property
    def line(self) -> str:
        return (
            f"{self.streams} streams, {self.tokens_per_second:.0f} tokens/s: "
            f"{self.commits_per_second:.0f} commits/s, {self.frames_per_token:.2f} frames a token, "
            f"age p50 {self.age_p50:.0f} ms, p99 {self.age_p99:.0f} ms"
        )


def run_model(told: Any) -> None:
    async def main() -> None:
        async with ScriptedModel().serving() as model:
            steps: list[Step] = [step for _ in range(TOKENS) for step in (Stamp(), Pause(PACE))]
            model.will_always(Reply(steps))
            told.send(model.base_url)
            await asyncio.Event().wait()

    asyncio.run(main())


async def flush_statistics(model_url: str) -> Flushes:
    with tempfile.TemporaryDirectory(prefix="cw-flushes-") as name:
        Path(name).chmod(0o755)
        directory = Path(name) / "data"
        running = await service.start(
            chat_data_dir=directory, chat_model="scripted", chat_model_base_url=model_url
        )
        try:
            return await _measured(running, directory)
        finally:
            await running.terminate()


async def _measured(running: service.RunningService, directory: Path) -> Flushes:
    socket = directory / "postgresql-18" / "socket"
    limits = httpx.Limits(max_connections=None)
    async with (
        opened_database(f"postgresql:///postgres?host={socket}&user=chat", pool_size=1) as database,
        httpx.AsyncClient(base_url=running.client.base_url, timeout=120, limits=limits) as client,
    ):
        names = [(await client.post("/v1/conversations")).json()["id"] for _ in range(STREAMS)]
        before, started = await _commits(database), time.monotonic()
        found = await asyncio.gather(*(_read(client, name) for name in names))
        took, after = time.monotonic() - started, await _commits(database)
    ages = sorted(age for stream, _ in found for age in stream)
    return Flushes(
        streams=STREAMS,
        tokens_per_second=len(ages) / took,
        commits_per_second=(after - before) / took,
        frames_per_token=sum(frames for _, frames in found) / len(ages),
        age_p50=statistics.median(ages) * 1000,
        age_p99=ages[int(len(ages) * 0.99)] * 1000,
    )


async def _commits(database: Any) -> int:
    async with database.statement() as driver:
        await driver.execute("SELECT pg_stat_force_next_flush()")
        return await driver.fetchval("SELECT sum(xact_commit)::bigint FROM pg_stat_database")


async def _read(client: httpx.AsyncClient, conversation: str) -> tuple[list[float], int]:
    """How old each token was when it was read, and in how many frames they came."""
    ages: list[float] = []
    frames = 0
    path = f"/v1/conversations/{conversation}/messages/stream"
    async with client.stream("POST", path, json={"content": "hi"}) as response:
        async for line in response.aiter_lines():
            if line.startswith('data: {"type":"text.delta"'):
                now = time.monotonic()
                frames += 1
                text = json.loads(line[6:])["delta"]
                ages += [now - float(stamp) for stamp in re.findall(r"[\d.]+(?= )", text)]
    return ages, frames
