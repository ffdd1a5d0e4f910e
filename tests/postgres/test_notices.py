"""What is told by NOTIFY: once for each commit, ids only; and how what was told is heard."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.ids import ConversationId, new_conversation_id, new_worker_id
from app.runs import BegunTurn
from app.storage.database import Database, Driver
from app.storage.erasure_store import ErasureStore
from app.storage.event_log import Batch, EventLog, Place
from app.storage.listener import Listener, Named
from app.storage.notices import CHANGES, EVENTS, MANY, MOST_IDS, RELEASES
from app.storage.worker_store import WorkerStore
from app.streaming.followers import Closing, Followers
from app.streaming.foreign_turns import ForeignTurns
from app.wire.event import Frame
from tests.postgres.test_fence import ADA, claimed, conversation, end, force, runs

log, workers = EventLog(), WorkerStore()


@pytest.fixture
async def told(database: Database) -> AsyncGenerator[list[tuple[str, str]]]:
    """Every notification, as it came."""
    found: list[tuple[str, str]] = []

    def hear(_driver: Driver, _pid: int, channel: str, payload: str) -> None:
        found.append((channel, payload))

    async with database.statement() as driver:
        for channel in (EVENTS, CHANGES, RELEASES):
            await driver.add_listener(channel, hear)
        yield found
        await driver.close()


def batch(begun: BegunTurn, *texts: str, first: int = 1) -> Batch:
    frames = [
        Frame(begun.number, seq, "text.delta", document(begun, seq, text))
        for seq, text in enumerate(texts, first)
    ]
    return Batch(begun.claim, frames)


def document(begun: BegunTurn, seq: int, text: str) -> str:
    named = f'"conversation_id":"{begun.claim.run_id}","turn_id":"{begun.claim.turn_id}"'
    return f'{{"type":"text.delta","seq":{seq},{named},"turn_number":1,"delta":"{text}"}}'


async def test_a_flush_tells_once_of_all_its_conversations(
    database: Database, told: list[tuple[str, str]]
) -> None:
    begun = [await claimed(database, await conversation(database)) for _ in range(3)]
    async with database.statement() as driver:
        await log.append(driver, [batch(each, "SECRET") for each in begun])
        await log.append_alone(driver, batch(begun[0], "x", first=2), timedelta(seconds=1))
    await asyncio.sleep(0.1)

    (channel, payload), alone = told
    assert channel == EVENTS
    assert set(payload.split()) == {str(each.claim.run_id) for each in begun}
    assert alone == (EVENTS, str(begun[0].claim.run_id))


async def test_what_is_not_written_is_not_told(
    database: Database, told: list[tuple[str, str]]
) -> None:
    begun = await claimed(database, await conversation(database))
    await force(database, begun)
    await asyncio.sleep(0.1)
    told.clear()
    async with database.statement() as driver:
        assert await log.append(driver, [batch(begun, "late")]) == set()
    await asyncio.sleep(0.1)

    assert [each for each in told if each[0] == EVENTS] == []


async def test_more_than_a_notification_holds_is_one_word(
    database: Database, told: list[tuple[str, str]]
) -> None:
    begun = [await claimed(database, await conversation(database)) for _ in range(MOST_IDS + 1)]
    async with database.statement() as driver:
        await log.append(driver, [batch(each, "x") for each in begun[:-1]])
        await log.append(driver, [batch(each, "x", first=2) for each in begun])
    await asyncio.sleep(0.1)

    assert len(told[0][1].split()) == MOST_IDS
    assert told[1:] == [(EVENTS, MANY)]


async def test_cancel_change_erasure_and_release_are_told(
    database: Database, told: list[tuple[str, str]]
) -> None:
    run_id = await conversation(database)
    begun = await claimed(database, run_id)
    worker = new_worker_id()
    async with database.statement() as driver:
        await runs.request_cancel(driver, ADA, run_id, begun.claim.turn_id)
        await workers.register(driver, worker, timedelta(seconds=9))
        await workers.release(driver, worker)
    async with database.transaction() as transaction:
        await runs.describe(transaction, run_id, title="SECRET", metadata={})
    async with database.transaction() as transaction:
        await ErasureStore().bury(transaction, ADA, run_id)
    await asyncio.sleep(0.1)

    change = (CHANGES, str(run_id))
    assert told == [change, (RELEASES, ""), change, change]


async def heard_by(database: Database, *payloads: str) -> list[Named]:
    found: list[Named] = []
    listening = asyncio.ensure_future(Listener(database, {EVENTS: found.append}).keep_listening())
    async with asyncio.timeout(5):
        while not found:
            await asyncio.sleep(0.01)
        for count, payload in enumerate(payloads, 2):
            async with database.statement() as driver:
                await driver.execute("SELECT pg_notify($1, $2)", EVENTS, payload)
            while len(found) < count:
                await asyncio.sleep(0.01)
    listening.cancel()
    await asyncio.wait([listening])
    return found


async def test_a_listener_names_those_who_were_told_and_anyone_at_first(
    database: Database,
) -> None:
    one, two = new_conversation_id(), new_conversation_id()

    found = await heard_by(database, str(one), f"{one} {two}", MANY, "nonsense", f"{one} nonsense")

    assert found == [None, frozenset([one]), frozenset([one, two]), None, None, None]


async def test_many_places_are_read_in_one_statement(database: Database) -> None:
    """Each from the middle of a batch on, up to a page; one that was erased has nothing."""
    first, second, gone = [await claimed(database, await conversation(database)) for _ in range(3)]
    async with database.statement() as driver:
        for begun in (first, second, gone):
            await log.append(driver, [batch(begun, "a", "b", "c")])
            await log.append(driver, [batch(begun, "d" * 500, first=4)])
            await log.append(driver, [batch(begun, "e", first=5)])
    async with database.transaction() as transaction:
        await ErasureStore().bury(transaction, ADA, gone.claim.run_id)

    async with database.statement() as driver:
        whole = await _read(driver, [(first, 1), (second, 5), (gone, 0)], 10_000)
        page = await _read(driver, [(first, 0), (second, 3)], 400)

    assert whole == [([2, 3, 4, 5], "running", False), ([], "running", False), ([], None, False)]
    assert page == [([1, 2, 3], "running", True), ([4], "running", True)]


async def _read(
    driver: Driver, places: list[tuple[BegunTurn, int]], limit: int
) -> list[tuple[list[Any], str | None, bool]]:
    asked = [Place(ConversationId(b.claim.run_id), b.claim.turn_id, after) for b, after in places]
    found = {each.turn_id: each for each in await log.read_many(driver, asked, limit=limit)}
    ordered = [found[place.turn_id] for place in asked]
    return [([f.seq for f in each.frames()], each.status, each.is_full) for each in ordered]


async def test_what_cannot_be_read_ends_its_own_feed_only(database: Database) -> None:
    """As a later release may write it, while this one still runs."""
    odd, good = [await claimed(database, await conversation(database)) for _ in range(2)]
    followers = Followers()
    feeds = [
        followers.foreign(each.claim.run_id, each.claim.turn_id, after=0) for each in (odd, good)
    ]
    async with database.statement() as driver:
        await log.append(driver, [Batch(odd.claim, [Frame(1, 1, "x", '{"later":1}')])])
        await log.append(driver, [batch(good, "a")])

    await ForeignTurns(database, log, followers).read()

    assert [feed.closing for feed in feeds] == [Closing.LOST, None]
    assert feeds[1].last_seq == 1
    assert followers.followed_elsewhere == [feeds[1]]


async def test_a_turn_that_has_ended_is_not_looked_at_any_more(database: Database) -> None:
    """Also while somebody who is slow still reads what was brought."""
    begun = await claimed(database, await conversation(database))
    followers = Followers()
    feed = followers.foreign(begun.claim.run_id, begun.claim.turn_id, after=98)
    how = end(begun, "answer")
    named = f'"conversation_id":"{begun.claim.run_id}","turn_id":"{begun.claim.turn_id}"'
    last = Frame(
        1, 99, "turn.completed", f'{{"type":"turn.completed","seq":99,{named},"turn_number":1,}}'
    )
    async with database.statement() as driver:
        assert await runs.finish(driver, begun.claim, replace(how, frames=[last]))

    await ForeignTurns(database, log, followers).read()

    assert feed.after(98) == [last]
    assert followers.followed_elsewhere == []
