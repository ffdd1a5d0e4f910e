"""What a turn costs, beside a floor in the same run: `make bench`.

The floor is a bare relay of the model's stream, without storage, on the same server. Both are
measured in interleaved rounds; CPU comes from the operating system's accounting, ours and
PostgreSQL's apart. Figures are printed, and written as JSON.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tests.performance import flushes, replicas
from tests.postmasters import postmasters
from tests.process import service
from tests.scripted_model import Pause, Step

TOKENS = 200
PACES = (0.0, 0.005)
CONVERSATIONS = (1, 16, 64)
TURNS = 16
ROUNDS = 3


@dataclass(frozen=True)
class Round:
    """CPU in milliseconds per turn; `first_token` in milliseconds, of a streamed turn."""

    turns_per_second: float
    cpu: float
    postgres_cpu: float
    first_token: float


@dataclass(frozen=True)
class Figure:
    what: str
    pace_ms: float
    conversations: int
    rounds: int
    ours: Round
    floor: Round

    @property
    def line(self) -> str:
        ours, floor = self.ours, self.floor
        return (
            f"{self.what:>8}  {self.pace_ms:>3.0f} ms  {self.conversations:>3} conversations  "
            f"{ours.turns_per_second:7.1f} turns/s ({ours.turns_per_second / floor.turns_per_second:4.2f} x)  "
            f"CPU {ours.cpu:6.1f} ms ({ours.cpu / floor.cpu:4.1f} x) + PostgreSQL {ours.postgres_cpu:5.2f} ms  "
            f"first token {ours.first_token:6.1f} ms ({ours.first_token / floor.first_token:4.1f} x)"
        )


# ── the model and the floor, each a process of its own ───────────────────────────────────────────


def run_model(told: Any, pace: float) -> None:
    steps: list[Step] = []
    for number in range(TOKENS):
        steps += [f"w{number} ", *([Pause(pace)] if pace else [])]
    asyncio.run(replicas.always(steps, told))


def run_floor(told: Any, model_url: str) -> None:
    client = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))

    async def relay(request: Request) -> StreamingResponse:
        content = (await request.json())["content"]
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": content}]}

        async def deltas() -> AsyncGenerator[bytes]:
            async with client.stream("POST", f"{model_url}/chat/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        choices = json.loads(line[6:])["choices"]
                        text = choices[0]["delta"].get("content") if choices else None
                        if text:
                            yield f"data: {json.dumps({'delta': text})}\n\n".encode()
            yield b"data: [DONE]\n\n"

        return StreamingResponse(deltas(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/stream", relay, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    listener = uvicorn.Config(app, port=0, log_level="warning").bind_socket()
    told.send(f"http://127.0.0.1:{listener.getsockname()[1]}")
    asyncio.run(server.serve([listener]))


@asynccontextmanager
async def process_of(run: Callable[..., None], *arguments: Any) -> AsyncGenerator[tuple[str, int]]:
    """Its URL and process id."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield await asyncio.to_thread(ours.recv), process.pid or 0
    finally:
        process.kill()
        process.join()


# ── load ─────────────────────────────────────────────────────────────────────────────────────────


async def streamed(client: httpx.AsyncClient, path: str) -> float:
    """Seconds until the first token."""
    started, first = time.monotonic(), 0.0
    async with client.stream("POST", path, json={"content": "hi"}) as response:
        async for chunk in response.aiter_raw():
            if not first and b'"delta":' in chunk:
                first = time.monotonic() - started
    return first


async def blocking(client: httpx.AsyncClient, path: str) -> float:
    started = time.monotonic()
    response = await client.post(path, json={"content": "hi"})
    if response.status_code != 200:
        raise RuntimeError(response.text)
    return time.monotonic() - started


