"""Requests that a client may safely repeat: what came of them, found by its key."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import IdempotencyMismatchError
from app.ids import ConversationId, TurnId
from app.storage.database import Driver, Row
from app.storage.tables import idempotency_keys

CREATE = "create"


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A client's key within its scope, and a hash of what it asked for."""

    user_id: str
    scope: str
    key: str
    request_hash: str


@dataclass(frozen=True, slots=True)
class KnownRequest:
    run_id: ConversationId
    turn_id: TurnId | None


class IdempotencyStore:
    async def find(self, connection: AsyncConnection, key: RequestKey) -> KnownRequest | None:
        """What this key stands for. Raises IdempotencyMismatchError when it is something else."""
        table = idempotency_keys.c
        query = select(table.request_hash, table.run_id, table.turn_id).where(
            table.user_id == key.user_id, table.scope == key.scope, table.key == key.key
        )
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        if row.request_hash != key.request_hash:
            raise IdempotencyMismatchError
        return KnownRequest(row.run_id, row.turn_id)

    async def add(
        self, connection: AsyncConnection, key: RequestKey, run_id: ConversationId
    ) -> None:
        """For a create; a send's key is added by its claim. Raises KeyTakenError."""
        await connection.execute(
            insert(idempotency_keys).values(
                user_id=key.user_id,
                scope=key.scope,
                key=key.key,
                request_hash=key.request_hash,
                run_id=run_id,
                created_at=func.now(),
            )
        )

    async def prune(self, driver: Driver, older_than: timedelta, limit: int) -> int:
        """Removes up to `limit` keys that are older; returns how many."""
        row: Row = await driver.fetchrow(_PRUNE, older_than, limit)
        return row["removed"]


_PRUNE = """
WITH removed AS (
    DELETE FROM idempotency_keys WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM idempotency_keys WHERE created_at < now() - $1::interval
        LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*)::int AS removed FROM removed
"""
