"""Runs migrations on the connection that app.storage.schema hands over.

The advisory lock around an upgrade is taken there, before this file is read.
"""

from alembic import context
from sqlalchemy import Connection, text

from app.storage.tables import metadata


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_server_default=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        context.run_migrations()


run(context.config.attributes["connection"])