async def measure(
    cpu: Callable[[], tuple[float, float]],
    paths: list[str],
    turn: Callable[[str], Coroutine[Any, Any, float]],
) -> Round:
    """As many turns as there are to be, on these conversations at once."""
    before, started = cpu(), time.monotonic()
    each = max(1, TURNS // len(paths))

    async def talk(path: str) -> list[float]:
        return [await turn(path) for _ in range(each)]

    firsts = [first for found in await asyncio.gather(*map(talk, paths)) for first in found]
    took, after = time.monotonic() - started, cpu()
    turns = each * len(paths)
    return Round(
        turns_per_second=turns / took,
        cpu=(after[0] - before[0]) / turns * 1000,
        postgres_cpu=(after[1] - before[1]) / turns * 1000,
        first_token=statistics.median(firsts) * 1000,
    )


def cpu_of(*processes: psutil.Process) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


def median(rounds: list[Round]) -> Round:
    values = [asdict(each) for each in rounds]
    return Round(**{name: statistics.median(v[name] for v in values) for name in values[0]})


async def bench(pace: float, directory: Path) -> list[Figure]:
    async with (
        process_of(run_model, pace) as (model_url, _),
        process_of(run_floor, model_url) as (floor_url, floor_pid),
    ):
        running = await service.start(
            chat_data_dir=directory, chat_model="scripted", chat_model_base_url=model_url
        )
        try:
            return [
                await compare(running, floor_url, floor_pid, directory, pace, what, conversations)
                for what in ("stream", "blocking")
                for conversations in CONVERSATIONS
            ]
        finally:
            await running.terminate()


async def compare(
    running: service.RunningService,
    floor_url: str,
    floor_pid: int,
    directory: Path,
    pace: float,
    what: str,
    conversations: int,
) -> Figure:
    limits = httpx.Limits(max_connections=None)
    ours_process, floor_process = psutil.Process(running.process.pid), psutil.Process(floor_pid)
    async with (
        httpx.AsyncClient(base_url=running.client.base_url, timeout=120, limits=limits) as ours,
        httpx.AsyncClient(base_url=floor_url, timeout=120, limits=limits) as floor,
    ):
        suffix = "/stream" if what == "stream" else ""
        send = streamed if what == "stream" else blocking
        rounds: list[tuple[Round, Round]] = []
        for _ in range(ROUNDS):
            names = [
                (await ours.post("/v1/conversations")).json()["id"] for _ in range(conversations)
            ]
            paths = [f"/v1/conversations/{name}/messages{suffix}" for name in names]
            mine = await measure(
                lambda: (cpu_of(ours_process), cpu_of(*postmasters(directory))),
                paths,
                lambda path: send(ours, path),
            )
            theirs = await measure(
                lambda: (cpu_of(floor_process), 0.0),
                ["/stream"] * conversations,
                lambda path: streamed(floor, path),
            )
            rounds.append((mine, theirs))
    return Figure(
        what=what,
        pace_ms=pace * 1000,
        conversations=conversations,
        rounds=ROUNDS,
        ours=median([mine for mine, _ in rounds]),
        floor=median([theirs for _, theirs in rounds]),
    )


async def main(output: Path) -> None:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="cw-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        for pace in PACES:
            for figure in await bench(pace, directory / "data"):
                figures.append(figure)
                print(figure.line)  # noqa: T201 - the figures
    async with process_of(flushes.run_model) as (model_url, _):
        flushing = await flushes.flush_statistics(model_url)
    print(flushing.line)  # noqa: T201 - the figures
    with tempfile.TemporaryDirectory(prefix="cw-replicas-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        async with process_of(replicas.run_model) as (model_url, _):
            several = await replicas.measured(model_url, directory / "data")
    print("\n".join(several.lines))  # noqa: T201 - the figures
    document = {
        "turns": [asdict(figure) for figure in figures],
        "flushes": asdict(flushing),
        "replicas": asdict(several),
    }
    output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench.json"))
    asyncio.run(main(parser.parse_args(sys.argv[1:]).output))
