"""Whatever processes do, die of or find in whatever order: the stored state stays legal.

Hypothesis makes up the order; the statements, the sweep and the lease are the real ones, against a
real PostgreSQL. Owners that have lost their turn go on trying to write, as frozen processes do that
wake up. What must hold is written down in `tests/invariants.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType] - its settings are untyped
)
from sqlalchemy import text

from app.caller import Caller
from app.engine.lease import Lease
from app.errors import ConversationClosedError, NotFoundError, TurnInProgressError
from app.events.stream_event import (
    MessageCompleted,
    StreamEvent,
    TextDelta,
    TurnEnded,
    TurnRestarted,
    TurnStarted,
)
from app.ids import ConversationId, TurnId, new_message_id
from app.messages.codec import encode
from app.messages.message import ConversationMessage, Envelope, MessageStatus, Role, Side, Text
from app.privacy.erasure import Erasure
from app.runs import BegunTurn, TurnStatus
from app.storage.database import Database, opened_database
from app.storage.erasure_store import ErasureStore
from app.storage.event_log import Batch
from app.storage.run_state_store import RunningTurn, TurnEnd
from app.storage.schema import migrate
from app.storage.tables import metadata
from app.wire.event import Frame, TurnName, render
from app.wire.paths import Paths
from tests.invariants import violations
from tests.postgres.test_fence import ADA, claim, conversation, runs
from tests.postgres.test_recovery import Replica, died, event_log, journal, released, workers

T = TypeVar("T")

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=600)
CONVERSATIONS = 2
REPLICAS = 2
# How many of the latest owners, or wishes to cancel, may still act.
RECENT = st.integers(0, 5)
ENDS = (TurnStatus.COMPLETED, TurnStatus.INCOMPLETE, TurnStatus.FAILED, TurnStatus.CANCELLED)


@dataclass
class Owner:
    """One attempt of a turn, in the process that runs it, or believes that it does."""

    begun: BegunTurn
    next_seq: int
    said: ConversationMessage | None = None
    entries: int = 0

    def first(self, prompt: ConversationMessage) -> Sequence[StreamEvent]:
        if self.next_seq > self.begun.last_seq + 1:
            return []
        if self.begun.last_seq == 0 or self.begun.restarted is None:
            return [TurnStarted(self.begun.as_turn(), prompt)]
        return [TurnRestarted(self.begun.attempt, self.begun.restarted)]

    def frames(self, events: Sequence[StreamEvent]) -> list[Frame]:
        claim = self.begun.claim
        name = TurnName(claim.run_id, claim.turn_id, self.begun.number, Paths())
        moment = self.begun.started_at
        return [render(e, seq, name, moment) for seq, e in enumerate(events, self.next_seq)]


class World:
    """The database and a loop to use it from."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.database = self.run(self._opened(url))

    async def _opened(self, url: str) -> Database:
        async with opened_database(url, pool_size=1) as server:
            async with server.connection() as connection:
                await connection.execute(text("CREATE DATABASE machine"))
            url = server.url.set(database="machine").render_as_string(hide_password=False)
        database = await self._stack.enter_async_context(opened_database(url, pool_size=8))
        await migrate(database)
        return database

    def run(self, work: Awaitable[T]) -> T:
        async def waited() -> T:
            return await work

        return self._runner.run(waited())

    async def emptied(self) -> None:
        async with self.database.transaction() as transaction:
            for table in reversed(metadata.sorted_tables):
                await transaction.execute(table.delete())

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._runner.close()


