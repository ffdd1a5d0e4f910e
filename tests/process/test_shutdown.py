"""A shutdown ends in time, whatever tools are doing, and leaves nothing that others must wait for."""

import asyncio
import signal
import time

import pytest

from app.storage.database import opened_database
from tests.process.conftest import Starter
from tests.process.test_life import create, send
from tests.scripted_model import CallTool, Gate, Hold, ScriptedModel

pytestmark = pytest.mark.process

STUBBORN = {
    "a thread": CallTool("c", "block", '{"seconds": 60}'),
    "a coroutine": CallTool("c", "slow_to_stop"),
}


@pytest.mark.parametrize("second", [False, True], ids=["grace", "second signal"])
@pytest.mark.parametrize("tool", STUBBORN)
async def test_a_tool_that_does_not_stop_does_not_keep_the_process(
    started: Starter, model: ScriptedModel, tool: str, second: bool
) -> None:
    model.will_say(STUBBORN[tool])
    model.will_say("done elsewhere")
    settings = {"chat_lease": 60, "chat_tools": "tests.tools"}
    first = await started(**settings, chat_shutdown_grace=600 if second else 1)
    conversation = await create(first.client)
    sending = asyncio.ensure_future(send(first.client, conversation, "hi"))
    async with asyncio.timeout(10):
        while not model.requests:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
    began = time.monotonic()
    first.process.send_signal(signal.SIGTERM)
    if second:
        await asyncio.sleep(0.5)
        first.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        status = await first.process.wait()
    took = time.monotonic() - began
    await asyncio.wait([sending])

    assert status == 0
    assert took < (3 if second else 5)


async def test_a_process_whose_own_work_breaks_exits_and_its_turns_go_on_elsewhere(
    started: Starter, model: ScriptedModel, postgres_url: str
) -> None:
    """A process that cannot sweep or renew must not go on as if it could."""
    gate = Gate()
    model.will_say("half", Hold(gate))
    settings = {"database_url": postgres_url, "chat_auto_migrate": "on", "chat_lease": 2}
    first = await started(**settings)
    conversation = await create(first.client)
    sending = asyncio.ensure_future(send(first.client, conversation, "hi"))
    await gate.reached()
    async with (
        opened_database(postgres_url, pool_size=1) as database,
        database.statement() as driver,
    ):
        await driver.execute("ALTER TABLE workers RENAME COLUMN alive_until TO broken")
        async with asyncio.timeout(20):
            status = await first.process.wait()
        await driver.execute("ALTER TABLE workers RENAME COLUMN broken TO alive_until")
    await asyncio.wait([sending])

    assert status == 1
    model.will_say("elsewhere")
    second = await started(**settings)
    path = f"/v1/conversations/{conversation}/turns"
    async with asyncio.timeout(10):
        while (turn := (await second.client.get(path)).json()["data"][0])["status"] == "running":
            await asyncio.sleep(0.1)
    assert (turn["output"], turn["attempt"]) == ("elsewhere", 2)
