"""Two replicas under load that are killed and frozen at random: nothing is lost, nothing happens twice."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.storage.database import Database
from tests.following import Following
from tests.invariants import violations
from tests.process import service
from tests.process.service import RunningService
from tests.scripted_model import CallTool, ModelRequest, Pause, Reply, ScriptedModel, Step

pytestmark = pytest.mark.chaos

CONVERSATIONS, TURNS = 40, 5
KILLS, FREEZES = 20, 5
LEASE = 2.0
ATTEMPTS = 4
# Seconds for all turns to end, the last kill long past.
LIMIT = 240

# What was finished, and when: the journal itself forgets it with the turn.
SEEN = """
CREATE TABLE journal_seen (key text, at timestamptz);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO journal_seen VALUES (NEW.turn_id || '/' || NEW.name, clock_timestamp());
    RETURN NEW;
END $$;
CREATE TRIGGER see AFTER INSERT ON journal FOR EACH ROW EXECUTE FUNCTION see();
"""


@dataclass
class Replicas:
    """Two places for a process each; what is killed there is started anew."""

    settings: dict[str, object]
    places: list[RunningService | None] = field(default_factory=lambda: [None, None])
    clients: dict[int, httpx.AsyncClient] = field(default_factory=dict[int, httpx.AsyncClient])
    restarting: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    async def start(self, place: int) -> None:
        running = await service.start(**self.settings)
        self.places[place] = running
        timeout = httpx.Timeout(4, pool=None)
        limits = httpx.Limits(max_connections=None)
        self.clients[place] = httpx.AsyncClient(
            base_url=running.client.base_url, timeout=timeout, limits=limits
        )

    def alive(self) -> Sequence[httpx.AsyncClient]:
        return list(self.clients.values())

    async def some(self) -> Sequence[httpx.AsyncClient]:
        while not self.clients:
            await asyncio.sleep(0.05)
        return self.alive()

    async def one(self, rng: random.Random) -> int:
        """A place with a running process."""
        while not (there := [n for n, each in enumerate(self.places) if each is not None]):
            await asyncio.sleep(0.05)
        return rng.choice(there)

    async def kill(self, place: int) -> None:
        running, self.places[place] = self.places[place], None
        client = self.clients.pop(place)
        assert running is not None
        await running.kill()
        await client.aclose()
        task = asyncio.ensure_future(self.start(place))
        self.restarting.add(task)
        task.add_done_callback(self.restarting.discard)

    async def freeze(self, place: int, seconds: float) -> None:
        running = self.places[place]
        assert running is not None
        running.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        running.process.send_signal(signal.SIGCONT)

    async def quiet(self) -> None:
        if self.restarting:
            await asyncio.wait(self.restarting)

    async def close(self) -> None:
        await self.quiet()
        for place, running in enumerate(self.places):
            if running is not None:
                os.kill(running.process.pid, signal.SIGCONT)
                await self.clients[place].aclose()
                await running.terminate()


@pytest.fixture
async def replicas(database: Database, model: ScriptedModel) -> AsyncGenerator[Replicas]:
    replicas = Replicas(
        {
            "database_url": database.url.render_as_string(hide_password=False).replace(
                "+asyncpg", ""
            ),
            "chat_model": "scripted",
            "chat_model_base_url": model.base_url,
            "chat_tools": "tests.tools",
            "chat_lease": LEASE,
            "chat_turn_attempts": ATTEMPTS,
            "chat_heartbeat": 1,
        }
    )
    await asyncio.gather(replicas.start(0), replicas.start(1))
    yield replicas
    await replicas.close()


def answers(notes: Path, rng: random.Random) -> Any:
    """A model that now and then calls tools, and takes seconds for what it says."""

    def answer(request: ModelRequest) -> Reply:
        results = 0
        for message in reversed(request.messages):
            if message["role"] == "user":
                break
            results += message["role"] == "tool"
        steps: list[Step] = []
        for word in range(rng.randrange(2, 8)):
            steps += [f"w{word} ", Pause(rng.uniform(0.05, 0.4))]
        if results < 3 and rng.random() < 0.5:
            for number in range(rng.randrange(1, 3)):
                args = {"path": str(notes), "seconds": rng.choice([0, 0.2])}
                steps.append(CallTool(f"call_{number}", "note", json.dumps(args)))
        return Reply(steps)

    return answer


async def talk(replicas: Replicas, number: int, done: list[Following]) -> None:
    """One conversation, turn by turn, by a client that never gives up."""
    conversation = await created(replicas)
    for turn in range(TURNS):
        following = Following(
            replicas.alive, conversation, f"{number}/{turn}", key=f"{number}/{turn}"
        )
        await following.to_the_end(LIMIT)
        done.append(following)


async def created(replicas: Replicas) -> str:
    while True:
        try:
            answer = await random.choice(await replicas.some()).post("/v1/conversations")  # noqa: S311 - any will do
        except httpx.TransportError:
            continue
        if answer.status_code == 201:
            return answer.json()["id"]
        await asyncio.sleep(0.1)


async def havoc(replicas: Replicas, rng: random.Random) -> None:
    todo = ["kill"] * KILLS + ["freeze"] * FREEZES
    rng.shuffle(todo)
    for what in todo:
        await asyncio.sleep(rng.uniform(0.3, 2))
        place = await replicas.one(rng)
        if what == "kill":
            await replicas.kill(place)
        else:
            await replicas.freeze(place, rng.uniform(0.5, 2 * LEASE))
    await replicas.quiet()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_nothing_is_lost_and_nothing_happens_twice(
    database: Database,
    replicas: Replicas,
    model: ScriptedModel,
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = random.Random(seed)  # noqa: S311 - to be the same again
    async with database.statement() as driver:
        await driver.execute(SEEN)
    notes = tmp_path / "notes"
    model.will_answer(answers(notes, rng))
    done: list[Following] = []
    async with asyncio.timeout(LIMIT + 60), asyncio.TaskGroup() as group:
        for number in range(CONVERSATIONS):
            group.create_task(talk(replicas, number, done))
        group.create_task(havoc(replicas, rng))

    await check_streams(replicas, done)
    await check_histories(replicas, done)
    async with database.statement() as driver:
        assert await violations(driver) == []
        rows = await driver.fetch("SELECT status, attempt, deaths, error FROM turns")
        finished = {row["key"]: row["at"].timestamp() for row in await driver.fetch(SELECT_SEEN)}
    assert len(rows) == CONVERSATIONS * TURNS
    assert "running" not in {row["status"] for row in rows}
    given_up = [row for row in rows if row["status"] != "completed"]
    assert {(row["status"], row["error"]["code"]) for row in given_up} <= {
        ("failed", "worker_lost")
    }
    assert {row["deaths"] for row in given_up} <= {ATTEMPTS - 1}
    assert max(row["deaths"] for row in rows) < ATTEMPTS
    effects = [json.loads(line) for line in notes.read_text().splitlines()]
    assert [e for e in effects if e["at"] > finished.get(e["key"], float("inf"))] == []
    assert model.refused == []
    keys = Counter(effect["key"] for effect in effects)
    with capsys.disabled():
        print(  # noqa: T201 - the figures
            f"\nseed {seed}: turns {dict(Counter(row['status'] for row in rows))}, attempts "
            f"{dict(Counter(row['attempt'] for row in rows))}, streams cut "
            f"{sum(each.cuts for each in done)} times, {len(keys)} tool calls of which "
            f"{sum(count > 1 for count in keys.values())} were cut off and made again, "
            f"{len(model.requests)} model requests"
        )


SELECT_SEEN = "SELECT key, min(at) AS at FROM journal_seen GROUP BY key"


async def check_streams(replicas: Replicas, done: Sequence[Following]) -> None:
    """What each client has put together is the log, byte for byte."""
    client = replicas.alive()[0]
    for each in done:
        assert set(each.refusals) <= {503}
        ids = [block.id for block in each.found]
        number = each.found[0].data["turn_number"]
        assert ids == [f"{number}-{seq}" for seq in range(1, len(ids) + 1)]
        turn_id = each.found[0].data["turn_id"]
        path = f"/v1/conversations/{each.conversation}/turns/{turn_id}/events"
        log = (await client.get(path)).content
        assert log == b"".join(block.raw for block in each.found)


async def check_histories(replicas: Replicas, done: Sequence[Following]) -> None:
    """Every message that was sent stands there once, in order."""
    client = replicas.alive()[0]
    sent: dict[str, list[str]] = {}
    for each in done:
        sent.setdefault(each.conversation, []).append(each.content)
    for conversation, contents in sent.items():
        path = f"/v1/conversations/{conversation}/messages"
        history = (await client.get(path)).json()["data"]
        assert [m["content"] for m in history if m["role"] == "user"] == contents
        assert [m["turn_number"] for m in history] == sorted(m["turn_number"] for m in history)
        times = [m["timestamp"] for m in history if m["role"] == "user"]
        assert times == sorted(times)
