"""A database without a service: nothing sweeps or renews here but what a test starts."""

from collections.abc import AsyncGenerator

import pytest
from sqlalchemy import text

from app.storage.database import Database, opened_database
from app.storage.schema import migrate
from app.storage.tables import metadata


@pytest.fixture(scope="session")
async def _storage(postgres_url: str) -> AsyncGenerator[Database]:
    async with opened_database(postgres_url, pool_size=1) as server:
        async with server.connection() as connection:
            await connection.execute(text("CREATE DATABASE storage"))
        url = server.url.set(database="storage").render_as_string(hide_password=False)
    async with opened_database(url, pool_size=10) as database:
        await migrate(database)
        yield database


@pytest.fixture
async def database(_storage: Database) -> AsyncGenerator[Database]:
    yield _storage
    async with _storage.transaction() as transaction:
        for table in reversed(metadata.sorted_tables):
            await transaction.execute(table.delete())
