"""Keys of the API: hashes, never tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.caller import Caller
from app.ids import KeyId
from app.storage.database import Driver, Row
from app.storage.tables import api_keys


@dataclass(frozen=True, slots=True)
class StoredKey:
    id: KeyId
    user_id: str
    scopes: Sequence[str]
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class KeyStore:
    async def add(
        self,
        connection: AsyncConnection,
        *,
        key_id: KeyId,
        user_id: str,
        token_hash: str,
        scopes: Sequence[str],
    ) -> None:
        await connection.execute(
            insert(api_keys).values(
                id=key_id,
                user_id=user_id,
                token_hash=token_hash,
                scopes=list(scopes),
                created_at=func.now(),
            )
        )

    async def list(self, connection: AsyncConnection) -> Sequence[StoredKey]:
        query = select(api_keys).order_by(api_keys.c.created_at)
        return [_key(row) for row in (await connection.execute(query)).mappings()]

    async def revoke(self, connection: AsyncConnection, key_id: KeyId) -> bool:
        """False when there is no such key, or it was revoked before."""
        result = await connection.execute(
            update(api_keys)
            .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=func.now())
            .returning(api_keys.c.id)
        )
        return result.one_or_none() is not None

    async def caller(self, driver: Driver, token_hash: str) -> Caller | None:
        """Who bears this token. Notes the use, at most once a minute."""
        row: Row | None = await driver.fetchrow(_CALLER, token_hash)
        return None if row is None else Caller(row["user_id"], frozenset(row["scopes"]))


def _key(row: Mapping[Any, Any]) -> StoredKey:
    return StoredKey(
        id=KeyId(row["id"]),
        user_id=row["user_id"],
        scopes=row["scopes"],
        created_at=row["created_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )


_CALLER = """
WITH used AS (
    UPDATE api_keys SET last_used_at = now()
    WHERE token_hash = $1 AND revoked_at IS NULL
        AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
)
SELECT user_id, scopes FROM api_keys WHERE token_hash = $1 AND revoked_at IS NULL
"""
