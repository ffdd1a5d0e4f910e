"""Two replicas: how far behind a follower is that reads a turn of the other one; part of `make bench`.

In each round turns of the same kind are read where they run (the floor), at a replica that is
notified, and at one whose listening link has died, so that every notification is lost on it. The lag
of a delta is the time from the model's sending it to its reading, by the machine's one clock.
"""

import asyncio
import re
import statistics
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.storage import embedded
from app.storage.database import Database, opened_database
from tests.performance import storm
from tests.process import service
from tests.process.service import RunningService
from tests.relay import relay_to
from tests.scripted_model import Pause, Reply, ScriptedModel, Stamp, Step

STREAMS = (1, 20, 64)
PER_SECOND = 50
SECONDS = 4
POOL = 10


@dataclass(frozen=True)
class Lag:
    """Milliseconds."""

    p50: float
    p99: float

    def __str__(self) -> str:
        return f"{self.p50:.0f} / {self.p99:.0f}"


@dataclass(frozen=True)
class Figure:
    streams: int
    here: Lag
    notified: Lag
    deaf: Lag

    @property
    def line(self) -> str:
        return (
            f"{self.streams:>3} streams of {PER_SECOND} tokens/s, lag p50 / p99 in ms: where they run "
            f"{self.here}; at another replica {self.notified}; there without notifications {self.deaf}"
        )


@dataclass(frozen=True)
class Replicas:
    """`connections`: the most that PostgreSQL had for each process, of `documented`."""

    lags: Sequence[Figure]
    storms: Sequence[storm.Storm]
    connections: float
    documented: int

    @property
    def lines(self) -> list[str]:
        return [
            *(figure.line for figure in self.lags),
            *(each.line for each in self.storms),
            f"PostgreSQL had {self.connections:.1f} connections a process at the most, "
            f"of CHAT_DB_POOL and one: {self.documented}",
        ]


def run_model(told: Any) -> None:
    steps: list[Step] = [
        s for _ in range(PER_SECOND * SECONDS) for s in (Stamp(), Pause(1 / PER_SECOND))
    ]

    asyncio.run(always(steps, told))


async def always(steps: Sequence[Step], told: Any) -> None:
    """A model that says the same to everyone, for as long as its process lives."""
    async with ScriptedModel().serving() as model:
        model.will_always(Reply(steps))
        told.send(model.base_url)
        while True:
            await asyncio.sleep(1)
            model.requests.clear()


async def measured(model_url: str, directory: Path) -> Replicas:
    postgres = await asyncio.to_thread(embedded.start, directory)
    settings: dict[str, Any] = {
        "database_url": postgres.url,
        "chat_auto_migrate": "on",
        "chat_db_pool": POOL,
        "chat_model": "scripted",
        "chat_model_base_url": model_url,
        "chat_max_turns_per_process": 200,
        "chat_streams_per_caller": 10_000,
    }
    async with (
        opened_database(postgres.url, pool_size=2) as database,
        relay_to(postgres.url) as (relay, relayed_url),
    ):
        runs, hears = [await service.start(**settings) for _ in range(2)]
        is_deaf = await service.start(**settings, database_direct_url=relayed_url)
        replicas = runs, hears, is_deaf
        relay.is_frozen = True
        async with _connections(database) as most:
            lags = [await _lags(replicas, each) for each in STREAMS]
            storms = [await storm.of_resumes(runs, each) for each in (runs, hears)]
        relay.is_frozen = False
        for running in replicas:
            await running.terminate()
    await asyncio.to_thread(postgres.release)
    return Replicas(lags, storms, max(most) / len(replicas), POOL + 1)


async def _lags(replicas: Sequence[RunningService], streams: int) -> Figure:
    """One place of reading after the other, so that readers do not load each other."""
    runs = replicas[0]
    lags: list[Lag] = []
    for place in replicas:
        found = await asyncio.gather(*(_followed(runs, place) for _ in range(streams)))
        cuts = statistics.quantiles([lag for each in found for lag in each], n=100)
        lags.append(Lag(cuts[49] * 1_000, cuts[98] * 1_000))
    here, notified, deaf = lags
    return Figure(streams, here, notified, deaf)


async def _followed(runs: RunningService, place: RunningService) -> list[float]:
    """A turn that runs at one replica, followed at the other: the lags of its deltas in seconds."""
    conversation = (await runs.client.post("/v1/conversations")).json()["id"]
    path = f"/v1/conversations/{conversation}/messages"
    began = await runs.client.post(
        path, json={"content": "hi"}, headers={"Prefer": "respond-async"}
    )
    lags: list[float] = []
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=place.client.base_url, timeout=60, limits=limits) as client,
        client.stream("GET", began.json()["links"]["events"]) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith('data: {"type":"text.delta"'):
                now = time.monotonic()
                text = line.partition('"delta":"')[2]
                lags += [now - float(stamp) for stamp in re.findall(r"[\d.]+(?= )", text)]
    # What had been said before it came to follow is no lag.
    return lags[PER_SECOND // 2 :]


@asynccontextmanager
async def _connections(database: Database) -> AsyncGenerator[list[int]]:
    """How many the services have, looked at ten times a second."""
    seen: list[int] = []

    async def look() -> None:
        async with database.statement() as driver:
            while True:
                seen.append(
                    await driver.fetchval(
                        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                        "AND backend_type = 'client backend'"
                    )
                )
                await asyncio.sleep(0.1)

    looking = asyncio.ensure_future(look())
    yield seen
    looking.cancel()
    await asyncio.wait([looking])
