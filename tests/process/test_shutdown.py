"""A shutdown ends in time, whatever tools are doing, and leaves nothing that others must wait for."""

import asyncio
import signal
import time

import pytest

from tests.process.conftest import Starter
from tests.process.test_life import create, send
from tests.scripted_model import CallTool, ScriptedModel

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
