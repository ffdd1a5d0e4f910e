"""Finds turns that nobody runs any more and sees to it that they end: begun again, or by force."""

import random
import time
from datetime import timedelta

from app.bell import Bell
from app.engine.forced_end import ForcedEnd
from app.engine.lease import Lease
from app.engine.local import LocalEngine
from app.engine.takeover import Takeover
from app.errors import (
    DatabaseUnavailableError,
    DrainingError,
    OverloadedError,
    StatementDeclinedError,
)
from app.observability.logging import get_logger
from app.storage.database import Database
from app.storage.run_state_store import Orphan, RunStateStore
from app.storage.worker_store import WorkerStore

logger = get_logger()

# Seconds between two sweeps: a turn that was handed over is to go on within two.
INTERVAL = 1.0
PAUSE = 0.1
BATCH = 100
TIDYING = 60.0
KEEP_DEAD_WORKERS = timedelta(days=1)


class Recovery:
    """Sweeps at the start and then every second, give or take a fifth, or when its bell rings.

    After the database was away nobody could renew: expired leases, unlike released ones, are left
    alone until everyone has had one lease length to do so.
    """

    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        workers: WorkerStore,
        engine: LocalEngine,
        takeover: Takeover,
        forced_end: ForcedEnd,
        *,
        lease: Lease,
        lease_length: float,
        attempts: int,
    ) -> None:
        """`lease_length` in seconds; `attempts`: how many a turn has whose processes die."""
        self._database = database
        self._runs = runs
        self._workers = workers
        self._engine = engine
        self._takeover = takeover
        self._forced_end = forced_end
        self._lease = lease
        self._length = lease_length
        self._attempts = attempts
        self._without_room = 0
        self._last_error = float("-inf")
        self._tidied_at = float("-inf")
        self.bell = Bell(pause=PAUSE)

    async def keep_sweeping(self) -> None:
        while True:
            try:
                await self.sweep()
                await self._tidy()
            except DatabaseUnavailableError:
                self._last_error = time.monotonic()
            await self.bell.wait(INTERVAL * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def sweep(self) -> int:
        """Begins again, or ends, the orphaned turns that there are now; returns how many.

        Any number of processes may do so at once: the fence lets only one have a turn.
        """
        if self._engine.is_draining:
            return 0
        orphans = await self._orphans()
        self._without_room = 0
        # What only has to be begun is quick; ending one by force may take a while.
        orphans.sort(key=lambda orphan: not self._may_go_on(orphan))
        recovered = sum([await self._recover(orphan) for orphan in orphans])
        self._engine.keep_room_for(self._without_room)
        return recovered

    def _may_go_on(self, orphan: Orphan) -> bool:
        return not orphan.running.cancel_requested and orphan.deaths < self._attempts

    async def _orphans(self) -> list[Orphan]:
        async with self._database.statement() as driver:
            found = await self._runs.orphans(
                driver,
                worker_id=self._lease.worker_id,
                held=list(self._engine.held),
                expired_too=time.monotonic() - self._last_error >= self._length,
                lease=timedelta(seconds=self._length),
                limit=BATCH,
            )
        # A claim of ours may have been committed between the two looks; it is held by now. And one
        # that is slow to stop is not begun beside itself.
        held = self._engine.held
        return [orphan for orphan in found if orphan.running.turn.id not in held]

    async def _recover(self, orphan: Orphan) -> bool:
        claim, turn = orphan.running.claim, orphan.running.turn
        try:
            if self._may_go_on(orphan):
                return await self._begin_again(orphan)
            if orphan.running.cancel_requested:
                return await self._forced_end.cancel(claim, turn, wait=False)
            return await self._forced_end.lose(claim, turn, wait=False)
        except StatementDeclinedError:
            return False  # somebody else is at it
        except DatabaseUnavailableError:
            raise
        except Exception:
            # One that this release cannot read must not keep the others from going on.
            logger.exception("turn_not_recovered", turn_id=str(turn.id))
            return False

    async def _begin_again(self, orphan: Orphan) -> bool:
        turn_id = orphan.running.turn.id
        try:
            with self._engine.taking_over(turn_id) as worker_id:
                begun = await self._takeover.take(orphan, worker_id)
                if begun is None:
                    return False
                self._engine.start(begun)
        except DrainingError:
            return False
        except OverloadedError:
            # It stays for another process, or for when there is room here: before any new one.
            self._without_room += 1
            return False
        logger.warning(
            "turn_restarted",
            turn_id=str(turn_id),
            attempt=begun.attempt,
            deaths=orphan.deaths,
            reason=orphan.reason.value,
        )
        return True

    async def _tidy(self) -> None:
        if time.monotonic() - self._tidied_at < TIDYING:
            return
        async with self._database.statement() as driver:
            await self._workers.forget_dead(driver, keep=KEEP_DEAD_WORKERS)
        self._tidied_at = time.monotonic()
