"""Turns that nobody runs any more go on elsewhere or are ended, and only those."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import text

from app.chat.turn_journal import journal_of
from app.engine.forced_end import ForcedEnd
from app.engine.lease import Lease
from app.engine.local import LocalEngine
from app.engine.recovery import Recovery
from app.engine.takeover import Takeover
from app.errors import DatabaseUnavailableError, LostOwnershipError, OverloadedError
from app.events.stream_event import TurnStarted
from app.ids import ConversationId, WorkerId, new_turn_id, new_worker_id
from app.messages.message import ConversationMessage
from app.runs import BegunTurn, RestartReason
from app.storage.database import Database
from app.storage.event_log import Batch, EventLog
from app.storage.journal import Journal
from app.storage.worker_store import WorkerStore
from app.wire.event import TurnName, render
from app.wire.paths import Paths
from tests.postgres.test_fence import ADA, claimed, conversation, finish, runs, transcripts

workers, event_log, journal = WorkerStore(), EventLog(), Journal()
LENGTH = 15.0


class Holding:
    """A RunHandler whose turns run until they are stopped."""

    def __init__(self) -> None:
        self.begun: list[BegunTurn] = []

    async def execute(self, begun: BegunTurn) -> None:
        self.begun.append(begun)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


class Replica:
    """A process that runs turns, as far as recovery is concerned."""

    def __init__(
        self,
        database: Database,
        lease: Lease,
        *,
        length: float = 0,
        attempts: int = 2,
        max_turns: int = 100,
    ) -> None:
        """With a length of 0 nobody is given time after the database's start."""
        self.handler = Holding()
        self.forced_end = ForcedEnd(database, runs, transcripts, event_log, Paths())
        self.engine = LocalEngine(
            self.handler, lease, self.forced_end, max_turns=max_turns, on_end=lambda _: None
        )
        self.recovery = Recovery(
            database,
            runs,
            workers,
            self.engine,
            Takeover(database, runs, transcripts, event_log),
            self.forced_end,
            lease=lease,
            lease_length=length,
            attempts=attempts,
        )

    async def sweep(self) -> int:
        swept = await self.recovery.sweep()
        await asyncio.sleep(0)
        return swept


@pytest.fixture
async def lease(database: Database) -> AsyncGenerator[Lease]:
    lease = Lease(database, workers, length=LENGTH)
    await lease.register()
    yield lease
    await lease.release()


@pytest.fixture
async def replica(database: Database, lease: Lease) -> AsyncGenerator[Replica]:
    replica = Replica(database, lease)
    yield replica
    await replica.engine.stop_all()


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


async def died(database: Database, worker_id: WorkerId) -> None:
    async with database.statement() as driver:
        await driver.execute(
            "UPDATE workers SET alive_until = now() - interval '1 s' WHERE id = $1", worker_id
        )


async def released(database: Database, worker_id: WorkerId) -> None:
    async with database.statement() as driver:
        await workers.release(driver, worker_id)


async def test_a_turn_of_a_dead_worker_is_begun_again_here(
    database: Database, replica: Replica
) -> None:
    lost = await claimed(database, await conversation(database), await worker(database, -1))

    assert await replica.sweep() == 1

    (begun,) = replica.handler.begun
    assert begun.claim.turn_id == lost.claim.turn_id
    assert begun.claim.fence == lost.claim.fence + 1
    assert (begun.attempt, begun.restarted) == (2, RestartReason.WORKER_LOST)
    assert (begun.prompt, begun.user_message_id) == ("hi", lost.user_message_id)
    assert begun.created_at == lost.created_at < begun.started_at
    assert not await finish(database, lost)
    assert await finish(database, begun)


async def test_a_missing_worker_counts_as_dead(database: Database, replica: Replica) -> None:
    await claimed(database, await conversation(database), new_worker_id())

    assert await replica.sweep() == 1
    assert replica.handler.begun[0].restarted is RestartReason.WORKER_LOST


async def test_a_turn_of_a_living_worker_is_left_alone(
    database: Database, replica: Replica
) -> None:
    running = await claimed(database, await conversation(database), await worker(database, 60))

    assert await replica.sweep() == 0
    assert await finish(database, running)


