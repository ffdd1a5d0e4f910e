"""conversations, turns, messages, workers and API keys

Works with release 0.1.0 and later.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


HOLDS_WHAT_PEOPLE_WROTE = (
    ("runs", "title"),
    ("runs", "metadata"),
    ("runs", "config"),
    ("turns", "error"),
    ("messages", "content"),
    ("messages", "metadata"),
)


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
        sa.UniqueConstraint("token_hash", name="api_keys_token_hash_key"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=True),
        sa.Column("metadata", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("config", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("parent_workflow_id", sa.Text(), nullable=True),
        sa.Column("turn_count", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("next_message_seq", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_read_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cost", sa.Numeric(), nullable=True),
        sa.Column("usage_estimated", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("active_turn_id", sa.Uuid(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("erased_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind = 'chat'", name="runs_kind"),
        sa.CheckConstraint("status IN ('open', 'closed')", name="runs_status"),
        sa.CheckConstraint(
            "(active_turn_id IS NULL) = (worker_id IS NULL)", name="runs_active_turn_has_a_worker"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("runs_pkey")),
        postgresql_with={"fillfactor": "80"},
    )
    op.create_index(
        "runs_by_activity",
        "runs",
        ["user_id", sa.literal_column("updated_at DESC"), sa.literal_column("id DESC")],
        unique=False,
    )
    op.create_index(
        "runs_by_creation",
        "runs",
        ["user_id", sa.literal_column("created_at DESC"), sa.literal_column("id DESC")],
        unique=False,
    )
    op.create_index(
        "runs_by_worker",
        "runs",
        ["worker_id"],
        unique=False,
        postgresql_where=sa.text("worker_id IS NOT NULL"),
    )
    op.create_index(
        "runs_erased",
        "runs",
        ["erased_at"],
        unique=False,
        postgresql_where=sa.text("erased_at IS NOT NULL"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("alive_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("workers_pkey")),
    )
    op.create_table(
        "messages",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("turn_number", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("metadata", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "role IN ('user', 'assistant', 'tool_call', 'tool_result')", name="messages_role"
        ),
        sa.CheckConstraint("status IN ('complete', 'partial')", name="messages_status"),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("messages_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("messages_pkey")),
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("first_message_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_message_seq", sa.BigInteger(), nullable=False),
        sa.Column("in_context", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("error", postgresql.JSON(astext_type=sa.Text()), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_read_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cost", sa.Numeric(), nullable=True),
        sa.Column("usage_estimated", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_token_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status = 'running') = (completed_at IS NULL)", name="turns_ended_has_a_time"
        ),
        sa.CheckConstraint(
            "status IN ('running', 'completed', 'incomplete', 'cancelled', 'failed')",
            name="turns_status",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("turns_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("turns_pkey")),
        sa.UniqueConstraint("run_id", "number", name="turns_run_id_number_key"),
    )
    op.create_index(
        "one_live_turn_per_run",
        "turns",
        ["run_id"],
        unique=True,
        postgresql_where=sa.text("status = 'running'"),
    )
    # The planner's samples would keep what people wrote after it was erased.
    for table, column in HOLDS_WHAT_PEOPLE_WROTE:
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")


def downgrade() -> None:
    op.drop_index(
        "one_live_turn_per_run", table_name="turns", postgresql_where=sa.text("status = 'running'")
    )
    op.drop_table("turns")
    op.drop_table("messages")
    op.drop_table("workers")
    op.drop_index(
        "runs_erased", table_name="runs", postgresql_where=sa.text("erased_at IS NOT NULL")
    )
    op.drop_index(
        "runs_by_worker", table_name="runs", postgresql_where=sa.text("worker_id IS NOT NULL")
    )
    op.drop_index("runs_by_creation", table_name="runs")
    op.drop_index("runs_by_activity", table_name="runs")
    op.drop_table("runs")
    op.drop_table("api_keys")
