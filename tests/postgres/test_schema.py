"""Migrations: any number at once, and equal to the tables in the code."""

import asyncio
import sys
from collections.abc import AsyncGenerator

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from app.errors import SchemaError
from app.storage.database import Database, opened_database
from app.storage.schema import (
    SchemaState,
    migrate,
    migration_config,
    require_usable_schema,
    schema_state,
)
from app.storage.tables import metadata


@pytest.fixture
async def empty(postgres_url: str) -> AsyncGenerator[str]:
    """The URL of a database of its own, without tables."""
    async with opened_database(postgres_url, pool_size=1) as server:
        async with server.connection() as connection:
            await connection.execute(text("CREATE DATABASE migrated"))
        yield server.url.set(database="migrated").render_as_string(hide_password=False)
        async with server.connection() as connection:
            await connection.execute(text("DROP DATABASE migrated WITH (FORCE)"))


async def test_three_processes_may_migrate_an_empty_database_at_once(empty: str) -> None:
    script = (
        "import asyncio, sys\n"
        "from app.storage.database import opened_database\n"
        "from app.storage.schema import migrate\n"
        "async def main():\n"
        "    async with opened_database(sys.argv[1], pool_size=1) as database:\n"
        "        await migrate(database)\n"
        "asyncio.run(main())\n"
    )
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script, empty) for _ in range(3)
    ]

    assert [await process.wait() for process in processes] == [0, 0, 0]
    async with opened_database(empty, pool_size=1) as database:
        assert await schema_state(database) is SchemaState.CURRENT


async def test_a_migrated_schema_equals_the_tables(empty: str) -> None:
    async with opened_database(empty, pool_size=1) as database:
        await migrate(database)
        async with database.connection() as connection:
            assert await connection.run_sync(_differences) == []


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    return list(compare_metadata(context, metadata))


async def test_the_last_migration_can_be_taken_back(empty: str) -> None:
    async with opened_database(empty, pool_size=1) as database:
        await migrate(database)
        await _downgrade(database)
        await migrate(database)
        assert await schema_state(database) is SchemaState.CURRENT


async def _downgrade(database: Database) -> None:
    def down(connection: Connection) -> None:
        config = migration_config(connection)
        command.downgrade(config, "-1")

    async with database.transaction() as transaction:
        await transaction.run_sync(down)


async def test_an_older_schema_is_refused_and_a_newer_one_taken(empty: str) -> None:
    async with opened_database(empty, pool_size=1) as database:
        with pytest.raises(SchemaError, match="behind this release: run 'chat-workflow migrate'"):
            await require_usable_schema(database)
        await migrate(database)
        async with database.connection() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = 'future'"))
        assert await require_usable_schema(database) is SchemaState.AHEAD


async def test_nothing_is_sampled_of_what_people_write(database: Database) -> None:
    async with database.statement() as driver:
        rows = await driver.fetch(
            "SELECT attrelid::regclass::text || '.' || attname AS name FROM pg_attribute "
            "JOIN pg_class ON pg_class.oid = attrelid "
            "WHERE attstattarget = 0 AND attnum > 0 AND relnamespace = 'public'::regnamespace"
        )
    assert {row["name"] for row in rows} == {
        *("runs.title", "runs.metadata", "runs.config", "turns.error"),
        *("messages.content", "messages.metadata", "events.frames", "journal.result"),
    }
