"""Attempts of a turn after the death of its process, and the journal that they go on from.

Works with release 0.1.0 and later.
"""

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.add_column(
        "turns", sa.Column("deaths", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.create_table(
        "journal",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("turn_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("journal_run_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "turn_id", "name", name=op.f("journal_pkey")),
    )
    # The planner's samples would keep what tools and models said after it was erased.
    op.execute("ALTER TABLE journal ALTER COLUMN result SET STATISTICS 0")


def downgrade() -> None:
    op.drop_table("journal")
    op.drop_column("turns", "deaths")
