"""What storage adds to turns that wait for their model, as a ratio to the same turns without it."""

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest

from app.bootstrap import Service
from app.caller import LOCAL_USER, Caller
from app.chat.runner import ChatWorkflowRunner
from app.chat.turn import Prompt
from app.frameworks.pydantic_ai.agent import PydanticAIAgent
from app.frameworks.pydantic_ai.models import OwnServer, opened_models
from app.frameworks.pydantic_ai.toolsets import load_tools
from app.ids import ConversationId, new_conversation_id, new_message_id, new_turn_id
from app.messages.message import ConversationMessage, Envelope, Role, Side, Text
from app.runs import TurnStatus
from app.steps import StepInput, StepResult
from tests.api.test_conversations import create
from tests.conftest import TOOLS
from tests.scripted_model import Gate, Hold, Reply, ScriptedModel

TURNS = 200
HELD = 2.0
LARGEST_RATIO = 1.5
POOL = 5


@pytest.mark.timeout(120)
async def test_200_held_turns_take_hardly_longer_with_storage_than_without(
    client: httpx.AsyncClient,
    model: ScriptedModel,
    service: Service,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The pool has five connections, of which the lease and the recorder keep one each."""
    async with opened_models("scripted", OwnServer(model.base_url, None)) as models:
        agent = PydanticAIAgent(models, retries=0, tools=load_tools([TOOLS], timeout=60))
        bare = await _timed(model, [_bare_turn(agent) for _ in range(TURNS)])
    conversations = [await create(client) for _ in range(TURNS)]
    stored = await _timed(model, [_stored_turn(service.runner, name) for name in conversations])

    with capsys.disabled():
        figures = f"bare {bare:.2f} s, stored {stored:.2f} s, ratio {stored / bare:.2f}"
        print(f"\n{TURNS} turns held {HELD} s: {figures}")  # noqa: T201 - the figure
    assert stored <= LARGEST_RATIO * bare
    assert service.database.engine.pool.status().startswith(f"Pool size: {POOL}")


async def _timed(model: ScriptedModel, turns: list[Coroutine[Any, Any, None]]) -> float:
    """From the first send to the last answer; the model holds all for two seconds once it has all."""
    gate = Gate()
    model.will_always(Reply([Hold(gate), "done"]))
    started = time.monotonic()
    running = asyncio.gather(*turns)
    await gate.reached(len(turns))
    await asyncio.sleep(HELD)
    gate.open()
    await running
    model.forget()
    return time.monotonic() - started


async def _stored_turn(runner: ChatWorkflowRunner, conversation: str) -> None:
    """Claim, log, finish and the read of the answer; without HTTP, as the bare one."""
    prompt = Prompt(content="hi", metadata={}, request_id=None, trace_id=None)
    sent = await runner.send_message(Caller(LOCAL_USER), ConversationId(UUID(conversation)), prompt)
    assert sent.stored.turn.output == "done"


async def _bare_turn(agent: PydanticAIAgent) -> None:
    items = [item async for item in agent.stream(_step())]
    assert isinstance(items[-1], StepResult)
    assert items[-1].status is TurnStatus.COMPLETED


def _step() -> StepInput:
    prompt = ConversationMessage(
        id=new_message_id(),
        role=Role.USER,
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        pieces=(Text("hi"),),
        envelope=Envelope(Side.REQUEST),
    )
    return StepInput(
        conversation_id=new_conversation_id(),
        turn_id=new_turn_id(),
        attempt=1,
        now=datetime(2026, 1, 1, tzinfo=UTC),
        user_id="local",
        prompt=prompt,
        history=(),
        model="scripted",
        instructions="Be brief.",
        time_limit=60,
        first_token_limit=60,
    )