class Machine(RuleBasedStateMachine):
    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.database = world, world.database
        self.conversations: list[ConversationId] = []
        self.replicas: list[Replica] = []
        self.leases: list[Lease] = []
        self.owners: list[Owner] = []
        self.cancels: list[RunningTurn] = []
        self.ends: dict[UUID, str] = {}
        self.marks: dict[UUID, tuple[int, int]] = {}
        self._run(self._begin())

    def _run(self, work: Awaitable[T]) -> T:
        return self.world.run(work)

    async def _begin(self) -> None:
        self.conversations = [await conversation(self.database) for _ in range(CONVERSATIONS)]
        for _ in range(REPLICAS):
            await self._start_replica()

    async def _start_replica(self) -> None:
        lease = Lease(self.database, workers, length=LEASE.total_seconds())
        await lease.register()
        self.leases.append(lease)
        self.replicas.append(Replica(self.database, lease, attempts=3))

    def teardown(self) -> None:
        self._run(self._end())

    async def _end(self) -> None:
        for replica in self.replicas:
            await replica.engine.stop_all()
        await self.world.emptied()

    # ── what processes do ────────────────────────────────────────────────────────────────────────

    @rule(where=st.integers(0, CONVERSATIONS - 1), who=st.integers(0, REPLICAS - 1))
    def claims(self, where: int, who: int) -> None:
        self._run(self._claim(where, who, start=True))

    @rule(where=st.integers(0, CONVERSATIONS - 1), who=st.integers(0, REPLICAS - 1))
    def claims_and_forgets(self, where: int, who: int) -> None:
        """The start never came: the process was asked to stop, or the commit was not known."""
        self._run(self._claim(where, who, start=False))

    async def _claim(self, where: int, who: int, *, start: bool) -> None:
        run_id, replica = self.conversations[where], self.replicas[who]
        begun = await claim(self.database, run_id, self.leases[who].worker_id)
        if begun is None:
            async with self.database.connection() as connection:
                refusal = await runs.refusal(connection, ADA, run_id)
            assert refusal is None or isinstance(
                refusal, TurnInProgressError | ConversationClosedError | NotFoundError
            )
        elif start:
            replica.engine.start(begun)
            await self._collect()

    async def _collect(self) -> None:
        """The turns that replicas have begun since."""
        await asyncio.sleep(0)
        for replica in self.replicas:
            self.owners += [Owner(begun, begun.last_seq + 1) for begun in replica.handler.begun]
            replica.handler.begun.clear()

    @rule(which=RECENT)
    def flushes(self, which: int) -> None:
        for owner in self._owner(which):
            expected = self._run(self._owns(owner))
            assert self._run(self._flush(owner)) == expected

    async def _flush(self, owner: Owner) -> bool:
        message = owner.said or _message("")
        events = [*owner.first(await self._prompt(owner)), TextDelta(message.id, "word ")]
        batch = Batch(owner.begun.claim, owner.frames(events))
        async with self.database.statement() as driver:
            passed = await event_log.append(driver, [batch])
        if owner.begun.claim.turn_id not in passed:
            return False
        owner.next_seq += len(events)
        owner.said = replace(message, pieces=(Text(message.content + "word "),))
        return True

    async def _prompt(self, owner: Owner) -> ConversationMessage:
        """Also of a turn that was erased, for one who does not know that yet."""
        begun = owner.begun
        return replace(_message(begun.prompt), id=begun.user_message_id, role=Role.USER)

    @rule(which=RECENT)
    def records(self, which: int) -> None:
        for owner in self._owner(which):
            expected = self._run(self._owns(owner))
            assert self._run(self._record(owner)) == expected

    async def _record(self, owner: Owner) -> bool:
        owner.entries += 1
        async with self.database.statement() as driver:
            return await journal.record(driver, owner.begun.claim, f"tool/{owner.entries}", "{}")

    @rule(which=RECENT, status=st.sampled_from(ENDS))
    def finishes(self, which: int, status: TurnStatus) -> None:
        for owner in self._owner(which):
            expected = self._run(self._owns(owner))
            assert self._run(self._finish(owner, status)) == expected

    async def _finish(self, owner: Owner, status: TurnStatus) -> bool:
        events = [*owner.first(await self._prompt(owner))]
        if owner.said is not None:
            events.append(MessageCompleted(owner.said))
        turn = replace(
            owner.begun.as_turn(),
            status=status,
            completed_at=owner.begun.started_at,
            last_seq=owner.next_seq + len(events),
        )
        end = TurnEnd(
            turn=turn,
            messages=[] if owner.said is None else [encode(owner.said)],
            in_context=True,
            frames=owner.frames([*events, TurnEnded(turn, by="user")]),
        )
        async with self.database.statement() as driver:
            return await runs.finish(driver, owner.begun.claim, end)

    @rule(who=st.integers(0, REPLICAS - 1))
    def sweeps(self, who: int) -> None:
        self._run(self._sweep(who))

    async def _sweep(self, who: int) -> None:
        await self.replicas[who].sweep()
        await self._collect()

    @rule(who=st.integers(0, REPLICAS - 1))
    def renews(self, who: int) -> None:
        self._run(self._renew(who))

    async def _renew(self, who: int) -> None:
        async with self.database.statement() as driver:
            await workers.renew(driver, self.leases[who].worker_id, LEASE)

    # ── what happens to them ─────────────────────────────────────────────────────────────────────

    @rule(who=st.integers(0, REPLICAS - 1), how=st.sampled_from(["dies", "freezes", "hands over"]))
    def is_gone(self, who: int, how: str) -> None:
        self._run(self._gone(who, how))

    async def _gone(self, who: int, how: str) -> None:
        """Another process takes its place. The turns of a frozen one still try to write."""
        lease, replica = self.leases.pop(who), self.replicas.pop(who)
        if how != "freezes":
            held = replica.engine.held
            self.owners = [each for each in self.owners if each.begun.claim.turn_id not in held]
        await replica.engine.stop_all()
        leave = released if how == "hands over" else died
        await leave(self.database, lease.worker_id)
        await self._start_replica()

    # ── what clients do ──────────────────────────────────────────────────────────────────────────

    @rule(where=st.integers(0, CONVERSATIONS - 1))
    def asks_to_cancel(self, where: int) -> None:
        self._run(self._request_cancel(where))

    async def _request_cancel(self, where: int) -> None:
        async with self.database.statement() as driver:
            running = await runs.request_cancel(driver, ADA, self.conversations[where], None)
        if running is not None:
            self.cancels.append(running)

    @rule(which=RECENT, who=st.integers(0, REPLICAS - 1))
    def cancels_by_force(self, which: int, who: int) -> None:
        """Maybe long after: the turn may have ended, or be in its next attempt."""
        for running in self.cancels[-1 - which :][:1]:
            self._run(self._force_cancel(running, who))

    async def _force_cancel(self, running: RunningTurn, who: int) -> None:
        await self.replicas[who].forced_end.cancel(running.claim, running.turn)

    @rule(where=st.integers(0, CONVERSATIONS - 1))
    def closes(self, where: int) -> None:
        self._run(self._close(where))

    async def _close(self, where: int) -> None:
        with suppress(NotFoundError, TurnInProgressError):
            async with self.database.transaction() as transaction:
                await runs.close(transaction, ADA, self.conversations[where])
            self.conversations[where] = await conversation(self.database)

    @rule(where=st.integers(0, CONVERSATIONS - 1))
    def erases(self, where: int) -> None:
        self._run(self._erase(where))

    async def _erase(self, where: int) -> None:
        run_id = self.conversations[where]
        erasure = Erasure(self.database, ErasureStore(), stop_turn=_no_stop)
        with suppress(NotFoundError):
            await erasure.erase_conversation(Caller("ada"), run_id)
        self.conversations[where] = await conversation(self.database)

    # ── at once ──────────────────────────────────────────────────────────────────────────────────

    @rule(which=st.lists(st.integers(0, 30), min_size=2, max_size=5))
    def all_at_once(self, which: Sequence[int]) -> None:
        """Several of these side by side; which of them wins is the database's to say."""
        actions = self._actions()
        chosen = [actions[place % len(actions)] for place in which]
        # One owner does one after the other: `finish` awaits the flush in flight and the tools, and
        # so their entries.
        by_writer = {writer or place: act for place, (writer, act) in enumerate(chosen, 1)}
        self._run(self._together([act() for act in by_writer.values()]))

    async def _together(self, work: Sequence[Awaitable[Any]]) -> None:
        await asyncio.gather(*work)
        await self._collect()

    def _actions(self) -> list[tuple[str | None, Callable[[], Awaitable[Any]]]]:
        """What may be done, and which owner's log it writes to, if any."""
        places = [(where, who) for where in range(CONVERSATIONS) for who in range(REPLICAS)]
        alone = [
            *(partial(self._claim, where, who, start=False) for where, who in places),
            *(replica.recovery.sweep for replica in self.replicas),
            *(partial(self._request_cancel, where) for where in range(CONVERSATIONS)),
            *(partial(self._close, where) for where in range(CONVERSATIONS)),
            *(partial(self._erase, where) for where in range(CONVERSATIONS)),
            *(partial(self._force_cancel, running, 0) for running in self.cancels[-2:]),
        ]
        writing = [
            (str(owner.begun.claim), act)
            for owner in self.owners[-4:]
            for act in (
                partial(self._flush, owner),
                partial(self._record, owner),
                partial(self._finish, owner, TurnStatus.COMPLETED),
            )
        ]
        return [*((None, act) for act in alone), *writing]

    def _owner(self, which: int) -> Sequence[Owner]:
        """One of the latest, or none. What is drawn must not depend on who has won a race."""
        return self.owners[-1 - which :][:1]

    async def _owns(self, owner: Owner) -> bool:
        """Whether the row says so."""
        begun = owner.begun.claim
        async with self.database.statement() as driver:
            lost = await runs.not_to_go_on(driver, [begun])
            asked = await runs.cancel_requested(driver, begun)
        return begun.turn_id not in lost or (asked and await self._has_fence(owner))

    async def _has_fence(self, owner: Owner) -> bool:
        claim = owner.begun.claim
        async with self.database.statement() as driver:
            return await driver.fetchval(
                "SELECT count(*) = 1 FROM runs WHERE id = $1 AND active_turn_id = $2 AND fence = $3",
                claim.run_id,
                claim.turn_id,
                claim.fence,
            )

    # ── what must hold ───────────────────────────────────────────────────────────────────────────

    @invariant()
    def the_state_is_legal(self) -> None:
        assert self._run(self._look()) == []

    async def _look(self) -> list[str]:
        async with self.database.statement() as driver:
            wrong = await violations(driver)
            rows = await driver.fetch("SELECT id, fence, version, erased_at FROM runs")
            ends = await driver.fetch("SELECT id, status FROM turns WHERE status <> 'running'")
        for row in rows:
            before = self.marks.get(row["id"], (0, 0))
            now = (row["fence"], row["version"])
            if now[0] < before[0] or now[1] < before[1]:
                wrong.append(f"run {row['id']}: fence and version went back from {before} to {now}")
            self.marks[row["id"]] = now
        for row in ends:
            if self.ends.setdefault(row["id"], row["status"]) != row["status"]:
                wrong.append(f"turn {row['id']}: {self.ends[row['id']]} became {row['status']}")
        return wrong


def _message(content: str) -> ConversationMessage:
    return ConversationMessage(
        id=new_message_id(),
        role=Role.ASSISTANT,
        timestamp=MOMENT,
        status=MessageStatus.COMPLETE,
        pieces=(Text(content),),
        envelope=Envelope(Side.RESPONSE, timestamp=MOMENT),
    )


async def _no_stop(turn_id: TurnId) -> None:
    """Its owner has frozen: only the fence keeps it out."""


@pytest.fixture(scope="module")
def world(postgres_url: str) -> Generator[World]:
    world = World(postgres_url)
    yield world
    world.close()


@pytest.mark.timeout(600)
def test_every_order_of_what_can_happen_leaves_a_legal_state(world: World) -> None:
    run_state_machine_as_test(
        cast("type[Machine]", lambda: Machine(world)),
        settings=settings(
            settings.get_profile(settings.get_current_profile_name()),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
