"""Keys of the API: shown once, stored as a hash only."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from app.caller import Caller
from app.errors import UnauthenticatedError
from app.ids import KeyId, new_key_id
from app.storage.database import Database
from app.storage.key_store import KeyStore, StoredKey

PREFIX = "cw_"
TOKEN_BYTES = 32

SCOPES = (
    "conversations:read:any",
    "conversations:write:any",
    "conversations:delete:any",
)


class Keys:
    def __init__(self, database: Database, keys: KeyStore) -> None:
        self._database = database
        self._keys = keys

    async def create(self, user_id: str, scopes: Sequence[str]) -> tuple[KeyId, str]:
        """The new key's id, and its token, which nobody can ever read again."""
        key_id, token = new_key_id(), PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
        async with self._database.connection() as connection:
            await self._keys.add(
                connection,
                key_id=key_id,
                user_id=user_id,
                token_hash=_hash(token),
                scopes=scopes,
            )
        return key_id, token

    async def list(self) -> Sequence[StoredKey]:
        async with self._database.connection() as connection:
            return await self._keys.list(connection)

    async def revoke(self, key_id: KeyId) -> bool:
        """False when there is no such key, or it was revoked before."""
        async with self._database.connection() as connection:
            return await self._keys.revoke(connection, key_id)

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Who bears the token of `Authorization: Bearer …`. Raises UnauthenticatedError."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise UnauthenticatedError
        return await self._bearer(token.strip())

    async def _bearer(self, token: str) -> Caller:
        async with self._database.statement() as driver:
            caller = await self._keys.caller(driver, _hash(token))
        if caller is None:
            raise UnauthenticatedError
        return caller


def _hash(token: str) -> str:
    """A token is 32 random bytes: there is nothing to guess, so one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()
