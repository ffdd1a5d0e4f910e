"""Event log, idempotency keys, requested cancellations.

Works with release 0.1.0 and later.
"""

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("first_seq", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("frames", sa.Text(), nullable=False),
        sa.CheckConstraint("first_seq BETWEEN 1 AND last_seq", name="events_seq"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("events_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "turn_id", "first_seq", name=op.f("events_pkey")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_hash", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("idempotency_keys_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "scope", "key", name=op.f("idempotency_keys_pkey")),
    )
    op.create_index("idempotency_keys_by_age", "idempotency_keys", ["created_at"], unique=False)
    op.create_index("idempotency_keys_by_run", "idempotency_keys", ["run_id"], unique=False)
    op.add_column(
        "turns", sa.Column("last_seq", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column(
        "turns", sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column("turns", sa.Column("cancel_requested_by", sa.Text(), nullable=True))
    # The planner's samples would keep what people wrote after it was erased.
    op.execute("ALTER TABLE events ALTER COLUMN frames SET STATISTICS 0")


def downgrade() -> None:
    op.drop_column("turns", "cancel_requested_by")
    op.drop_column("turns", "cancel_requested_at")
    op.drop_column("turns", "last_seq")
    op.drop_index("idempotency_keys_by_run", table_name="idempotency_keys")
    op.drop_index("idempotency_keys_by_age", table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_table("events")
