"""Finds turns whose worker is gone and ends them, so that their conversations can go on."""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta

from app.engine.lease import Lease
from app.errors import DatabaseUnavailableError, WorkerLostError
from app.ids import TurnId
from app.observability.logging import get_logger
from app.runs import TurnStatus
from app.storage.database import Database, Driver
from app.storage.run_state_store import OrphanedTurn, RunStateStore
from app.storage.worker_store import WorkerStore
from app.wire.problem import turn_problem

logger = get_logger()

INTERVAL = 3.0
BATCH = 100
KEEP_DEAD_WORKERS = timedelta(days=1)


class Recovery:
    """Sweeps at the start and then every three seconds, give or take a fifth.

    After the database was away nobody could renew: expired leases, unlike released ones, are left
    alone until everyone has had one lease length to do so.
    """

    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        workers: WorkerStore,
        *,
        lease: Lease,
        lease_length: float,
        held: Callable[[], frozenset[TurnId]],
    ) -> None:
        self._database = database
        self._runs = runs
        self._workers = workers
        self._lease = lease
        self._length = lease_length
        self._held = held
        self._last_error = float("-inf")

    async def keep_sweeping(self) -> None:
        while True:
            try:
                await self.sweep()
            except DatabaseUnavailableError:
                self._last_error = time.monotonic()
            await asyncio.sleep(INTERVAL * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def sweep(self) -> int:
        """Ends the orphaned turns that there are now; returns how many.

        Any number of processes may do so at once: the fence lets only one end a turn.
        """
        ended = 0
        async with self._database.statement() as driver:
            for orphan in await self._orphans(driver):
                ended += await self._end(driver, orphan)
            await self._workers.forget_dead(driver, keep=KEEP_DEAD_WORKERS)
        return ended

    async def _orphans(self, driver: Driver) -> list[OrphanedTurn]:
        found = await self._runs.orphans(
            driver,
            worker_id=self._lease.worker_id,
            held=list(self._held()),
            expired_too=await self._everyone_could_renew(driver),
            limit=BATCH,
        )
        # A claim of ours may have been committed between the two looks; it is held by now.
        return [orphan for orphan in found if orphan.claim.turn_id not in self._held()]

    async def _everyone_could_renew(self, driver: Driver) -> bool:
        if time.monotonic() - self._last_error < self._length:
            return False
        return not await self._workers.database_started(driver, timedelta(seconds=self._length))

    async def _end(self, driver: Driver, orphan: OrphanedTurn) -> bool:
        claim = orphan.claim
        problem = turn_problem(
            WorkerLostError(), claim.run_id, claim.turn_id, request_id=orphan.request_id
        )
        ended = await self._runs.end_by_force(driver, claim, TurnStatus.FAILED, problem)
        if ended:
            logger.warning("turn_ended_by_force", turn_id=str(claim.turn_id), error="worker_lost")
        return ended
