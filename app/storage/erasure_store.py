"""Removes what a conversation holds. The row itself stays for a while as a tombstone."""

from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.caller import Caller
from app.ids import ConversationId, TurnId
from app.storage.database import Driver
from app.storage.notices import CHANGES, told
from app.storage.tables import events, idempotency_keys, journal, messages, runs, turns
from app.storage.visibility import owned, visible

# Every table that holds a conversation's content, by the column that names the conversation.
CONTENT_TABLES = (idempotency_keys, turns, messages, events, journal)

_EMPTIED: dict[str, Any] = {
    "title": null(),
    "metadata": {},
    "config": {},
    "session_id": null(),
    "parent_workflow_id": null(),
    "active_turn_id": null(),
    "worker_id": null(),
    "turn_count": 0,
    "input_tokens": null(),
    "output_tokens": null(),
    "cache_read_tokens": null(),
    "reasoning_tokens": null(),
    "cost": null(),
    "usage_estimated": False,
    "closed_at": null(),
}


class ErasureStore:
    async def bury(
        self, connection: AsyncConnection, caller: Caller, run_id: ConversationId
    ) -> tuple[TurnId | None, int] | None:
        """Makes the run a tombstone that nobody sees or writes to any more.

        Returns the turn that was running and how many messages there are to purge, or None when
        there is no such conversation for this caller.
        """
        lock = select(runs.c.active_turn_id, runs.c.next_message_seq)
        lock = lock.where(visible(caller, "delete"), runs.c.id == run_id).with_for_update()
        row = (await connection.execute(lock)).one_or_none()
        if row is None:
            return None
        await connection.execute(
            update(runs)
            .where(runs.c.id == run_id)
            .values(
                **_EMPTIED,
                fence=runs.c.fence + 1,
                version=runs.c.version + 1,
                erased_at=func.now(),
            )
            .returning(told(CHANGES, runs.c.id))
        )
        return row.active_turn_id, row.next_message_seq - 1

    async def is_buried(
        self, connection: AsyncConnection, caller: Caller, run_id: ConversationId
    ) -> bool:
        query = select(runs.c.id).where(
            owned(caller, "delete"), runs.c.id == run_id, runs.c.erased_at.is_not(None)
        )
        return (await connection.execute(query)).one_or_none() is not None

    async def purge(self, connection: AsyncConnection, run_id: ConversationId) -> None:
        """Removes all content of one conversation at once."""
        for table in CONTENT_TABLES:
            await connection.execute(delete(table).where(table.c.run_id == run_id))

    async def purge_some(self, driver: Driver, run_id: ConversationId, limit: int) -> bool:
        """Removes up to `limit` rows of each kind; False when there was less, and so all is gone.

        A statement for each table, always in the same order.
        """
        removed = [await driver.fetchval(sql, run_id, limit) for sql in _PURGE_SOME]
        return max(removed) >= limit

    async def unpurged(self, driver: Driver, limit: int) -> list[ConversationId]:
        """Tombstones that still have content, since a process died on the way."""
        rows = await driver.fetch(_UNPURGED, limit)
        return [ConversationId(row["id"]) for row in rows]

    async def remove_tombstones(self, driver: Driver, older_than: timedelta) -> None:
        await driver.execute("DELETE FROM runs WHERE erased_at < now() - $1::interval", older_than)


_PURGE_SOME = tuple(
    f"""
    WITH removed AS (
        DELETE FROM {table.name} WHERE ctid = ANY(ARRAY(
            SELECT ctid FROM {table.name} WHERE run_id = $1 LIMIT $2)) RETURNING 1
    )
    SELECT count(*) FROM removed
    """  # noqa: S608 - the names of our own tables
    for table in CONTENT_TABLES
)

_UNPURGED = """
SELECT id FROM runs
WHERE erased_at IS NOT NULL AND (
    EXISTS (SELECT FROM messages WHERE run_id = runs.id)
    OR EXISTS (SELECT FROM events WHERE run_id = runs.id)
    OR EXISTS (SELECT FROM turns WHERE run_id = runs.id)
    OR EXISTS (SELECT FROM journal WHERE run_id = runs.id)
    OR EXISTS (SELECT FROM idempotency_keys WHERE run_id = runs.id))
ORDER BY id LIMIT $1
"""
