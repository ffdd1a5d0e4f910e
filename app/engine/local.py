"""Turns as tasks of this process, under its lease."""

import asyncio
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from app.engine.engine import RunHandler
from app.engine.lease import Lease
from app.errors import DrainingError
from app.ids import TurnId, WorkerId
from app.observability.logging import get_logger
from app.runs import BegunTurn

logger = get_logger()

# A stopped turn closes its model connection at once; only a commit under way takes longer.
STOP_LIMIT = 10.0


class LocalEngine:
    def __init__(self, handler: RunHandler, lease: Lease) -> None:
        self._handler = handler
        self._lease = lease
        self._tasks: dict[TurnId, asyncio.Task[None]] = {}
        self._claiming: set[TurnId] = set()
        self._draining = False

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def held(self) -> frozenset[TurnId]:
        """Turns that run here, or that we are just claiming."""
        return frozenset(self._tasks) | frozenset(self._claiming)

    @contextmanager
    def claiming(self, turn_id: TurnId) -> Generator[WorkerId]:
        if self._draining:
            raise DrainingError
        self._claiming.add(turn_id)
        try:
            yield self._lease.worker_id
        finally:
            self._claiming.discard(turn_id)

    def start(self, begun: BegunTurn) -> None:
        turn_id = begun.claim.turn_id
        task = asyncio.create_task(self._supervise(begun), name=f"turn {turn_id}")
        self._tasks[turn_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(turn_id, None))

    async def wait(self, turn_id: TurnId, limit: float) -> None:
        task = self._tasks.get(turn_id)
        if task is None:
            return
        _, running = await asyncio.wait([task], timeout=limit)
        if running:
            raise TimeoutError

    async def stop(self, turn_id: TurnId) -> None:
        task = self._tasks.get(turn_id)
        if task is not None:
            await _stop([task])

    async def stop_all(self) -> None:
        await _stop(self._tasks.values())

    async def drain(self, grace: float) -> None:
        """Takes no more turns; lets the running ones end for `grace` seconds, then stops them."""
        self._draining = True
        tasks = list(self._tasks.values())
        if tasks:
            logger.info("draining", turns=len(tasks), grace_s=grace)
            await asyncio.wait(tasks, timeout=grace)
        await self.stop_all()

    async def _supervise(self, begun: BegunTurn) -> None:
        try:
            await self._handler.execute(begun)
        except Exception as error:
            logger.exception("turn_broke", turn_id=str(begun.claim.turn_id))
            await self._handler.fail(begun, error)


async def _stop(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_LIMIT)
