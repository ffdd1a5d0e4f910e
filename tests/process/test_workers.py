"""`serve --workers N`: several processes on one port; one that dies is replaced, all stop together."""

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.following import Following, last_attempt
from tests.process import service
from tests.process.conftest import Starter
from tests.process.service import RunningService
from tests.process.test_life import create, send
from tests.scripted_model import Gate, Hold, Pause, Reply, ScriptedModel
from tests.sse import text_of

pytestmark = pytest.mark.process

SERVER_SETTINGS = {"chat_db_pool": 5, "chat_lease": 2}


async def until_serving(running: RunningService, count: int) -> None:
    async with asyncio.timeout(30):
        while len(running.events("serving")) < count:
            await asyncio.sleep(0.05)


def workers(running: RunningService) -> list[psutil.Process]:
    children = psutil.Process(running.process.pid).children()
    return [child for child in children if "--lifeline" in child.cmdline()]


async def until_gone(processes: Sequence[psutil.Process]) -> None:
    async with asyncio.timeout(20):
        while any(each.is_running() and each.status() != "zombie" for each in processes):
            await asyncio.sleep(0.05)


async def test_one_that_is_killed_is_replaced_and_its_streams_go_on_at_the_same_address(
    started: Starter, model: ScriptedModel
) -> None:
    running = await started("--workers", "3", **SERVER_SETTINGS)
    await until_serving(running, 3)
    model.will_always(Reply(["a ", *(step for _ in range(40) for step in ("b ", Pause(0.05)))]))
    conversations = [await create(running.client) for _ in range(12)]
    followers = [
        Following(lambda: [running.client], each, "hi", f"key-{each}") for each in conversations
    ]
    watching = [asyncio.ensure_future(each.to_the_end(60)) for each in followers]
    while not all(len(each.found) > 3 for each in followers):
        await asyncio.sleep(0.05)
    before = workers(running)
    before[0].kill()

    for each in watching:
        assert text_of(list(last_attempt(await each))) == "a " + "b " * 40

    await until_serving(running, 4)
    assert [(e["worker"], e["status"]) for e in running.events("worker_ended")] == [(1, -9)]
    after = workers(running)
    assert len(after) == 3
    assert len({each.pid for each in before} & {each.pid for each in after}) == 2
    assert await running.terminate() == 0
    await until_gone(after)


async def test_a_turn_is_seen_and_stopped_from_whichever_process_is_reached(
    started: Starter, model: ScriptedModel
) -> None:
    """Every request by a connection of its own, so that each may come to another process."""
    running = await started("--workers", "3", **SERVER_SETTINGS)
    await until_serving(running, 3)
    gate = Gate()
    model.will_say("half ", Hold(gate))
    conversation = await create(running.client)
    sending = asyncio.ensure_future(send(running.client, conversation, "hi"))
    await gate.reached()
    close = {"Connection": "close"}
    path = f"/v1/conversations/{conversation}"
    looks = [await running.client.get(f"{path}/turns", headers=close) for _ in range(12)]
    stopped = await running.client.post(f"{path}/cancel", headers=close)

    assert {turn["status"] for look in looks for turn in look.json()["data"]} == {"running"}
    assert (stopped.json()["status"], stopped.json()["output"]) == ("cancelled", "half ")
    assert (await sending).json()["code"] == "turn_cancelled"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_turns_end_and_a_second_does_not(
    started: Starter, model: ScriptedModel, number: signal.Signals
) -> None:
    running = await started("--workers", "2", **SERVER_SETTINGS, chat_shutdown_grace=60)
    await until_serving(running, 2)
    gate, never = Gate(), Gate()
    model.will_say("to ", Hold(gate), "its end")
    model.will_say("never", Hold(never))
    first, second = [await create(running.client) for _ in range(2)]
    ends = asyncio.ensure_future(send(running.client, first, "hi"))
    await gate.reached()
    does_not = asyncio.ensure_future(send(running.client, second, "hi"))
    await never.reached()
    all_of_them = workers(running)
    running.process.send_signal(number)
    await asyncio.sleep(0.5)
    gate.open()

    assert (await ends).json()["output"] == "to its end"
    began = time.monotonic()
    assert await running.send_signal(number) == 0
    assert time.monotonic() - began < 5
    await asyncio.wait([does_not])
    await until_gone(all_of_them)


async def test_workers_do_not_outlive_their_supervisor_nor_keep_its_port(
    started: Starter, model: ScriptedModel
) -> None:
    running = await started("--workers", "2", **SERVER_SETTINGS, chat_shutdown_grace=6)
    await until_serving(running, 2)
    gate = Gate()
    model.will_say("half ", Hold(gate))
    model.will_say("once more")
    conversation = await create(running.client)
    sending = asyncio.ensure_future(send(running.client, conversation, "hi"))
    await gate.reached()
    all_of_them = workers(running)

    running.process.kill()
    await asyncio.sleep(0.5)
    again = await started(
        "--workers", "2", **SERVER_SETTINGS, chat_port=running.client.base_url.port
    )

    assert any(each.is_running() for each in all_of_them)
    await until_gone(all_of_them)
    await asyncio.wait([sending])
    path = f"/v1/conversations/{conversation}/turns"
    async with asyncio.timeout(10):
        while (turn := (await again.client.get(path)).json()["data"][0])["status"] == "running":
            await asyncio.sleep(0.1)
    assert (turn["output"], turn["attempt"]) == ("once more", 2)


async def test_a_frozen_worker_does_not_keep_the_others_from_ending(started: Starter) -> None:
    running = await started("--workers", "2", **SERVER_SETTINGS)
    await until_serving(running, 2)
    all_of_them = workers(running)
    all_of_them[0].suspend()
    running.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.5)

    assert await running.send_signal(signal.SIGTERM) == 0

    await until_gone(all_of_them)
    assert running.events("killing_workers")


async def test_without_a_database_they_wait_for_it(started: Starter) -> None:
    away = "postgresql://u@127.0.0.1:1/d"
    running = await started("--workers", "2", database_url=away)
    await until_serving(running, 2)

    assert (await running.client.get("/health/ready")).status_code == 503
    assert await running.terminate() == 0


@pytest.mark.parametrize(
    ("count", "settings", "message"),
    [
        ("2", {"chat_auto_migrate": "off"}, "schema is behind"),
        ("4", {"chat_tools": "no_such_module"}, "no_such_module"),
        ("8", {"chat_db_pool": 20}, "8 workers with CHAT_DB_POOL=20 need 168 connections"),
    ],
    ids=["behind", "no tools", "too many"],
)
async def test_what_cannot_start_ends_with_one_line(
    directory: Path, count: str, settings: dict[str, object], message: str
) -> None:
    running = await service.launch("--workers", count, chat_data_dir=directory, **settings)
    async with asyncio.timeout(30):
        status = await running.process.wait()
    await running.kill()

    assert status == 1
    (line,) = running.log
    assert line["event"].startswith("chat-workflow: ")
    assert message in line["event"]
