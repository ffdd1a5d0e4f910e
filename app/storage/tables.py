"""Every table in one view. What a row means stands in the comment above it."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    }
)

ONE_LIVE_TURN_PER_RUN = "one_live_turn_per_run"


def _moment(name: str, *, optional: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=optional)


def _usage() -> list[Column[object]]:
    """Tokens and US dollars; null means unknown."""
    return [
        Column("input_tokens", BigInteger),
        Column("output_tokens", BigInteger),
        Column("cache_read_tokens", BigInteger),
        Column("reasoning_tokens", BigInteger),
        Column("cost", Numeric),
        Column("usage_estimated", Boolean, nullable=False, server_default=text("false")),
    ]


# A conversation. `active_turn_id`, `fence` and `worker_id` say who may write for it now.
# An erased one stays as a tombstone: id, user_id and erased_at, all else emptied.
runs = Table(
    "runs",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("title", Text),
    Column("metadata", JSON, nullable=False),
    Column("config", JSON, nullable=False),
    Column("session_id", Text),
    Column("parent_workflow_id", Text),
    Column("turn_count", Integer, nullable=False, server_default=text("0")),
    Column("next_message_seq", BigInteger, nullable=False, server_default=text("1")),
    *_usage(),
    Column("active_turn_id", Uuid),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("worker_id", Uuid),
    Column("version", BigInteger, nullable=False, server_default=text("1")),
    _moment("created_at"),
    _moment("updated_at"),
    _moment("closed_at", optional=True),
    _moment("erased_at", optional=True),
    CheckConstraint("kind = 'chat'", name="runs_kind"),
    CheckConstraint("status IN ('open', 'closed')", name="runs_status"),
    CheckConstraint(
        "(active_turn_id IS NULL) = (worker_id IS NULL)", name="runs_active_turn_has_a_worker"
    ),
    # Room on the page for the two updates that every turn makes of its run.
    postgresql_with={"fillfactor": "80"},
)
Index("runs_by_activity", runs.c.user_id, runs.c.updated_at.desc(), runs.c.id.desc())
Index("runs_by_creation", runs.c.user_id, runs.c.created_at.desc(), runs.c.id.desc())
Index("runs_by_worker", runs.c.worker_id, postgresql_where=runs.c.worker_id.is_not(None))
Index("runs_erased", runs.c.erased_at, postgresql_where=runs.c.erased_at.is_not(None))

# A turn: one step of a conversation. Its messages are first_message_seq … last_message_seq, its
# events 1 … last_seq, which is set when it ends.
# `in_context`: it ended with something to show, so later turns see it.
# `deaths`: how many of its attempts ended with the death of their process.
turns = Table(
    "turns",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("1")),
    Column("deaths", Integer, nullable=False, server_default=text("0")),
    Column("first_message_seq", BigInteger, nullable=False),
    Column("last_message_seq", BigInteger, nullable=False),
    Column("last_seq", Integer, nullable=False, server_default=text("0")),
    Column("in_context", Boolean, nullable=False, server_default=text("false")),
    Column("reason", Text),
    Column("error", JSON),
    Column("model", Text),
    Column("finish_reason", Text),
    *_usage(),
    Column("request_id", Text),
    Column("trace_id", Text),
    _moment("cancel_requested_at", optional=True),
    Column("cancel_requested_by", Text),
    _moment("created_at"),
    _moment("first_token_at", optional=True),
    _moment("completed_at", optional=True),
    UniqueConstraint("run_id", "number", name="turns_run_id_number_key"),
    CheckConstraint(
        "status IN ('running', 'completed', 'incomplete', 'cancelled', 'failed')",
        name="turns_status",
    ),
    CheckConstraint("(status = 'running') = (completed_at IS NULL)", name="turns_ended_has_a_time"),
)
Index(
    ONE_LIVE_TURN_PER_RUN,
    turns.c.run_id,
    unique=True,
    postgresql_where=turns.c.status == "running",
)

# A message. `metadata` is json, not jsonb: the order of keys reaches the model and its cache.
messages = Table(
    "messages",
    metadata,
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("id", Uuid, nullable=False),
    Column("turn_number", Integer, nullable=False),
    Column("role", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("metadata", JSON, nullable=False),
    _moment("created_at"),
    PrimaryKeyConstraint("run_id", "seq"),
    CheckConstraint(
        "role IN ('user', 'assistant', 'tool_call', 'tool_result')", name="messages_role"
    ),
    CheckConstraint("status IN ('complete', 'partial')", name="messages_status"),
)

# A flush of one turn: the exact documents that clients were shown, one a line.
events = Table(
    "events",
    metadata,
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", Uuid, nullable=False),
    Column("first_seq", Integer, nullable=False),
    Column("last_seq", Integer, nullable=False),
    Column("frames", Text, nullable=False),
    PrimaryKeyConstraint("run_id", "turn_id", "first_seq"),
    CheckConstraint("first_seq BETWEEN 1 AND last_seq", name="events_seq"),
)

# A model request or tool call of a running turn that has finished: its next attempt goes on behind
# it. `result` is JSON text, as the framework gave it. Removed when the turn ends.
journal = Table(
    "journal",
    metadata,
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", Uuid, nullable=False),
    Column("name", Text, nullable=False),
    Column("result", Text, nullable=False),
    PrimaryKeyConstraint("run_id", "turn_id", "name"),
)

# A create or send that its client may safely repeat. `scope` is "create" or the conversation's id.
# It names the run that it made or used, and for a send the turn.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("user_id", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("request_hash", Text, nullable=False),
    Column("run_id", Uuid, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("turn_id", Uuid),
    _moment("created_at"),
    PrimaryKeyConstraint("user_id", "scope", "key"),
)
Index("idempotency_keys_by_run", idempotency_keys.c.run_id)
Index("idempotency_keys_by_age", idempotency_keys.c.created_at)

# A process that runs turns: one small row to renew for all of them. Not referenced by a foreign
# key, so that claims do not lock it; a missing row counts as dead.
workers = Table(
    "workers",
    metadata,
    Column("id", Uuid, primary_key=True),
    _moment("alive_until"),
    _moment("released_at", optional=True),
)

# A key of the API: only the hash of its token is kept.
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("token_hash", Text, nullable=False),
    Column("scopes", JSON, nullable=False),
    _moment("created_at"),
    _moment("last_used_at", optional=True),
    _moment("revoked_at", optional=True),
    UniqueConstraint("token_hash", name="api_keys_token_hash_key"),
)
