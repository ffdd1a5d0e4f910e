"""Whether this process can serve: database reachable, schema fit, not shutting down."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import DatabaseUnavailableError, SchemaError
from app.storage.database import Database
from app.storage.schema import require_usable_schema

LIMIT = 2.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """`reason` is None when ready."""

    model: str
    reason: str | None


class Health:
    def __init__(self, database: Database, *, model: str, is_draining: Callable[[], bool]) -> None:
        self._database = database
        self._model = model
        self._is_draining = is_draining

    async def readiness(self) -> Readiness:
        """Answers within two seconds."""
        return Readiness(self._model, "draining" if self._is_draining() else await self._fault())

    async def _fault(self) -> str | None:
        try:
            async with asyncio.timeout(LIMIT):
                await require_usable_schema(self._database)
        except (DatabaseUnavailableError, TimeoutError):
            return "database_unavailable"
        except SchemaError:
            return "schema_behind"
        return None
