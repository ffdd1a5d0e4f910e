"""What is removed in time, and by whom: left-over content of erased conversations, old events."""

from datetime import timedelta

import pytest

from app.caller import Caller
from app.errors import NotFoundError
from app.ids import TurnId
from app.privacy.erasure import Erasure
from app.storage.database import Database
from app.storage.erasure_store import CONTENT_TABLES, ErasureStore
from app.storage.event_log import EventLog
from app.storage.idempotency_store import IdempotencyStore, RequestKey
from app.storage.tables import metadata
from app.streaming.pruning import LOCK, Pruning
from tests.postgres.test_fence import ADA, claimed, conversation, finish


async def never(_turn_id: TurnId) -> None:
    raise AssertionError("no turn runs here")


async def count(database: Database, table: str) -> int:
    async with database.statement() as driver:
        return await driver.fetchval(f"SELECT count(*) FROM {table}")  # noqa: S608 - our tables


async def test_what_a_killed_erasure_left_behind_is_purged(database: Database) -> None:
    run_id = await conversation(database)
    await finish(database, await claimed(database, run_id))
    async with database.transaction() as transaction:
        assert await ErasureStore().bury(transaction, ADA, run_id) == (None, 2)
    assert await count(database, "messages") == 2

    await Erasure(database, ErasureStore(), stop_turn=never).purge_left_over()

    for table in CONTENT_TABLES:
        assert await count(database, table.name) == 0
    assert await count(database, "runs") == 1


async def test_a_tombstone_answers_for_thirty_days_and_then_is_gone(database: Database) -> None:
    run_id = await conversation(database)
    erasure = Erasure(database, ErasureStore(), stop_turn=never)
    await erasure.erase_conversation(ADA, run_id)
    await erasure.erase_conversation(ADA, run_id)
    with pytest.raises(NotFoundError):
        await erasure.erase_conversation(Caller("eve"), run_id)

    async with database.statement() as driver:
        await driver.execute("UPDATE runs SET erased_at = erased_at - interval '31 days'")
    await erasure.purge_left_over()

    assert await count(database, "runs") == 0
    with pytest.raises(NotFoundError):
        await erasure.erase_conversation(ADA, run_id)


def test_every_table_that_names_a_run_is_purged() -> None:
    holders = {table for table in metadata.tables.values() if "run_id" in table.c}

    assert holders == set(CONTENT_TABLES)


@pytest.fixture
def pruning(database: Database) -> Pruning:
    return Pruning(database, EventLog(), IdempotencyStore(), event_retention=3600)


async def old_turn(database: Database, hours: int) -> None:
    await finish(database, await claimed(database, await conversation(database)))
    async with database.statement() as driver:
        await driver.execute(
            "UPDATE turns SET completed_at = now() - $1::interval WHERE completed_at > now() - "
            "interval '1 minute'",
            timedelta(hours=hours),
        )


async def test_events_are_kept_for_their_time_only(database: Database, pruning: Pruning) -> None:
    await old_turn(database, 2)
    await old_turn(database, 0)

    await pruning.prune()

    assert await count(database, "events") == 1
    assert await count(database, "messages") == 4


async def test_one_process_prunes_at_a_time(database: Database, pruning: Pruning) -> None:
    await old_turn(database, 2)

    async with database.locked(LOCK) as driver:
        assert driver is not None
        await pruning.prune()
        assert await count(database, "events") == 1

    await pruning.prune()
    assert await count(database, "events") == 0


async def test_idempotency_keys_are_kept_for_a_day(database: Database, pruning: Pruning) -> None:
    run_id = await conversation(database)
    keys = IdempotencyStore()
    async with database.connection() as connection:
        for name in ("old", "new"):
            await keys.add(connection, RequestKey("ada", "create", name, "h"), run_id)
    async with database.statement() as driver:
        await driver.execute(
            "UPDATE idempotency_keys SET created_at = now() - interval '25 hours' WHERE key = 'old'"
        )

    await pruning.prune()

    async with database.connection() as connection:
        assert await keys.find(connection, RequestKey("ada", "create", "old", "h")) is None
        assert await keys.find(connection, RequestKey("ada", "create", "new", "h")) is not None
