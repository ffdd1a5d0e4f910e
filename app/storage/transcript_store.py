"""Content: the messages of every turn. History is a view on it; there is no second copy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Select, Text, bindparam, cast, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.caller import Action, Caller
from app.errors import NotFoundError
from app.ids import ConversationId, MessageId, TurnId
from app.messages.codec import StoredMessage, decode
from app.messages.message import ConversationMessage, Role
from app.runs import Turn, TurnStatus
from app.storage.database import Driver, Row
from app.storage.run_state_store import usage_of
from app.storage.tables import messages, runs, turns
from app.storage.visibility import visible


@dataclass(frozen=True, slots=True)
class PlacedMessage:
    """A message and the turn it belongs to."""

    message: ConversationMessage
    turn_id: TurnId
    turn_number: int


@dataclass(frozen=True, slots=True)
class TurnWithMessages:
    turn: Turn
    messages: Sequence[PlacedMessage]


class TranscriptStore:
    async def load_recent_turns(
        self, driver: Driver, run_id: ConversationId, *, before: int, limit: int
    ) -> Sequence[ConversationMessage]:
        """The messages of the last `limit` whole turns before that number, oldest first.

        Turns that ended with nothing to show are left out.
        """
        rows: Sequence[Row] = await driver.fetch(_RECENT_TURNS, run_id, before, limit)
        return [decode(_stored(row)) for row in rows]

    async def prompt(self, driver: Driver, turn_id: TurnId) -> ConversationMessage:
        """The user message that began the turn."""
        row: Row = await driver.fetchrow(_PROMPT, turn_id)
        return decode(_stored(row))

    async def history(
        self,
        connection: AsyncConnection,
        caller: Caller,
        run_id: ConversationId,
        *,
        before: int | None,
        limit: int,
    ) -> Sequence[PlacedMessage]:
        """The messages of the `limit` latest turns before that number, oldest first."""
        page = select(turns).join(runs, turns.c.run_id == runs.c.id)
        page = page.where(visible(caller, "read"), turns.c.run_id == run_id)
        if before is not None:
            page = page.where(turns.c.number < before)
        page = page.order_by(turns.c.number.desc()).limit(limit).subquery()
        query = select(
            *_MESSAGE_COLUMNS, page.c.id.label("turn_id"), page.c.number.label("turn_number")
        )
        query = query.join_from(page, messages, _lies_in(page.c)).order_by(messages.c.seq)
        rows = (await connection.execute(query)).mappings()
        return [_placed(row) for row in rows]

    async def turn(
        self,
        connection: AsyncConnection,
        caller: Caller,
        run_id: ConversationId,
        turn_id: TurnId,
        *,
        action: Action = "read",
    ) -> TurnWithMessages:
        """One turn with its messages, by one statement. Raises NotFoundError.

        Who may write may also see how the turn ended that they began.
        """
        found = await _turn_with_messages(
            connection,
            run_id=run_id,
            turn_id=turn_id,
            user_id=caller.user_id,
            anyone=caller.acts_for_anyone(action),
        )
        if found is None:
            raise NotFoundError
        return found

    async def any_turn(
        self, connection: AsyncConnection, run_id: ConversationId, turn_id: TurnId
    ) -> TurnWithMessages | None:
        """The same for one who was let in before; None when it was erased meanwhile."""
        return await _turn_with_messages(
            connection, run_id=run_id, turn_id=turn_id, user_id="", anyone=True
        )

    async def turns(
        self,
        connection: AsyncConnection,
        caller: Caller,
        run_id: ConversationId,
        *,
        before: int | None,
        limit: int,
    ) -> Sequence[Turn]:
        """Up to `limit` turns before that number, newest first."""
        query = _select_turns(run_id).where(visible(caller, "read"))
        query = query.order_by(turns.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(turns.c.number < before)
        rows = (await connection.execute(query)).mappings()
        return [_turn(row, row["output"]) for row in rows]

    async def turn_numbered(
        self, connection: AsyncConnection, run_id: ConversationId, number: int
    ) -> Turn | None:
        """That turn, for one who was let in before; None when there is none, or it was erased."""
        query = _select_turns(run_id).where(turns.c.number == number, runs.c.erased_at.is_(None))
        row = (await connection.execute(query)).mappings().one_or_none()
        return None if row is None else _turn(row, row["output"])

    async def status(self, driver: Driver, turn_id: TurnId) -> TurnStatus | None:
        """How the turn stands; None when it was erased."""
        row: Row | None = await driver.fetchrow(_STATUS, turn_id)
        return None if row is None else TurnStatus(row["status"])

    async def ended_at(self, driver: Driver, turn_id: TurnId) -> datetime | None:
        """When the turn has ended, by whoever ended it; None while it runs, or when it was erased."""
        row: Row | None = await driver.fetchrow(_ENDED_AT, turn_id)
        return None if row is None else row["completed_at"]


async def _turn_with_messages(
    connection: AsyncConnection, **parameters: object
) -> TurnWithMessages | None:
    rows = (await connection.execute(_TURN_WITH_MESSAGES, parameters)).mappings().all()
    if not rows:
        return None
    placed = [_placed(row) for row in rows if row["message_id"] is not None]
    said = [item.message.content for item in placed if item.message.role is Role.ASSISTANT]
    spoken = [content for content in said if content]
    return TurnWithMessages(_turn(rows[0], spoken[-1] if spoken else None), placed)


def _select_turns(run_id: ConversationId) -> Select[Any]:
    """To be limited to what the caller may see."""
    answer = (
        select(messages.c.content)
        .where(_lies_in(turns.c), messages.c.role == Role.ASSISTANT.value, messages.c.content != "")
        .order_by(messages.c.seq.desc())
        .limit(1)
        .correlate(turns)
        .scalar_subquery()
    )
    query = select(turns, answer.label("output")).join(runs, turns.c.run_id == runs.c.id)
    return query.where(turns.c.run_id == run_id)


def _lies_in(turn: Any) -> Any:
    """A message lies in a turn: by the primary key, without an index of its own."""
    return (messages.c.run_id == turn.run_id) & messages.c.seq.between(
        turn.first_message_seq, turn.last_message_seq
    )


_MESSAGE_COLUMNS = (
    messages.c.id.label("message_id"),
    messages.c.role,
    messages.c.status.label("message_status"),
    messages.c.content,
    cast(messages.c.metadata, Text).label("message_metadata"),
    messages.c.created_at.label("message_created_at"),
)

# Built once: it is read at the end of every blocking send.
_TURN_WITH_MESSAGES = (
    select(turns, *_MESSAGE_COLUMNS)
    .join_from(turns, runs, turns.c.run_id == runs.c.id)
    .outerjoin(messages, _lies_in(turns.c))
    .where(
        turns.c.id == bindparam("turn_id"),
        turns.c.run_id == bindparam("run_id"),
        runs.c.erased_at.is_(None),
        or_(runs.c.user_id == bindparam("user_id"), bindparam("anyone", type_=Boolean)),
    )
    .order_by(messages.c.seq)
)


def _placed(row: Mapping[Any, Any]) -> PlacedMessage:
    turn_id = row["turn_id"] if "turn_id" in row else row["id"]
    number = row["turn_number"] if "turn_number" in row else row["number"]
    return PlacedMessage(decode(_stored(row)), TurnId(turn_id), number)


def _stored(row: Mapping[Any, Any]) -> StoredMessage:
    return StoredMessage(
        id=MessageId(row["message_id"]),
        role=row["role"],
        status=row["message_status"],
        content=row["content"],
        metadata=row["message_metadata"],
        created_at=row["message_created_at"],
    )


def _turn(row: Mapping[Any, Any], output: str | None) -> Turn:
    return Turn(
        id=TurnId(row["id"]),
        run_id=ConversationId(row["run_id"]),
        number=row["number"],
        status=TurnStatus(row["status"]),
        attempt=row["attempt"],
        output=output,
        reason=row["reason"],
        error=row["error"],
        model=row["model"],
        finish_reason=row["finish_reason"],
        usage=usage_of(row),
        request_id=row["request_id"],
        trace_id=row["trace_id"],
        created_at=row["created_at"],
        first_token_at=row["first_token_at"],
        completed_at=row["completed_at"],
        last_seq=row["last_seq"],
    )


_RECENT_TURNS = """
WITH seen AS (
    SELECT first_message_seq, last_message_seq FROM turns
    WHERE run_id = $1 AND number < $2 AND in_context
    ORDER BY number DESC LIMIT $3
)
SELECT messages.id AS message_id, role, status AS message_status, content,
       metadata::text AS message_metadata, created_at AS message_created_at
FROM seen
JOIN messages ON run_id = $1 AND seq BETWEEN first_message_seq AND last_message_seq
ORDER BY seq
"""

_PROMPT = """
SELECT messages.id AS message_id, role, messages.status AS message_status, content,
       metadata::text AS message_metadata, messages.created_at AS message_created_at
FROM turns JOIN messages ON messages.run_id = turns.run_id AND seq = first_message_seq
WHERE turns.id = $1
"""

_ENDED_AT = "SELECT completed_at FROM turns WHERE id = $1"

_STATUS = """
SELECT turns.status FROM turns JOIN runs ON runs.id = run_id
WHERE turns.id = $1 AND erased_at IS NULL
"""
