"""A burst of requests leaves connections for the turns that run."""

import asyncio

import pytest

from app.errors import DatabaseUnavailableError
from app.storage import database as module
from app.storage.database import opened_database

SLEEP = "SELECT pg_sleep(0.3)"


async def _ask(part: module.Database, seen: list[int], whole: module.Database) -> None:
    async with part.statement() as driver:
        seen.append(whole.checked_out)
        await driver.execute(SLEEP)


async def test_requests_never_have_all_of_them(postgres_url: str) -> None:
    async with opened_database(postgres_url, pool_size=5) as whole:
        part, seen = whole.of_which(3), list[int]()
        asked = [asyncio.ensure_future(_ask(part, seen, whole)) for _ in range(9)]
        await asyncio.sleep(0.1)

        for _ in range(3):
            async with asyncio.timeout(0.2), whole.statement() as driver:
                assert await driver.fetchval("SELECT 1") == 1

        await asyncio.gather(*asked)
        assert max(seen) == 3


async def test_one_that_gets_none_in_time_is_told(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POOL_TIMEOUT", 0.1)
    async with opened_database(postgres_url, pool_size=2) as whole:
        part = whole.of_which(1)
        async with part.statement():
            with pytest.raises(DatabaseUnavailableError):
                async with part.connection():
                    pass
        async with part.transaction():
            assert whole.checked_out == 1