async def test_what_was_handed_over_goes_on_at_once_and_is_no_death(
    database: Database, lease: Lease
) -> None:
    run_id = await conversation(database)
    await claimed(database, run_id, first := await worker(database, 60))
    for attempt in range(2, 6):
        await released(database, first)
        replica = Replica(database, lease, length=1000)
        assert await replica.sweep() == 1
        (begun,) = replica.handler.begun
        assert (begun.attempt, begun.restarted) == (attempt, RestartReason.HANDED_OVER)
        await replica.engine.stop_all()
        first = await worker(database, 60)
        async with database.statement() as driver:
            await driver.execute("UPDATE runs SET worker_id = $1 WHERE id = $2", first, run_id)


async def test_an_expired_lease_is_left_alone_after_the_database_has_started(
    database: Database, lease: Lease
) -> None:
    await claimed(database, await conversation(database), await worker(database, -1))

    assert await Replica(database, lease, length=100_000).sweep() == 0


async def test_after_so_many_deaths_a_turn_is_given_up(database: Database, lease: Lease) -> None:
    run_id = await conversation(database)
    lost = await claimed(database, run_id, await worker(database, -1))
    first = Replica(database, lease, attempts=3)
    assert await first.sweep() == 1
    await died(database, lease.worker_id)
    second = Lease(database, workers, length=LENGTH)
    await second.register()
    other = Replica(database, second, attempts=3)
    assert await other.sweep() == 1
    assert other.handler.begun[0].attempt == 3
    await died(database, second.worker_id)
    third = Lease(database, workers, length=LENGTH)
    await third.register()

    last = Replica(database, third, attempts=3)
    assert await last.sweep() == 1

    assert last.handler.begun == []
    assert await status(database, lost) == ("failed", "worker_lost")
    assert (await claimed(database, run_id, third.worker_id)).number == 2
    for each in (first, other):
        await each.engine.stop_all()


async def test_a_turn_that_was_to_be_cancelled_is_not_begun_again(
    database: Database, replica: Replica
) -> None:
    run_id = await conversation(database)
    lost = await claimed(database, run_id, await worker(database, -1))
    async with database.statement() as driver:
        assert await runs.request_cancel(driver, ADA, run_id, None)

    assert await replica.sweep() == 1

    assert replica.handler.begun == []
    assert await status(database, lost) == ("cancelled", None)


async def test_a_cancel_that_comes_between_look_and_takeover_is_seen(
    database: Database, lease: Lease
) -> None:
    run_id = await conversation(database)
    await claimed(database, run_id, await worker(database, -1))
    takeover = Takeover(database, runs, transcripts, event_log)
    async with database.statement() as driver:
        (orphan,) = await runs.orphans(
            driver,
            worker_id=lease.worker_id,
            held=[],
            expired_too=True,
            lease=timedelta(),
            limit=9,
        )
        await runs.request_cancel(driver, ADA, run_id, None)

    assert await takeover.take(orphan, lease.worker_id) is None


async def test_an_own_turn_that_nobody_holds_is_begun_again(
    database: Database, lease: Lease, replica: Replica
) -> None:
    held = await claimed(database, await conversation(database), lease.worker_id)
    dropped = await claimed(database, await conversation(database), lease.worker_id)
    replica.engine.start(held)

    assert await replica.sweep() == 1

    assert [begun.claim.turn_id for begun in replica.handler.begun] == [
        held.claim.turn_id,
        dropped.claim.turn_id,
    ]
    assert await finish(database, held)


async def test_a_turn_that_is_slow_to_stop_is_not_begun_beside_itself(
    database: Database, replica: Replica
) -> None:
    slow = await claimed(database, await conversation(database), gone := await worker(database, 60))
    replica.engine.start(slow)
    await released(database, gone)

    assert await replica.sweep() == 0


async def test_of_several_sweeps_one_has_a_turn(database: Database) -> None:
    for _ in range(5):
        await claimed(database, await conversation(database), new_worker_id())
    replicas: list[Replica] = []
    for _ in range(4):
        await (lease := Lease(database, workers, length=LENGTH)).register()
        replicas.append(Replica(database, lease))

    swept = await asyncio.gather(*(replica.sweep() for replica in replicas))

    assert sum(swept) == 5
    assert sum(len(replica.handler.begun) for replica in replicas) == 5
    for replica in replicas:
        await replica.engine.stop_all()


