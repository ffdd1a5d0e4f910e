"""The one writer: batches, what happens when one of them cannot be written, and who is told."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from app.errors import LostOwnershipError
from app.events.stream_event import TextDelta
from app.ids import new_message_id
from app.runs import BegunTurn
from app.storage.database import Database, Driver
from app.storage.event_log import Batch, EventLog
from app.streaming.followers import Followers
from app.streaming.recorder import Recorder, TurnLog
from app.wire.paths import Paths
from tests.postgres.test_fence import claimed, conversation, force

MESSAGE = new_message_id()


class CountingLog(EventLog):
    """The real log, which remembers what was asked of it and can be made to break once."""

    def __init__(self) -> None:
        self.flushes: list[int] = []
        self.break_after_commit = False

    async def append(self, driver: Driver, batches: Sequence[Batch]) -> set[Any]:
        self.flushes.append(len(batches))
        passed = await super().append(driver, batches)
        if self.break_after_commit:
            self.break_after_commit = False
            raise ConnectionResetError
        return passed


class Bench:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.log = CountingLog()
        self.followers = Followers()
        self.recorder = Recorder(database, self.log, self.followers, Paths())

    async def open(self) -> tuple[BegunTurn, TurnLog]:
        begun = await claimed(self.database, await conversation(self.database))
        return begun, self.recorder.open(begun)

    async def until_shown(self, begun: BegunTurn, seq: int) -> None:
        feed = self.followers.feed(begun.claim.turn_id)
        assert feed is not None
        async with asyncio.timeout(10):
            await feed.wait(seq - 1)

    async def stored(self, begun: BegunTurn) -> list[int | None]:
        claim = begun.claim
        async with self.database.statement() as driver:
            frames = await self.log.read(driver, claim.run_id, claim.turn_id, after=0, limit=10**9)
        return [frame.seq for frame in frames]


@pytest.fixture
async def bench(database: Database) -> AsyncGenerator[Bench]:
    bench = Bench(database)
    flushing = asyncio.ensure_future(bench.recorder.keep_flushing())
    yield bench
    flushing.cancel()
    await asyncio.wait([flushing])


def delta(text: str) -> TextDelta:
    return TextDelta(MESSAGE, text)


async def test_what_comes_together_is_committed_together(bench: Bench) -> None:
    turns = [await bench.open() for _ in range(64)]
    for number in range(10):
        for begun, log in turns:
            await log.append(delta(f"{begun.number} {number} "))

    for begun, _ in turns:
        await bench.until_shown(begun, 1)

    assert len(bench.log.flushes) <= 3
    assert sum(bench.log.flushes) <= 130
    assert await bench.stored(turns[0][0]) in ([1], [1, 2])


async def test_nobody_sees_an_event_before_its_commit(bench: Bench) -> None:
    begun, log = await bench.open()
    feed = bench.followers.feed(begun.claim.turn_id)
    assert feed is not None
    for number in range(50):
        await log.append(delta(f"{number}"))
        await asyncio.sleep(0.005)
        shown = feed.last_seq
        assert set(range(1, shown + 1)) <= set(await bench.stored(begun))


async def test_a_batch_whose_commit_is_unknown_is_stored_once(bench: Bench) -> None:
    begun, log = await bench.open()
    bench.log.break_after_commit = True

    await log.append(delta("a"))
    await bench.until_shown(begun, 1)
    await log.append(delta("b"))
    await bench.until_shown(begun, 2)

    assert await bench.stored(begun) == [1, 2]
    assert len(bench.log.flushes) == 3


async def test_one_bad_turn_does_not_stop_the_others(bench: Bench) -> None:
    (bad, bad_log), (good, good_log) = await bench.open(), await bench.open()
    await bad_log.append(delta("a lone \ud800 surrogate"))
    await good_log.append(delta("fine"))

    await bench.until_shown(good, 1)

    assert await bench.stored(good) == [1]
    assert await bench.stored(bad) == []
    with pytest.raises(Exception, match="surrogates not allowed"):
        await bad_log.append(delta("more"))


async def test_a_turn_that_was_taken_is_lost_and_its_log_says_so(bench: Bench) -> None:
    begun, log = await bench.open()
    await log.append(delta("a"))
    await bench.until_shown(begun, 1)
    assert await force(bench.database, begun)

    await log.append(delta("b"))

    async with asyncio.timeout(5):
        while log.error is None:
            await asyncio.sleep(0.01)
    with pytest.raises(LostOwnershipError):
        await log.append(delta("c"))
    assert bench.followers.feed(begun.claim.turn_id) is None


async def test_a_locked_run_delays_its_own_events_only(bench: Bench) -> None:
    (slow, slow_log), (quick, quick_log) = await bench.open(), await bench.open()
    async with bench.database.statement() as driver:
        transaction = driver.transaction()
        await transaction.start()
        await driver.execute("UPDATE runs SET title = 't' WHERE id = $1", slow.claim.run_id)
        await slow_log.append(delta("waits"))
        await quick_log.append(delta("does not"))
        await bench.until_shown(quick, 1)
        assert await bench.stored(slow) == []
        await transaction.rollback()

    await bench.until_shown(slow, 1)
    assert await bench.stored(slow) == [1]


async def test_a_closed_log_gives_back_what_was_not_written(bench: Bench) -> None:
    begun, log = await bench.open()
    await log.append(delta("a"))
    await bench.until_shown(begun, 1)
    await log.append(delta("b"))
    await log.append(delta("c"))

    rest = await log.close()

    await asyncio.sleep(0.1)
    stored = await bench.stored(begun)
    assert [*stored, *[frame.seq for frame in rest]] == [1, 2]
