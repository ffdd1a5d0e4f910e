"""A database of its own for each test, which its processes share."""

from collections.abc import AsyncGenerator

import pytest
from sqlalchemy import text

from app.storage.database import Database, opened_database
from app.storage.schema import migrate


@pytest.fixture
async def database(postgres_url: str) -> AsyncGenerator[Database]:
    async with opened_database(postgres_url, pool_size=1) as server:
        async with server.connection() as connection:
            await connection.execute(text("DROP DATABASE IF EXISTS chaos WITH (FORCE)"))
            await connection.execute(text("CREATE DATABASE chaos"))
        url = server.url.set(database="chaos").render_as_string(hide_password=False)
    async with opened_database(url, pool_size=2, command_timeout=None) as database:
        await migrate(database)
        yield database
