"""What a turn costs: its statements, counted on the driver."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sqlalchemy import event

from app.bootstrap import Service, running_service
from app.settings import Settings
from tests.api.test_conversations import create
from tests.api.test_messages import send
from tests.conftest import client_of, delete_all
from tests.scripted_model import CallTool, ScriptedModel

BACKGROUND = (
    "workers",
    "AS held (run_id",  # twice a second, for all turns of the process
    "erased_at IS NOT NULL",
    "erased_at <",
    "pg_postmaster",
    "pg_catalog",
    "'jit'",
)

FLUSH = "FOR SHARE OF runs"


@pytest.fixture
async def statements(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> AsyncGenerator[tuple[Service, list[str]]]:
    """A service of its own, and the statements that its requests have sent so far."""
    seen: list[str] = []
    async with running_service(settings, postgres_url) as service:
        # What the service does once at its start is over by then; the next round is minutes away.
        await asyncio.sleep(1)

        def note(query: str) -> None:
            if not any(word in query for word in BACKGROUND):
                seen.append(query)

        def by_the_driver(record: Any) -> None:
            note(record.query)

        def checked_out(connection: Any, _record: object, _proxy: object) -> None:
            connection.driver_connection.add_query_logger(by_the_driver)

        def by_sqlalchemy(_connection: object, _cursor: object, query: str, *_: object) -> None:
            note(query)

        engine = service.database.engine.sync_engine
        event.listen(engine, "checkout", checked_out)
        event.listen(engine, "before_cursor_execute", by_sqlalchemy)
        yield service, seen
        await delete_all(service.database)


async def test_a_blocking_turn_is_claim_context_finish_and_one_read(
    statements: tuple[Service, list[str]],
) -> None:
    service, seen = statements
    async with client_of(service) as client:
        conversation = await create(client)
        await send(client, conversation, "warm up")
        seen.clear()

        await send(client, conversation, "hi")

    own = [query for query in seen if FLUSH not in query]
    assert [query.split()[:4] for query in own] == [
        ["WITH", "run", "AS", "("],
        ["WITH", "seen", "AS", "("],
        ["WITH", "run", "AS", "("],
        ["SELECT", "turns.id,", "turns.run_id,", "turns.number,"],
    ]
    # The log's writer works for all turns at once: some of them share a flush.
    assert len(seen) - len(own) <= 2


async def test_a_tool_call_costs_three_statements_more(
    statements: tuple[Service, list[str]], model: ScriptedModel
) -> None:
    """The request's entry, a look at the fence, and the call's entry."""
    service, seen = statements
    async with client_of(service) as client:
        conversation = await create(client)
        await send(client, conversation, "warm up")
        model.will_say(CallTool("c", "echo", '{"text": "x"}'))
        seen.clear()

        assert (await send(client, conversation, "hi")).json()["status"] == "completed"

    own = [query for query in seen if FLUSH not in query]
    assert [query.split()[:4] for query in own] == [
        ["WITH", "run", "AS", "("],
        ["WITH", "seen", "AS", "("],
        ["WITH", "live", "AS", "("],
        ["SELECT", "id", "FROM", "runs"],
        ["WITH", "live", "AS", "("],
        ["WITH", "run", "AS", "("],
        ["SELECT", "turns.id,", "turns.run_id,", "turns.number,"],
    ]


async def test_a_refused_send_costs_two_statements(
    statements: tuple[Service, list[str]],
) -> None:
    service, seen = statements
    async with client_of(service) as client:
        conversation = await create(client)
        await client.post(f"/v1/conversations/{conversation}/close")
        seen.clear()

        assert (await send(client, conversation, "hi")).status_code == 409

    assert len(seen) == 2
