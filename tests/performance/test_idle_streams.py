"""What 2,000 idle followed conversations cost one process, and what others feel of them."""

import asyncio
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.postmasters import send_to_postmasters
from tests.process import service
from tests.process.service import RunningService

STREAMS = 2_000
AT_ONCE = 50
ASKED = 600
IDLE = 5.0
# Megabytes for 1,000 streams; measured 59. Beside them a request may wait for the query that looks
# after them all, but not much more: p99 within so many times of that without, and a few ms.
MOST_MEMORY = 100
MOST_SLOWER, NOISE = 3, 0.005


@pytest.fixture
async def running() -> AsyncGenerator[RunningService]:
    with tempfile.TemporaryDirectory(prefix="cw-idle-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        running = await service.start(chat_data_dir=folder / "data", chat_streams_per_caller=10_000)
        yield running
        await running.terminate()
        send_to_postmasters(folder, signal.SIGKILL)


async def opened(url: httpx.URL, conversation: str) -> asyncio.StreamWriter:
    """A follow stream whose head has come; what else comes stays in the socket."""
    reader, writer = await asyncio.open_connection(url.host, url.port, limit=2048)
    path = f"/v1/conversations/{conversation}/events"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return writer


async def p99(client: httpx.AsyncClient, path: str) -> float:
    """Of requests one after the other, in seconds."""
    took: list[float] = []
    for _ in range(ASKED):
        began = time.perf_counter()
        assert (await client.get(path)).status_code == 200
        took.append(time.perf_counter() - began)
    return statistics.quantiles(took, n=100)[98]


@pytest.mark.timeout(300)
async def test_2000_idle_streams_are_cheap_and_hurt_nobody(
    running: RunningService, capsys: pytest.CaptureFixture[str]
) -> None:
    client, process = running.client, psutil.Process(running.process.pid)
    gate = asyncio.Semaphore(AT_ONCE)

    async def create() -> str:
        async with gate:
            return (await client.post("/v1/conversations")).json()["id"]

    async def follow(name: str) -> asyncio.StreamWriter:
        async with gate:
            return await opened(client.base_url, name)

    names = await asyncio.gather(*(create() for _ in range(STREAMS)))
    path = f"/v1/conversations/{names[0]}"
    await p99(client, path)
    alone, before = await p99(client, path), process.memory_info().rss
    writers = await asyncio.gather(*(follow(name) for name in names))
    await asyncio.sleep(2)
    memory = (process.memory_info().rss - before) / 1e6 / STREAMS * 1_000
    cpu = sum(process.cpu_times()[:2])
    await asyncio.sleep(IDLE)
    idle = (sum(process.cpu_times()[:2]) - cpu) / IDLE * 1_000
    beside = await p99(client, path)

    with capsys.disabled():
        print(  # noqa: T201 - the figures
            f"\n{STREAMS} idle streams: {memory:.0f} MB per 1,000, {idle:.1f} ms CPU a second, "
            f"p99 of others {beside * 1_000:.1f} ms, without {alone * 1_000:.1f} ms"
        )
    for writer in writers:
        writer.close()
    assert memory < MOST_MEMORY
    assert beside < MOST_SLOWER * alone + NOISE
