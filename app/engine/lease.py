"""The right of this process to run turns: one row, renewed for all of them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from app.errors import DatabaseUnavailableError
from app.ids import WorkerId, new_worker_id
from app.observability.logging import get_logger
from app.storage.database import Database, Driver
from app.storage.worker_store import WorkerStore

logger = get_logger()

# Of a third of the lease: the pause before a failed renewal is tried again.
RETRY = 1 / 5


class Lease:
    """Renewed every third of its length, on a connection of its own.

    When two thirds have passed since the start of the last good renewal, the turns of this process
    are stopped and the worker id is never used again: whoever finds them may take them over.
    """

    def __init__(self, database: Database, workers: WorkerStore, *, length: float) -> None:
        """`length` in seconds."""
        self._database = database
        self._workers = workers
        self._length = timedelta(seconds=length)
        self._renewal = length / 3
        self._patience = length * 2 / 3
        self._renewed_at = time.monotonic()
        self._worker_id = new_worker_id()
        self._left_behind: list[WorkerId] = []
        self._is_held = False
        self._refused = asyncio.Event()
        self._is_over = False

    @property
    def worker_id(self) -> WorkerId:
        """Raises DatabaseUnavailableError while this process has no right to run turns."""
        if not self._is_held:
            raise DatabaseUnavailableError("the lease was lost")
        return self._worker_id

    @property
    def is_held(self) -> bool:
        return self._is_held

    def is_current(self) -> bool:
        """Held, and renewed in time: also right for a process that was frozen until just now."""
        return self._is_held and self._left() > 0

    async def register(self) -> None:
        """Makes this process a worker. Raises DatabaseUnavailableError."""
        started = time.monotonic()
        async with self._database.statement() as driver:
            await self._workers.register(driver, self._worker_id, self._length)
        self._renewed_at = started
        # A database that was frozen meanwhile has made this right too old to be of use.
        self._is_held = time.monotonic() - started < self._patience

    async def keep(self, on_loss: Callable[[], Awaitable[None]]) -> None:
        """Renews until the release; calls `on_loss` when the right is lost, then begins anew.

        Only the clock of this process decides when that is: renewing may hang for longer.
        """
        while not self._is_over:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew())
                await self._until_lost()
                renewing.cancel()
                if self._is_held:
                    logger.error("lease_lost", worker_id=str(self._worker_id))
                    self._is_held = False
                    self._left_behind.append(self._worker_id)
                    await on_loss()
            if not self._is_over:
                await self._begin_anew()

    async def release(self) -> None:
        """Says that nothing runs here any more; what was left may be taken at once. Final."""
        if self._is_over:
            return
        self._is_over, self._is_held = True, False
        self._refused.set()
        with suppress(DatabaseUnavailableError):
            await self._release([*self._left_behind, self._worker_id])

    async def _until_lost(self) -> None:
        while self._is_held and (left := self._left()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._refused.wait()
                    return

    def _left(self) -> float:
        """Seconds for which turns may still run."""
        return self._renewed_at + self._patience - time.monotonic()

    async def _renew(self) -> None:
        while True:
            with suppress(DatabaseUnavailableError, TimeoutError):
                async with self._database.statement() as driver:
                    await self._renew_on(driver)
                return
            await asyncio.sleep(self._renewal * RETRY)

    async def _renew_on(self, driver: Driver) -> None:
        """Returns when the right is lost; raises when the connection is, or does not answer."""
        while self._left() > 0:  # else this process was frozen
            started = time.monotonic()
            async with asyncio.timeout(self._renewal):
                renewed = await self._workers.renew(driver, self._worker_id, self._length)
            if not renewed:
                break
            self._renewed_at = started
            await asyncio.sleep(self._renewal)
        self._refused.set()

    async def _begin_anew(self) -> None:
        """As another worker. What ran under old ids was stopped, and may be taken at once."""
        self._worker_id = new_worker_id()
        self._refused.clear()
        with suppress(DatabaseUnavailableError):
            # First, so that a database that hangs meanwhile does not eat up the new right.
            await self._release(self._left_behind)
            self._left_behind.clear()
            await self.register()
        if not self._is_held:
            await asyncio.sleep(self._renewal * RETRY)

    async def _release(self, worker_ids: Sequence[WorkerId]) -> None:
        async with self._database.statement() as driver:
            await self._workers.release(driver, *worker_ids)