async def test_what_has_no_room_here_is_left_for_others(database: Database, lease: Lease) -> None:
    for _ in range(3):
        await claimed(database, await conversation(database), new_worker_id())
    replica = Replica(database, lease, max_turns=2)

    assert await replica.sweep() == 2
    assert await replica.sweep() == 0
    await replica.engine.stop_all()
    assert await Replica(database, lease).recovery.sweep() == 3


async def test_who_shuts_down_takes_nothing(database: Database, replica: Replica) -> None:
    await claimed(database, await conversation(database), new_worker_id())
    await replica.engine.drain(0)

    assert await replica.sweep() == 0


async def test_the_next_attempt_goes_on_behind_what_was_shown(
    database: Database, replica: Replica
) -> None:
    lost = await claimed(database, await conversation(database), gone := await worker(database, 60))
    prompt = await prompt_of(database, lost)
    name = TurnName(lost.claim.run_id, lost.claim.turn_id, 1, Paths())
    frames = [
        render(TurnStarted(lost.as_turn(), prompt), seq, name, lost.created_at) for seq in (1, 2, 3)
    ]
    async with database.statement() as driver:
        assert await event_log.append(driver, [Batch(lost.claim, frames)])
    await died(database, gone)

    assert await replica.sweep() == 1

    assert replica.handler.begun[0].last_seq == 3
    async with database.statement() as driver:
        assert not await event_log.append(driver, [Batch(lost.claim, frames)])


async def prompt_of(database: Database, begun: BegunTurn) -> ConversationMessage:
    async with database.statement() as driver:
        return await transcripts.prompt(driver, begun.claim.turn_id)


async def test_the_journal_is_kept_for_the_next_attempt_and_gone_with_the_turn(
    database: Database, replica: Replica
) -> None:
    lost = await claimed(database, await conversation(database), gone := await worker(database, 60))
    other = await claimed(database, await conversation(database), gone)
    async with database.statement() as driver:
        for claim in (lost.claim, other.claim):
            assert await journal.record(driver, claim, "tool/1/a/1", '{"n":1}')
        assert await journal.record(driver, lost.claim, "tool/1/a/1", "again")
    await died(database, gone)
    await replica.sweep()
    mine, _ = replica.handler.begun

    async with database.statement() as driver:
        assert not await journal.record(driver, lost.claim, "tool/1/b/1", "late")
        assert await journal.record(driver, mine.claim, "tool/1/b/1", "2")
        assert await journal.entries(driver, mine.claim) == {
            "tool/1/a/1": '{"n":1}',
            "tool/1/b/1": "2",
        }
    assert await finish(database, mine)
    async with database.statement() as driver:
        assert await journal.entries(driver, mine.claim) == {}
        assert await journal.entries(driver, other.claim) == {"tool/1/a/1": '{"n":1}'}


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


async def test_a_worker_that_is_dead_by_the_databases_clock_does_not_come_to_life_again(
    database: Database,
) -> None:
    dead = await worker(database, -1)

    async with database.statement() as driver:
        assert not await workers.renew(driver, dead, timedelta(seconds=60))


async def test_turns_are_stopped_in_time_though_the_database_hangs(database: Database) -> None:
    lease = Lease(database, workers, length=1.5)
    await lease.register()
    lost = asyncio.Event()

    async def on_loss() -> None:
        lost.set()

    async with database.transaction() as transaction:
        await transaction.execute(text("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE"))
        keeping = asyncio.ensure_future(lease.keep(on_loss))
        started = asyncio.get_running_loop().time()
        async with asyncio.timeout(5):
            await lost.wait()
        assert asyncio.get_running_loop().time() - started < 1.5
        assert not lease.is_held
    async with asyncio.timeout(5):
        while not lease.is_held:
            await asyncio.sleep(0.05)
    await lease.release()
    async with asyncio.timeout(5):
        await keeping
    assert not lease.is_held


async def test_who_has_lost_its_right_hands_over_what_it_had(
    database: Database, replica: Replica
) -> None:
    lease = Lease(database, workers, length=1)
    await lease.register()
    running = await claimed(database, await conversation(database), lease.worker_id)
    async with database.statement() as driver:
        await driver.execute(
            "UPDATE workers SET alive_until = now() WHERE id = $1", lease.worker_id
        )

    async def on_loss() -> None:
        pass

    keeping = asyncio.ensure_future(lease.keep(on_loss))
    async with asyncio.timeout(5):
        while not await replica.sweep():
            await asyncio.sleep(0.05)
    await lease.release()
    await keeping

    assert replica.handler.begun[0].claim.turn_id == running.claim.turn_id
    assert replica.handler.begun[0].attempt == 2


