"""Whether this process can serve: database reachable, schema fit, not shutting down."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import DatabaseUnavailableError, SchemaError
from app.storage.database import Database
from app.storage.schema import require_usable_schema

LIMIT = 1.5


@dataclass(frozen=True, slots=True)
class Readiness:
    """`reason` is None when ready."""

    model: str
    reason: str | None


class Health:
    def __init__(
        self,
        database: Database,
        *,
        model: str,
        is_draining: Callable[[], bool],
        may_run_turns: Callable[[], bool],
    ) -> None:
        """`may_run_turns`: this process is known to the database as one that does."""
        self._database = database
        self._model = model
        self._is_draining = is_draining
        self._may_run_turns = may_run_turns
        self._look: asyncio.Future[str | None] | None = None

    async def readiness(self) -> Readiness:
        """Answers within two seconds."""
        return Readiness(self._model, "draining" if self._is_draining() else await self._fault())

    async def _fault(self) -> str | None:
        """One look at a time. One that takes too long goes on: to break it off takes time as well."""
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(self._fault_found())
        await asyncio.wait([self._look], timeout=LIMIT)
        return self._look.result() if self._look.done() else "database_unavailable"

    async def _fault_found(self) -> str | None:
        try:
            await require_usable_schema(self._database)
        except DatabaseUnavailableError:
            return "database_unavailable"
        except SchemaError:
            return "schema_behind"
        return None if self._may_run_turns() else "database_unavailable"
