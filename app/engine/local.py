"""Turns as tasks of this process, under its lease."""

import asyncio
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager

from app.engine.engine import RunHandler
from app.engine.forced_end import ForcedEnd
from app.engine.lease import Lease
from app.errors import DrainingError, OverloadedError
from app.ids import TurnId, WorkerId
from app.observability.logging import get_logger
from app.runs import BegunTurn, Claim

logger = get_logger()

# Seconds. A stopped turn closes its model connection at once; a commit under way, or a tool that is
# slow to stop, takes longer. A tool's thread cannot be stopped at all.
STOP_LIMIT = 3.0
# Seconds between two looks at claims in flight.
CLAIM_LOOK = 0.05


class LocalEngine:
    def __init__(
        self,
        handler: RunHandler,
        lease: Lease,
        forced_end: ForcedEnd,
        *,
        max_turns: int,
        on_end: Callable[[TurnId], None],
    ) -> None:
        """`on_end` is told of every turn that does not run here any more."""
        self._max_turns = max_turns
        self._on_end = on_end
        self._handler = handler
        self._lease = lease
        self._forced_end = forced_end
        self._tasks: dict[TurnId, asyncio.Task[None]] = {}
        self._claims: dict[TurnId, Claim] = {}
        self._in_flight: set[TurnId] = set()
        self._room_kept = 0
        self._draining = False
        self._closed = False
        # Nobody has to wait any longer for a turn that does not stop.
        self._over = asyncio.Event()

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def is_closed(self) -> bool:
        """The grace is over: no turn is started here any more, and those that run are stopped."""
        return self._closed

    @property
    def held(self) -> frozenset[TurnId]:
        """Turns that run here, or that we are just claiming."""
        return frozenset(self._tasks) | frozenset(self._in_flight)

    def claiming(self, turn_id: TurnId) -> AbstractContextManager[WorkerId]:
        return self._claiming_within(turn_id, self._max_turns - self._room_kept)

    def taking_over(self, turn_id: TurnId) -> AbstractContextManager[WorkerId]:
        """The same for a turn that was begun before: no new one goes before it."""
        return self._claiming_within(turn_id, self._max_turns)

    def keep_room_for(self, turns: int) -> None:
        """For so many turns that wait for a process: new ones find that much less room."""
        self._room_kept = turns

    @contextmanager
    def _claiming_within(self, turn_id: TurnId, room: int) -> Generator[WorkerId]:
        if self._draining:
            raise DrainingError
        if len(self.held) >= room:
            raise OverloadedError(self._max_turns)
        self._in_flight.add(turn_id)
        try:
            yield self._lease.worker_id
        finally:
            self._in_flight.discard(turn_id)

    def start(self, begun: BegunTurn) -> None:
        turn_id = begun.claim.turn_id
        if self._closed:
            # Its claim came through after the drain: the lease is released, so it is taken at once.
            logger.info("turn_left", turn_id=str(turn_id))
            self._on_end(turn_id)
            return
        task = asyncio.create_task(self._supervise(begun), name=f"turn {turn_id}")
        self._tasks[turn_id] = task
        self._claims[turn_id] = begun.claim
        task.add_done_callback(lambda _: self._forget(turn_id))

    async def wait(self, turn_id: TurnId, limit: float) -> None:
        task = self._tasks.get(turn_id)
        if task is None:
            return
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait([task, over], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()

    @property
    def claims(self) -> Sequence[Claim]:
        return tuple(self._claims.values())

    def interrupt(self, turn_id: TurnId) -> None:
        """Stops the turn if it runs here, without waiting for its end."""
        task = self._tasks.get(turn_id)
        if task is not None and not task.cancelling():
            task.cancel()

    async def stop(self, turn_id: TurnId, limit: float) -> None:
        task = self._tasks.get(turn_id)
        if task is not None:
            await _stop([task], limit)

    async def stop_all(self, limit: float = STOP_LIMIT) -> None:
        """Stops every turn, and waits for that for `limit` seconds at most."""
        await _stop(self._tasks.values(), limit)

    async def drain(self, grace: float, *, stop_limit: float = STOP_LIMIT) -> None:
        """Takes no more turns; lets the running ones end for `grace` seconds, then stops them.

        Some may not have stopped after `stop_limit` seconds more: `held` names them.
        """
        self._draining = True
        if self.held:
            logger.info("draining", turns=len(self.held), grace_s=grace)
        deadline = time.monotonic() + grace
        while self.held and (left := deadline - time.monotonic()) > 0:
            # A claim in flight becomes a turn, or nothing.
            pause = left if not self._in_flight else min(left, CLAIM_LOOK)
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=pause)
            else:
                await asyncio.sleep(pause)
        self._closed = True
        try:
            await self.stop_all(stop_limit)
        finally:
            self._over.set()

    def _forget(self, turn_id: TurnId) -> None:
        self._tasks.pop(turn_id, None)
        self._claims.pop(turn_id, None)
        self._on_end(turn_id)

    async def _supervise(self, begun: BegunTurn) -> None:
        try:
            await self._handler.execute(begun)
        except Exception as error:
            # A fault of ours must still end its turn: nobody awaits this task's result.
            logger.exception("turn_broke", turn_id=str(begun.claim.turn_id))
            await self._forced_end.fail(begun.claim, begun.as_turn(), error)


async def _stop(tasks: Iterable[asyncio.Task[None]], limit: float) -> None:
    tasks = list(tasks)
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=limit)
