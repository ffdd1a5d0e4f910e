"""A process whose clock is an hour off does no harm: only the database's clock counts."""

import asyncio
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from app.storage.database import Database
from tests.process import service
from tests.process.service import RunningService
from tests.scripted_model import CallTool, Gate, Hold, Reply, ScriptedModel

pytestmark = pytest.mark.chaos


def faketime() -> Path:
    """Debian's library, wherever this architecture has it."""
    listed = subprocess.run(["dpkg", "-L", "libfaketime"], capture_output=True, check=True)  # noqa: S607 - Debian's own
    (library,) = [
        line for line in listed.stdout.decode().split() if line.endswith("/libfaketime.so.1")
    ]
    return Path(library)


async def started(database: Database, model: ScriptedModel, clock: str) -> RunningService:
    return await service.start(
        database_url=database.url.render_as_string(hide_password=False).replace("+asyncpg", ""),
        chat_model="scripted",
        chat_model_base_url=model.base_url,
        chat_tools="tests.tools",
        chat_lease=2,
        ld_preload=faketime(),
        faketime=clock,
        faketime_dont_fake_monotonic=1,
    )


async def send(client: httpx.AsyncClient, conversation: str) -> httpx.Response:
    path = f"/v1/conversations/{conversation}/messages"
    return await client.post(path, json={"content": "hi"})


@pytest.mark.parametrize("clock", ["+1h", "-1h"])
async def test_a_clock_that_is_an_hour_off_does_no_harm(
    database: Database, model: ScriptedModel, clock: str
) -> None:
    wrong, right = [await started(database, model, each) for each in (clock, "+0")]
    gates = [Gate(), Gate()]
    conversations: list[str] = []
    sending: list[asyncio.Future[httpx.Response]] = []
    for running, gate in zip((wrong, right), gates, strict=True):
        model.will(
            Reply(["well, ", CallTool("c", "echo", '{"text": "x"}')]), Reply([Hold(gate), "it is"])
        )
        conversations.append((await running.client.post("/v1/conversations")).json()["id"])
        sending.append(asyncio.ensure_future(send(running.client, conversations[-1])))
        await gate.reached()

    # Two leases later both still have their turns.
    await asyncio.sleep(4)
    for gate in gates:
        gate.open()
    answers = [(await each).json() for each in sending]

    assert [(each["status"], each["attempt"]) for each in answers] == [("completed", 1)] * 2
    async with database.connection() as connection:
        now = (await connection.execute(text("SELECT now()"))).scalar_one()
    for conversation in conversations:
        path = f"/v1/conversations/{conversation}/messages"
        history = (await right.client.get(path)).json()["data"]
        times = [datetime.fromisoformat(message["timestamp"]) for message in history]
        assert len(times) == 5
        assert times == sorted(times)
        assert now - times[0] < timedelta(minutes=1)
        assert times[-1] <= now

    # And each finds what the other leaves behind.
    gate = Gate()
    model.will(
        Reply(["well, ", CallTool("d", "echo", '{"text": "x"}')]), Reply(["half", Hold(gate)])
    )
    lost = asyncio.ensure_future(send(wrong.client, conversations[0]))
    await gate.reached()
    model.will_say("by the other")
    await wrong.kill()
    await asyncio.wait([lost])
    async with asyncio.timeout(10):
        path = f"/v1/conversations/{conversations[0]}/turns"
        while (turn := (await right.client.get(path)).json()["data"][0])["status"] == "running":
            await asyncio.sleep(0.1)
    assert (turn["output"], turn["attempt"]) == ("by the other", 2)
    path = f"/v1/conversations/{conversations[0]}/messages"
    history = (await right.client.get(path)).json()["data"]
    times = [datetime.fromisoformat(message["timestamp"]) for message in history]
    assert times == sorted(times)
    await right.terminate()
