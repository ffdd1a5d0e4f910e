"""Who may write: claims, fences, and what is left of a turn whose owner has lost it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.caller import Caller
from app.errors import ConversationClosedError, NotFoundError, TurnInProgressError
from app.ids import (
    ConversationId,
    WorkerId,
    new_conversation_id,
    new_message_id,
    new_turn_id,
    new_worker_id,
)
from app.messages.codec import StoredMessage
from app.runs import BegunTurn, TurnStatus, Usage
from app.storage.database import Database
from app.storage.run_state_store import NewRun, NewTurn, RunStateStore, TurnEnd
from app.storage.transcript_store import TranscriptStore
from app.wire.event import Frame

ADA = Caller("ada")
runs, transcripts = RunStateStore(), TranscriptStore()


def message(role: str, content: str) -> StoredMessage:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return StoredMessage(new_message_id(), role, "complete", content, '{"v":1}', moment)


async def conversation(database: Database) -> ConversationId:
    new = NewRun(
        id=new_conversation_id(),
        user_id="ada",
        title=None,
        metadata={},
        config={},
        session_id=None,
        parent_workflow_id=None,
    )
    async with database.connection() as connection:
        return (await runs.create(connection, new)).id


async def claim(
    database: Database, run_id: ConversationId, worker_id: WorkerId | None = None
) -> BegunTurn | None:
    new = NewTurn(
        id=new_turn_id(),
        worker_id=worker_id or new_worker_id(),
        message=message("user", "hi"),
        title="hi",
        request_id="r",
        trace_id=None,
        key=None,
    )
    async with database.statement() as driver:
        return await runs.claim(driver, ADA, run_id, new)


async def claimed(
    database: Database, run_id: ConversationId, worker_id: WorkerId | None = None
) -> BegunTurn:
    begun = await claim(database, run_id, worker_id)
    assert begun is not None
    return begun


def end(
    begun: BegunTurn,
    *texts: str,
    status: TurnStatus = TurnStatus.COMPLETED,
    tokens: int | None = None,
) -> TurnEnd:
    turn = replace(
        begun.as_turn(),
        status=status,
        completed_at=begun.created_at,
        usage=Usage(input_tokens=tokens),
    )
    return TurnEnd(
        turn=turn,
        messages=[message("assistant", text) for text in texts],
        in_context=True,
        frames=[
            Frame(1, 99, f"turn.{status.value}", f'{{"type":"turn.{status.value}","seq":99,}}')
        ],
    )


async def finish(
    database: Database, begun: BegunTurn, *texts: str, tokens: int | None = None
) -> bool:
    how = end(begun, *(texts or ("answer",)), tokens=tokens)
    async with database.statement() as driver:
        return await runs.finish(driver, begun.claim, how)


async def force(database: Database, begun: BegunTurn) -> bool:
    """Takes the turn from its owner and ends it."""
    async with database.statement() as driver, driver.transaction():
        taken = await runs.take(driver, begun.claim)
        if taken is None:
            return False
        return await runs.finish(driver, taken[0], end(begun, status=TurnStatus.FAILED))


async def contents(database: Database) -> list[str]:
    async with database.statement() as driver:
        rows = await driver.fetch("SELECT content FROM messages ORDER BY run_id, seq")
    return [row["content"] for row in rows]


async def test_one_of_many_claims_wins(database: Database) -> None:
    run_id = await conversation(database)

    results = await asyncio.gather(*(claim(database, run_id) for _ in range(50)))

    assert sum(result is not None for result in results) == 1
    assert await contents(database) == ["hi"]


async def test_a_claim_waits_for_an_unrelated_change_instead_of_failing(
    database: Database,
) -> None:
    run_id = await conversation(database)
    async with database.transaction() as transaction:
        driver = (await transaction.get_raw_connection()).driver_connection
        assert driver is not None
        async with driver.transaction():
            await driver.execute("UPDATE runs SET title = 't' WHERE id = $1", run_id)
            waiting = asyncio.ensure_future(claim(database, run_id))
            await asyncio.sleep(0.2)
            assert not waiting.done()
    assert await waiting is not None


async def test_a_turn_can_be_finished_once(database: Database) -> None:
    begun = await claimed(database, await conversation(database))

    assert await finish(database, begun)
    assert not await finish(database, begun)
    assert await contents(database) == ["hi", "answer"]


async def test_an_owner_that_has_lost_its_turn_writes_nothing(database: Database) -> None:
    run_id = await conversation(database)
    old = await claimed(database, run_id)

    assert await force(database, old)
    assert not await finish(database, old)
    new = await claimed(database, run_id)
    assert not await finish(database, old)
    assert not await force(database, old)

    assert new.number == 2
    assert await finish(database, new)
    assert await contents(database) == ["hi", "hi", "answer"]


async def test_finish_and_force_race_and_exactly_one_ends_the_turn(database: Database) -> None:
    for _ in range(30):
        begun = await claimed(database, await conversation(database))

        results = await asyncio.gather(finish(database, begun), force(database, begun))

        assert sorted(results) == [False, True]


async def test_sums_are_exact_under_concurrency_and_unknown_stays_unknown(
    database: Database,
) -> None:
    run_id = await conversation(database)
    for tokens in (None, 3, None, 4):
        await finish(database, await claimed(database, run_id), tokens=tokens)

    async with database.connection() as connection:
        run = await runs.get(connection, ADA, run_id)

    assert run.usage.input_tokens == 7
    assert run.usage.output_tokens is None
    assert run.turn_count == 4


async def test_messages_of_a_finish_keep_their_order(database: Database) -> None:
    run_id = await conversation(database)
    many = [f"{n}" for n in range(20)]
    await finish(database, await claimed(database, run_id), *many)

    assert await contents(database) == ["hi", *many]


async def test_why_a_claim_is_refused(database: Database) -> None:
    idle, busy, closed = [await conversation(database) for _ in range(3)]
    begun = await claimed(database, busy)
    async with database.transaction() as transaction:
        await runs.close(transaction, ADA, closed)

    async with database.connection() as connection:
        assert await runs.refusal(connection, ADA, idle) is None
        busy_error = await runs.refusal(connection, ADA, busy)
        assert isinstance(busy_error, TurnInProgressError)
        assert busy_error.turn_id == begun.claim.turn_id
        assert isinstance(await runs.refusal(connection, ADA, closed), ConversationClosedError)
        assert isinstance(await runs.refusal(connection, Caller("eve"), idle), NotFoundError)


async def test_a_second_running_turn_is_impossible_even_by_hand(database: Database) -> None:
    begun = await claimed(database, await conversation(database))

    async with database.statement() as driver:
        with pytest.raises(Exception, match="one_live_turn_per_run"):
            await driver.execute(
                "INSERT INTO turns (id, run_id, number, status, first_message_seq, "
                "last_message_seq, created_at) VALUES ($1, $2, 9, 'running', 9, 9, now())",
                new_turn_id(),
                begun.claim.run_id,
            )


async def test_an_unknown_commit_is_settled_by_reading(database: Database) -> None:
    begun = await claimed(database, await conversation(database))
    async with database.statement() as driver:
        assert await transcripts.status(driver, begun.claim.turn_id) is TurnStatus.RUNNING
        await runs.finish(driver, begun.claim, end(begun, "answer"))
        assert await transcripts.status(driver, begun.claim.turn_id) is TurnStatus.COMPLETED
