"""Processes that run turns. Only the database's clock counts."""

from datetime import timedelta

from app.ids import WorkerId
from app.storage.database import Driver, Row
from app.storage.notices import RELEASES


class WorkerStore:
    async def register(self, driver: Driver, worker_id: WorkerId, lease: timedelta) -> None:
        await driver.execute(
            "INSERT INTO workers (id, alive_until) VALUES ($1, now() + $2)", worker_id, lease
        )

    async def renew(self, driver: Driver, worker_id: WorkerId, lease: timedelta) -> bool:
        """False when the worker was released, removed or is dead by the database's clock.

        It must not run anything under this id then: its turns may have been taken.
        """
        row: Row | None = await driver.fetchrow(_RENEW, worker_id, lease)
        return row is not None

    async def release(self, driver: Driver, *worker_ids: WorkerId) -> None:
        """Says that whatever still runs under these ids is free to be taken at once."""
        await driver.execute(_RELEASE, list(worker_ids))

    async def forget_dead(self, driver: Driver, *, keep: timedelta) -> None:
        """Removes long dead workers; never one that a run still points to."""
        await driver.execute(_FORGET, keep)


_RENEW = """
UPDATE workers SET alive_until = now() + $2
WHERE id = $1 AND released_at IS NULL AND alive_until > now()
RETURNING id
"""

_RELEASE = f"""
WITH released AS (
    UPDATE workers SET released_at = now() WHERE id = ANY($1::uuid[]) RETURNING id
)
SELECT pg_notify('{RELEASES}', '') FROM released LIMIT 1
"""  # noqa: S608 - our own constant

_FORGET = """
DELETE FROM workers
WHERE alive_until < now() - $1::interval
    AND NOT EXISTS (SELECT FROM runs WHERE runs.worker_id = workers.id)
"""