async def test_a_locked_row_does_not_hold_up_the_others(
    database: Database, lease: Lease, replica: Replica
) -> None:
    """Its turn is the first in order, and must be ended by force."""
    run_ids = sorted([await conversation(database) for _ in range(3)])
    for run_id in run_ids:
        await claimed(database, run_id, new_worker_id())
    async with database.statement() as driver, driver.transaction():
        await runs.request_cancel(driver, ADA, run_ids[0], None)
    async with database.statement() as driver, driver.transaction():
        await driver.execute("SELECT FROM runs WHERE id = $1 FOR UPDATE", run_ids[0])
        async with asyncio.timeout(2):
            assert await replica.sweep() == 2
    assert await replica.sweep() == 1


async def test_who_freezes_in_the_middle_of_a_transaction_loses_it(
    database: Database, replica: Replica
) -> None:
    await claimed(database, run_id := await conversation(database), new_worker_id())
    with pytest.raises(DatabaseUnavailableError):
        await _locked_for(database, run_id, replica)

    assert await replica.sweep() == 1


async def _locked_for(database: Database, run_id: ConversationId, replica: Replica) -> None:
    """Until the database has had enough of it."""
    async with database.statement() as driver, driver.transaction():
        await driver.execute("SELECT FROM runs WHERE id = $1 FOR UPDATE", run_id)
        assert await replica.sweep() == 0
        await asyncio.sleep(5.5)


async def test_an_old_right_is_handed_over_also_when_that_takes_several_tries(
    database: Database, replica: Replica
) -> None:
    """The database is away for longer than the lease; nobody has died."""
    lease = Lease(database, workers, length=1)
    await lease.register()
    first = lease.worker_id
    await claimed(database, await conversation(database), first)
    lost = asyncio.Event()

    async def on_loss() -> None:
        lost.set()

    keeping = asyncio.ensure_future(lease.keep(on_loss))
    async with database.statement() as driver:
        await driver.execute("ALTER TABLE workers RENAME TO away")
        await lost.wait()
        await asyncio.sleep(1)
        await driver.execute("ALTER TABLE away RENAME TO workers")
        async with asyncio.timeout(5):
            while not lease.is_held:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)
        released_at = await driver.fetchval("SELECT released_at FROM workers WHERE id = $1", first)
    await lease.release()
    await keeping

    assert released_at is not None
    assert await replica.sweep() == 1
    assert replica.handler.begun[0].restarted is RestartReason.HANDED_OVER


async def test_room_is_kept_for_turns_that_wait_for_a_process(
    database: Database, lease: Lease
) -> None:
    replica = Replica(database, lease, max_turns=2)
    held = [await claimed(database, await conversation(database), lease.worker_id) for _ in "12"]
    for begun in held:
        replica.engine.start(begun)
    await claimed(database, await conversation(database), new_worker_id())
    assert await replica.sweep() == 0
    await finish(database, held[0])
    await replica.engine.stop(held[0].claim.turn_id, 1)

    with pytest.raises(OverloadedError), replica.engine.claiming(new_turn_id()):
        pass
    assert await replica.sweep() == 1
    await finish(database, held[1])
    await replica.engine.stop(held[1].claim.turn_id, 1)
    assert await replica.sweep() == 0
    with replica.engine.claiming(new_turn_id()):
        pass
    await replica.engine.stop_all()


async def test_a_process_that_was_frozen_does_nothing_more_although_its_turn_is_still_its_own(
    database: Database,
) -> None:
    """Its lease has run out by its own clock; another may take the turn in this moment."""
    lease = Lease(database, workers, length=0.6)
    await lease.register()
    begun = await claimed(database, await conversation(database), lease.worker_id)
    of_turn = await journal_of(database, journal, begun, lease.is_current)
    await of_turn.require_ours()

    await asyncio.sleep(0.5)  # nobody renews, as when it is frozen

    async with database.statement() as driver:
        assert await journal.is_live(driver, begun.claim)
    with pytest.raises(LostOwnershipError):
        await of_turn.require_ours()
    await lease.release()
