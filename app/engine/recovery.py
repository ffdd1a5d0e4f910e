"""Finds turns whose worker is gone and ends them, so that their conversations can go on."""

import asyncio
import random
import time
from collections.abc import Callable
from datetime import timedelta

from app.engine.forced_end import ForcedEnd
from app.engine.lease import Lease
from app.errors import DatabaseUnavailableError
from app.ids import TurnId
from app.storage.database import Database, Driver
from app.storage.run_state_store import RunningTurn, RunStateStore
from app.storage.worker_store import WorkerStore

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
        forced_end: ForcedEnd,
        *,
        lease: Lease,
        lease_length: float,
        held: Callable[[], frozenset[TurnId]],
    ) -> None:
        self._database = database
        self._runs = runs
        self._workers = workers
        self._forced_end = forced_end
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
        async with self._database.statement() as driver:
            orphans = await self._orphans(driver)
            await self._workers.forget_dead(driver, keep=KEEP_DEAD_WORKERS)
        return sum([await self._end(orphan) for orphan in orphans])

    async def _end(self, orphan: RunningTurn) -> bool:
        if orphan.cancel_requested:
            return await self._forced_end.cancel(orphan.claim, orphan.turn)
        return await self._forced_end.lose(orphan.claim, orphan.turn)

    async def _orphans(self, driver: Driver) -> list[RunningTurn]:
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
