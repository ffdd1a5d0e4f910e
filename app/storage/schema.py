"""Brings the schema to the release's own revision, and says how the two compare."""

from enum import Enum
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import SchemaError
from app.storage.database import Database

OLDEST_SERVER = 150_000

# Any number, the same in every release; it only has to differ from other users of the database.
_MIGRATION_LOCK = 6_203_911_405


class SchemaState(Enum):
    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"


async def migrate(database: Database) -> None:
    """Upgrades to head. Any number of processes may call this at once on an empty database."""
    async with database.transaction() as connection:
        await _check_server(connection)
        await connection.execute(
            text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK}
        )
        await connection.run_sync(_upgrade)


async def schema_state(database: Database) -> SchemaState:
    """AHEAD means a newer release has migrated: rolling upgrades run like this for a while."""
    async with database.connection() as connection:
        await _check_server(connection)
        return await connection.run_sync(_compare)


async def require_usable_schema(database: Database) -> SchemaState:
    """Raises SchemaError when the schema is behind what this release needs."""
    state = await schema_state(database)
    if state is SchemaState.BEHIND:
        raise SchemaError(
            "the database schema is behind this release: run 'chat-workflow migrate', "
            "or set CHAT_AUTO_MIGRATE=on"
        )
    return state


async def _check_server(connection: AsyncConnection) -> None:
    row = (await connection.execute(text("SHOW server_version_num"))).one()
    version = int(row[0])
    if version < OLDEST_SERVER:
        raise SchemaError(f"PostgreSQL {version // 10_000} is too old: 15 or newer is needed")


def _upgrade(connection: Connection) -> None:
    command.upgrade(migration_config(connection), "head")


def _compare(connection: Connection) -> SchemaState:
    script = ScriptDirectory.from_config(migration_config(connection))
    found = MigrationContext.configure(connection).get_current_revision()
    if found == script.get_current_head():
        return SchemaState.CURRENT
    known = {revision.revision for revision in script.walk_revisions()}
    return SchemaState.BEHIND if found is None or found in known else SchemaState.AHEAD


def migration_config(connection: Connection) -> Config:
    config = Config()
    config.attributes["connection"] = connection
    config.set_main_option("script_location", str(migrations_directory()))
    return config


def migrations_directory() -> Path:
    """Inside an installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "alembic"
    return installed if installed.is_dir() else package.parent / "alembic"
