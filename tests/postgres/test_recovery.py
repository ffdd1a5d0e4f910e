"""Turns whose worker is gone are ended, and only those."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from app.engine.forced_end import ForcedEnd
from app.engine.lease import Lease
from app.engine.recovery import Recovery
from app.ids import WorkerId, new_worker_id
from app.runs import BegunTurn
from app.storage.database import Database
from app.storage.event_log import EventLog
from app.storage.worker_store import WorkerStore
from app.wire.paths import Paths
from tests.postgres.test_fence import ADA, claimed, conversation, runs, transcripts

workers = WorkerStore()
LENGTH = 15.0


@pytest.fixture
async def lease(database: Database) -> AsyncGenerator[Lease]:
    lease = Lease(database, workers, length=LENGTH)
    await lease.register()
    yield lease
    await lease.release()


def recovery(database: Database, lease: Lease, *held: BegunTurn, length: float = 0) -> Recovery:
    """With a length of 0 nobody is given time after the database's start."""
    turns = frozenset(turn.claim.turn_id for turn in held)
    forced_end = ForcedEnd(database, runs, transcripts, EventLog(), Paths())
    return Recovery(
        database, runs, workers, forced_end, lease=lease, lease_length=length, held=lambda: turns
    )


async def worker(database: Database, alive_for: float) -> WorkerId:
    worker_id = new_worker_id()
    async with database.statement() as driver:
        await workers.register(driver, worker_id, timedelta(seconds=alive_for))
    return worker_id


async def status(database: Database, begun: BegunTurn) -> tuple[str, str | None]:
    async with database.connection() as connection:
        claim = begun.claim
        turn = (await transcripts.turn(connection, ADA, claim.run_id, claim.turn_id)).turn
    code = None if turn.error is None else str(turn.error["code"])
    return turn.status.value, code


async def test_a_turn_of_a_dead_worker_is_ended_and_the_conversation_goes_on(
    database: Database, lease: Lease
) -> None:
    run_id = await conversation(database)
    lost = await claimed(database, run_id, await worker(database, alive_for=-1))

    assert await recovery(database, lease).sweep() == 1

    assert await status(database, lost) == ("failed", "worker_lost")
    assert (await claimed(database, run_id, lease.worker_id)).number == 2


async def test_a_missing_worker_counts_as_dead(database: Database, lease: Lease) -> None:
    lost = await claimed(database, await conversation(database), new_worker_id())

    assert await recovery(database, lease).sweep() == 1
    assert await status(database, lost) == ("failed", "worker_lost")


async def test_a_turn_of_a_living_worker_is_left_alone(database: Database, lease: Lease) -> None:
    running = await claimed(database, await conversation(database), await worker(database, 60))

    assert await recovery(database, lease).sweep() == 0
    assert await status(database, running) == ("running", None)


async def test_a_released_worker_is_dead_at_once(database: Database, lease: Lease) -> None:
    gone = await worker(database, 60)
    await claimed(database, await conversation(database), gone)
    async with database.statement() as driver:
        await workers.release(driver, gone)

    assert await recovery(database, lease, length=1000).sweep() == 1


async def test_an_expired_lease_is_left_alone_after_the_database_has_started(
    database: Database, lease: Lease
) -> None:
    await claimed(database, await conversation(database), await worker(database, -1))

    assert await recovery(database, lease, length=100_000).sweep() == 0


async def test_an_own_turn_that_nobody_holds_is_ended(database: Database, lease: Lease) -> None:
    held = await claimed(database, await conversation(database), lease.worker_id)
    dropped = await claimed(database, await conversation(database), lease.worker_id)

    assert await recovery(database, lease, held).sweep() == 1

    assert await status(database, held) == ("running", None)
    assert await status(database, dropped) == ("failed", "worker_lost")


async def test_of_several_sweeps_one_ends_a_turn(database: Database, lease: Lease) -> None:
    for _ in range(5):
        await claimed(database, await conversation(database), new_worker_id())

    ended = await asyncio.gather(*(recovery(database, lease).sweep() for _ in range(4)))

    assert sum(ended) == 5


async def test_dead_workers_are_forgotten_when_no_run_points_to_them(
    database: Database, lease: Lease
) -> None:
    old, pointed_at = await worker(database, -200_000), await worker(database, -200_000)
    await claimed(database, await conversation(database), pointed_at)
    async with database.statement() as driver:
        await workers.forget_dead(driver, keep=timedelta(days=1))
        rows = await driver.fetch("SELECT id FROM workers")

    ids = {row["id"] for row in rows}
    assert old not in ids
    assert {pointed_at, lease.worker_id} <= ids


async def test_a_lease_is_renewed_and_lost_when_its_row_is_gone(database: Database) -> None:
    lease = Lease(database, workers, length=0.6)
    await lease.register()
    first = lease.worker_id
    lost = asyncio.Event()

    async def on_loss() -> None:
        lost.set()

    keeping = asyncio.ensure_future(lease.keep(on_loss))
    await asyncio.sleep(1)
    async with database.statement() as driver:
        alive = await driver.fetchval(
            "SELECT alive_until > now() FROM workers WHERE id = $1", first
        )
        assert alive
        assert not lost.is_set()
        await workers.release(driver, first)
    async with asyncio.timeout(5):
        await lost.wait()
        await asyncio.sleep(0.3)
    keeping.cancel()
    await asyncio.wait([keeping])

    assert lease.worker_id != first
    async with database.statement() as driver:
        assert await workers.renew(driver, lease.worker_id, timedelta(seconds=1))
        assert not await workers.renew(driver, first, timedelta(seconds=1))
