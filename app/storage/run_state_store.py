"""Life cycle: which conversations exist, which turn runs, and who may write for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, and_, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.caller import Action, Caller
from app.errors import ConversationClosedError, NotFoundError, TurnInProgressError
from app.ids import ConversationId, TurnId, WorkerId
from app.messages.codec import StoredMessage, decode, dump_json
from app.messages.message import ConversationMessage
from app.runs import (
    ActiveTurn,
    BegunTurn,
    Claim,
    RestartReason,
    Run,
    RunStatus,
    Turn,
    TurnStatus,
    Usage,
)
from app.storage.database import Driver, Row
from app.storage.idempotency_store import RequestKey
from app.storage.notices import CHANGES, EVENTS, told
from app.storage.tables import runs, turns
from app.storage.visibility import visible
from app.wire.event import Frame, lines


class Order(StrEnum):
    """How conversations are listed: always the newest first."""

    UPDATED = "updated_at"
    CREATED = "created_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    id: ConversationId
    user_id: str
    title: str | None
    metadata: Mapping[str, object]
    config: Mapping[str, object]
    session_id: str | None
    parent_workflow_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTurn:
    """What a claim stores: the turn and its user message. `title` is used if there is none yet."""

    id: TurnId
    worker_id: WorkerId
    message: StoredMessage
    title: str
    request_id: str | None
    trace_id: str | None
    key: RequestKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """What a turn leaves behind: the turn as it shall stand, and what is new.

    `in_context`: later turns shall see it. `frames`: the events that are not in the log yet, the
    terminal one last.
    """

    turn: Turn
    messages: Sequence[StoredMessage]
    in_context: bool
    frames: Sequence[Frame]


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn that runs somewhere, as far as whoever ends it by force must know it."""

    claim: Claim
    turn: Turn
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Orphan:
    """A running turn that nobody runs. `deaths` counts this one too, if it was one."""

    running: RunningTurn
    deaths: int
    reason: RestartReason


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A turn that is ours from now on, but for what the log and the transcript hold of it."""

    claim: Claim
    number: int
    attempt: int
    user_id: str
    config: Mapping[str, object]
    request_id: str | None
    trace_id: str | None
    created_at: datetime
    now: datetime

    def begun(
        self, prompt: ConversationMessage, last_seq: int, restarted: RestartReason
    ) -> BegunTurn:
        """As its next attempt, which goes on after that event."""
        return BegunTurn(
            claim=self.claim,
            number=self.number,
            attempt=self.attempt,
            user_id=self.user_id,
            user_message_id=prompt.id,
            prompt=prompt.content,
            prompt_metadata=prompt.sent_metadata,
            config=self.config,
            request_id=self.request_id,
            trace_id=self.trace_id,
            created_at=self.created_at,
            started_at=self.now,
            last_seq=last_seq,
            restarted=restarted,
        )


class RunStateStore:
    """Each method is one statement, but those whose caller holds the transaction: `lock` and after."""

    async def create(self, connection: AsyncConnection, new: NewRun) -> Run:
        values = {
            "id": new.id,
            "kind": "chat",
            "user_id": new.user_id,
            "status": RunStatus.OPEN.value,
            "title": new.title,
            "metadata": new.metadata,
            "config": new.config,
            "session_id": new.session_id,
            "parent_workflow_id": new.parent_workflow_id,
            "created_at": func.now(),
            "updated_at": func.now(),
        }
        result = await connection.execute(insert(runs).values(values).returning(runs))
        return _run(result.mappings().one())

    async def get(self, connection: AsyncConnection, caller: Caller, run_id: ConversationId) -> Run:
        """Raises NotFoundError."""
        query = _select_runs().where(visible(caller, "read"), runs.c.id == run_id)
        row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            raise NotFoundError
        return _run(row)

    async def require(
        self,
        connection: AsyncConnection,
        caller: Caller,
        run_id: ConversationId,
        action: Action,
    ) -> None:
        """Raises NotFoundError when there is no such conversation for this action."""
        query = select(runs.c.id).where(visible(caller, action), runs.c.id == run_id)
        if (await connection.execute(query)).one_or_none() is None:
            raise NotFoundError

    async def list(
        self,
        connection: AsyncConnection,
        caller: Caller,
        *,
        limit: int,
        order: Order,
        after: tuple[datetime, ConversationId] | None,
        status: RunStatus | None,
        user_id: str | None,
    ) -> Sequence[Run]:
        """Up to `limit` conversations after that place; only the caller's own unless `user_id`."""
        moment = runs.c[order.value]
        query = _select_runs().where(visible(caller, "read"))
        query = query.where(runs.c.user_id == (user_id or caller.user_id))
        if status is not None:
            query = query.where(runs.c.status == status.value)
        if after is not None:
            query = query.where(tuple_(moment, runs.c.id) < tuple_(*after))
        query = query.order_by(moment.desc(), runs.c.id.desc()).limit(limit)
        rows = (await connection.execute(query)).mappings()
        return [_run(row) for row in rows]

    async def claim(
        self, driver: Driver, caller: Caller, run_id: ConversationId, new: NewTurn
    ) -> BegunTurn | None:
        """Begins a turn, or returns None and has stored nothing; `refusal` then says why.

        Raises KeyTakenError, and has stored nothing, when the request was stored before.
        """
        key = new.key
        row: Row | None = await driver.fetchrow(
            _CLAIM,
            run_id,
            caller.user_id,
            caller.acts_for_anyone("write"),
            new.id,
            new.worker_id,
            new.title,
            new.request_id,
            new.trace_id,
            new.message.id,
            new.message.content,
            new.message.metadata,
            None if key is None else key.user_id,
            None if key is None else key.scope,
            None if key is None else key.key,
            None if key is None else key.request_hash,
        )
        return None if row is None else _begun(run_id, new, row)

    async def begun(self, driver: Driver, run_id: ConversationId, new: NewTurn) -> BegunTurn | None:
        """The turn of a claim whose commit is not known to have arrived; None when it did not."""
        row: Row | None = await driver.fetchrow(_BEGUN, run_id, new.id)
        return None if row is None else _begun(run_id, new, row)

    async def refusal(
        self, connection: AsyncConnection, caller: Caller, run_id: ConversationId
    ) -> Exception | None:
        """Why a claim found nothing; None when the conversation is open and idle by now."""
        query = select(runs.c.status, runs.c.active_turn_id)
        query = query.where(visible(caller, "write"), runs.c.id == run_id)
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            return NotFoundError()
        if row.status == RunStatus.CLOSED.value:
            return ConversationClosedError()
        if row.active_turn_id is not None:
            return TurnInProgressError(run_id, TurnId(row.active_turn_id))
        return None

    async def finish(self, driver: Driver, claim: Claim, end: TurnEnd) -> bool:
        """Ends the turn if it is still ours; one statement for turn, messages and run."""
        turn, messages, usage = end.turn, end.messages, end.turn.usage
        row: Row | None = await driver.fetchrow(
            _FINISH,
            claim.run_id,
            claim.turn_id,
            claim.fence,
            turn.status.value,
            end.in_context,
            turn.reason,
            None if turn.error is None else dump_json(turn.error),
            turn.model,
            turn.finish_reason,
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.reasoning_tokens,
            usage.cost,
            usage.estimated,
            turn.first_token_at,
            [message.id for message in messages],
            [message.role for message in messages],
            [message.status for message in messages],
            [message.content for message in messages],
            [message.metadata for message in messages],
            [message.created_at for message in messages],
            turn.completed_at,
            end.frames[0].seq,
            end.frames[-1].seq,
            lines(end.frames),
        )
        return row is not None

    async def close(
        self, connection: AsyncConnection, caller: Caller, run_id: ConversationId
    ) -> Run:
        """Marks as completed; again is fine. Raises NotFoundError, TurnInProgressError."""
        run = await self.lock(connection, caller, run_id)
        if run.active_turn is not None:
            raise TurnInProgressError(run_id, run.active_turn.id)
        if run.status is RunStatus.CLOSED:
            return run
        closed = {"status": "closed", "closed_at": func.now(), "updated_at": func.now()}
        return await self._change(connection, run_id, closed)

    async def lock(
        self, connection: AsyncConnection, caller: Caller, run_id: ConversationId
    ) -> Run:
        """The conversation, which nobody else changes until the transaction ends.

        Two statements: what the first waited for, only a later one sees. Raises NotFoundError.
        """
        lock = select(runs.c.id).where(visible(caller, "write"), runs.c.id == run_id)
        if (await connection.execute(lock.with_for_update(key_share=True))).one_or_none() is None:
            raise NotFoundError
        return await self._read(connection, run_id)

    async def describe(
        self,
        connection: AsyncConnection,
        run_id: ConversationId,
        *,
        title: str | None,
        metadata: Mapping[str, object],
    ) -> Run:
        """Changes what a locked conversation is called and what its client keeps with it."""
        return await self._change(connection, run_id, {"title": title, "metadata": metadata})

    async def _change(
        self, connection: AsyncConnection, run_id: ConversationId, values: Mapping[str, object]
    ) -> Run:
        change = update(runs).where(runs.c.id == run_id)
        change = change.values(**values, version=runs.c.version + 1)
        await connection.execute(change.returning(told(CHANGES, runs.c.id)))
        return await self._read(connection, run_id)

    async def _read(self, connection: AsyncConnection, run_id: ConversationId) -> Run:
        query = _select_runs().where(runs.c.id == run_id)
        return _run((await connection.execute(query)).mappings().one())

    async def version(
        self, connection: AsyncConnection, caller: Caller, run_id: ConversationId
    ) -> int:
        """Grows with everything that can be seen of a conversation. Raises NotFoundError."""
        query = select(runs.c.version).where(visible(caller, "read"), runs.c.id == run_id)
        version = (await connection.execute(query)).scalar_one_or_none()
        if version is None:
            raise NotFoundError
        return version

    async def any_run(
        self, connection: AsyncConnection, run_id: ConversationId
    ) -> tuple[Run, datetime] | None:
        """The conversation and the time, for one who was let in before; None once it is erased."""
        query = _select_runs().add_columns(func.clock_timestamp().label("now"))
        query = query.where(runs.c.id == run_id, runs.c.erased_at.is_(None))
        row = (await connection.execute(query)).mappings().one_or_none()
        return None if row is None else (_run(row), row["now"])

    async def changed(
        self, driver: Driver, known: Mapping[ConversationId, int]
    ) -> Sequence[ConversationId]:
        """Which of these conversations are not at that version any more, or were erased."""
        rows: Sequence[Row] = await driver.fetch(_CHANGED, list(known), list(known.values()))
        return [ConversationId(row["id"]) for row in rows]

    async def orphans(
        self,
        driver: Driver,
        *,
        worker_id: WorkerId,
        held: Sequence[TurnId],
        expired_too: bool,
        lease: timedelta,
        limit: int,
    ) -> Sequence[Orphan]:
        """Running turns whose worker is dead, and our worker's own that nobody here holds.

        `expired_too`: a lease that has run out counts as death, not only one that was released;
        but not within one `lease` of the server's start, before which nobody could renew.
        """
        rows: Sequence[Row] = await driver.fetch(
            _ORPHANS, worker_id, list(held), expired_too, lease, limit
        )
        return [_orphan(row) for row in rows]

    async def take_over(
        self, driver: Driver, orphan: Orphan, worker_id: WorkerId
    ) -> TakenOver | None:
        """Makes the turn ours, as its next attempt. None: it has ended, is cancelled, or is locked.

        What the log holds must be read by a later statement: this one sees an older snapshot.
        """
        claim = orphan.running.claim
        row: Row | None = await driver.fetchrow(
            _TAKE_OVER, claim.run_id, claim.turn_id, claim.fence, worker_id, orphan.deaths
        )
        if row is None:
            return None
        return TakenOver(
            claim=Claim(claim.run_id, claim.turn_id, row["fence"]),
            number=row["number"],
            attempt=row["attempt"],
            user_id=row["user_id"],
            config=row["config"],
            request_id=row["request_id"],
            trace_id=row["trace_id"],
            created_at=row["created_at"],
            now=row["now"],
        )

    async def take(
        self, driver: Driver, claim: Claim, *, wait: bool = True
    ) -> tuple[Claim, datetime] | None:
        """Takes a turn from its owner, who can write nothing from then on; None: already ended.

        Also tells the time. Without `wait` one that somebody has locked counts as ended.
        What the log holds must be read by a later statement: this one sees an older snapshot.
        """
        take = _TAKE if wait else _TAKE_UNLOCKED
        row: Row | None = await driver.fetchrow(take, claim.run_id, claim.turn_id, claim.fence)
        if row is None:
            return None
        return Claim(claim.run_id, claim.turn_id, row["fence"]), row["now"]

    async def request_cancel(
        self, driver: Driver, caller: Caller, run_id: ConversationId, turn_id: TurnId | None
    ) -> RunningTurn | None:
        """Asks the owner of the running turn to end it; None when no such turn runs.

        Without `turn_id`: whichever runs. The fence stays, so that the owner can still write.
        """
        row: Row | None = await driver.fetchrow(
            _REQUEST_CANCEL, run_id, caller.user_id, caller.acts_for_anyone("write"), turn_id
        )
        return None if row is None else _running(row)

    async def cancel_requested(self, driver: Driver, claim: Claim) -> bool:
        row: Row | None = await driver.fetchrow(_CANCEL_REQUESTED, claim.turn_id)
        return row is not None and row["requested"]

    async def not_to_go_on(self, driver: Driver, claims: Sequence[Claim]) -> Mapping[TurnId, bool]:
        """Which of these turns were cancelled, or are no longer under their claim: then True."""
        rows: Sequence[Row] = await driver.fetch(
            _NOT_TO_GO_ON,
            [claim.run_id for claim in claims],
            [claim.turn_id for claim in claims],
            [claim.fence for claim in claims],
        )
        return {TurnId(row["turn_id"]): row["is_lost"] for row in rows}


def _begun(run_id: ConversationId, new: NewTurn, row: Row) -> BegunTurn:
    return BegunTurn(
        claim=Claim(run_id, new.id, row["fence"]),
        number=row["turn_count"],
        attempt=1,
        user_id=row["user_id"],
        user_message_id=new.message.id,
        prompt=new.message.content,
        prompt_metadata=decode(new.message).sent_metadata,
        config=row["config"],
        request_id=new.request_id,
        trace_id=new.trace_id,
        created_at=row["now"],
        started_at=row["now"],
    )


def _orphan(row: Row) -> Orphan:
    reason = RestartReason.WORKER_LOST if row["died"] else RestartReason.HANDED_OVER
    return Orphan(_running(row), row["deaths"] + row["died"], reason)


def _running(row: Row) -> RunningTurn:
    turn = Turn(
        id=TurnId(row["id"]),
        run_id=ConversationId(row["run_id"]),
        number=row["number"],
        status=TurnStatus.RUNNING,
        attempt=row["attempt"],
        output=None,
        reason=None,
        error=None,
        model=row["model"],
        finish_reason=None,
        usage=usage_of(row),
        request_id=row["request_id"],
        trace_id=row["trace_id"],
        created_at=row["created_at"],
        first_token_at=row["first_token_at"],
        completed_at=None,
    )
    requested = row["cancel_requested_at"] is not None
    return RunningTurn(Claim(turn.run_id, turn.id, row["fence"]), turn, requested)


def _select_runs() -> Select[Any]:
    active = and_(turns.c.id == runs.c.active_turn_id)
    return select(
        runs,
        turns.c.number.label("active_number"),
        turns.c.created_at.label("active_created_at"),
    ).outerjoin_from(runs, turns, active)


def _run(row: Mapping[Any, Any]) -> Run:
    return Run(
        id=ConversationId(row["id"]),
        user_id=row["user_id"],
        status=RunStatus(row["status"]),
        title=row["title"],
        metadata=row["metadata"],
        config=row["config"],
        session_id=row["session_id"],
        parent_workflow_id=row["parent_workflow_id"],
        turn_count=row["turn_count"],
        active_turn=_active_turn(row),
        usage=usage_of(row),
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        closed_at=row["closed_at"],
    )


def _active_turn(row: Mapping[Any, Any]) -> ActiveTurn | None:
    if row["active_turn_id"] is None:
        return None
    return ActiveTurn(TurnId(row["active_turn_id"]), row["active_number"], row["active_created_at"])


def usage_of(row: Mapping[Any, Any]) -> Usage:
    return Usage(
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cache_read_tokens=row["cache_read_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        cost=row["cost"],
        estimated=row["usage_estimated"],
    )


# The row lock makes losers wait for the winner's commit only; the WHERE is then looked at again.
# The key has no ON CONFLICT: that it is known undoes the whole claim.
_CLAIM = """
WITH run AS (
    UPDATE runs
    SET active_turn_id = $4, worker_id = $5, fence = fence + 1, version = version + 1,
        turn_count = turn_count + 1, next_message_seq = next_message_seq + 1,
        title = CASE turn_count WHEN 0 THEN coalesce(title, $6) ELSE title END, updated_at = now()
    WHERE id = $1 AND (user_id = $2 OR $3) AND status = 'open'
        AND active_turn_id IS NULL AND erased_at IS NULL
    RETURNING id, user_id, fence, turn_count, next_message_seq - 1 AS seq, config
), turn AS (
    INSERT INTO turns (id, run_id, number, status, first_message_seq, last_message_seq,
                       request_id, trace_id, created_at)
    SELECT $4, id, turn_count, 'running', seq, seq, $7, $8, now() FROM run
), message AS (
    INSERT INTO messages (run_id, seq, id, turn_number, role, status, content, metadata, created_at)
    SELECT id, seq, $9, turn_count, 'user', 'complete', $10, $11::text::json, now() FROM run
), key AS (
    INSERT INTO idempotency_keys (user_id, scope, key, request_hash, run_id, turn_id, created_at)
    SELECT $12, $13, $14, $15, id, $4, now() FROM run WHERE $14::text IS NOT NULL
)
SELECT user_id, fence, turn_count, seq, config, now() AS now FROM run
"""

_BEGUN = """
SELECT runs.user_id, fence, turn_count, next_message_seq - 1 AS seq, config, turns.created_at AS now
FROM runs JOIN turns ON turns.id = active_turn_id
WHERE runs.id = $1 AND active_turn_id = $2
"""

# A sum stays unknown only as long as every turn's count was.
_FINISH = f"""
WITH run AS (
    UPDATE runs
    SET active_turn_id = NULL, worker_id = NULL, version = version + 1,
        updated_at = greatest(updated_at, $23),
        next_message_seq = next_message_seq + cardinality($17::uuid[]),
        input_tokens = coalesce(input_tokens + $10, input_tokens, $10),
        output_tokens = coalesce(output_tokens + $11, output_tokens, $11),
        cache_read_tokens = coalesce(cache_read_tokens + $12, cache_read_tokens, $12),
        reasoning_tokens = coalesce(reasoning_tokens + $13, reasoning_tokens, $13),
        cost = coalesce(cost + $14, cost, $14),
        usage_estimated = usage_estimated OR $15
    WHERE id = $1 AND active_turn_id = $2 AND fence = $3
    RETURNING id, turn_count, next_message_seq - 1 AS last_seq
), turn AS (
    UPDATE turns
    SET status = $4, in_context = $5, reason = $6, error = $7::text::json, model = $8,
        finish_reason = $9, input_tokens = $10, output_tokens = $11, cache_read_tokens = $12,
        reasoning_tokens = $13, cost = $14, usage_estimated = $15, first_token_at = $16,
        last_message_seq = run.last_seq, completed_at = $23, last_seq = $25
    FROM run WHERE turns.id = $2
), event AS (
    INSERT INTO events (run_id, turn_id, first_seq, last_seq, frames)
    SELECT id, $2, $24, $25, $26 FROM run
), entry AS (
    DELETE FROM journal USING run WHERE journal.run_id = run.id AND turn_id = $2
), message AS (
    INSERT INTO messages (run_id, seq, id, turn_number, role, status, content, metadata, created_at)
    SELECT run.id, run.last_seq - cardinality($17::uuid[]) + new.place, new.id, run.turn_count,
           new.role, new.status, new.content, new.metadata::json, new.created_at
    FROM run, unnest($17::uuid[], $18::text[], $19::text[], $20::text[], $21::text[],
                     $22::timestamptz[])
        WITH ORDINALITY AS new (id, role, status, content, metadata, created_at, place)
)
SELECT pg_notify('{EVENTS}', id::text) FROM run
"""  # noqa: S608 - our own constant

_ORPHANS = """
SELECT turns.*, runs.fence, workers.released_at IS NULL AS died
FROM runs
JOIN turns ON turns.id = runs.active_turn_id
LEFT JOIN workers ON workers.id = runs.worker_id
WHERE runs.worker_id IS NOT NULL AND (
    (runs.worker_id = $1 AND NOT runs.active_turn_id = ANY($2::uuid[]))
    OR (runs.worker_id <> $1 AND (
        workers.id IS NULL OR workers.released_at IS NOT NULL
        OR ($3 AND workers.alive_until < now()
            AND pg_postmaster_start_time() < now() - $4::interval))))
ORDER BY runs.id
LIMIT $5
"""

_TAKE_OVER = """
WITH run AS (
    UPDATE runs SET fence = fence + 1, worker_id = $4
    WHERE id = (
        SELECT runs.id FROM runs JOIN turns ON turns.id = active_turn_id
        WHERE runs.id = $1 AND active_turn_id = $2 AND fence = $3 AND cancel_requested_at IS NULL
        FOR NO KEY UPDATE OF runs SKIP LOCKED)
    RETURNING user_id, fence, config
), turn AS (
    UPDATE turns SET attempt = attempt + 1, deaths = $5
    FROM run WHERE turns.id = $2
    RETURNING number, attempt, request_id, trace_id, created_at
)
SELECT run.*, turn.*, clock_timestamp() AS now FROM run, turn
"""

_TAKE = f"""
UPDATE runs SET fence = fence + 1
WHERE id = $1 AND active_turn_id = $2 AND fence = $3
RETURNING fence, clock_timestamp() AS now, pg_notify('{CHANGES}', id::text)
"""  # noqa: S608 - our own constant

_TAKE_UNLOCKED = f"""
UPDATE runs SET fence = fence + 1
WHERE id = (
    SELECT id FROM runs WHERE id = $1 AND active_turn_id = $2 AND fence = $3
    FOR NO KEY UPDATE SKIP LOCKED)
RETURNING fence, clock_timestamp() AS now, pg_notify('{CHANGES}', id::text)
"""  # noqa: S608 - our own constant

_REQUEST_CANCEL = f"""
UPDATE turns
SET cancel_requested_at = coalesce(cancel_requested_at, now()),
    cancel_requested_by = coalesce(cancel_requested_by, $2)
FROM runs
WHERE runs.id = $1 AND (runs.user_id = $2 OR $3) AND runs.erased_at IS NULL
    AND turns.id = runs.active_turn_id AND ($4::uuid IS NULL OR turns.id = $4)
RETURNING turns.*, runs.fence, pg_notify('{CHANGES}', runs.id::text)
"""  # noqa: S608 - our own constant

_CANCEL_REQUESTED = """
SELECT cancel_requested_at IS NOT NULL AS requested FROM turns WHERE id = $1
"""

_CHANGED = """
SELECT known.id FROM unnest($1::uuid[], $2::bigint[]) AS known (id, version)
LEFT JOIN runs ON runs.id = known.id AND runs.erased_at IS NULL
WHERE runs.version IS DISTINCT FROM known.version
"""

_NOT_TO_GO_ON = """
SELECT held.turn_id, runs.id IS NULL AS is_lost
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS held (run_id, turn_id, fence)
LEFT JOIN runs ON runs.id = held.run_id AND runs.active_turn_id = held.turn_id
    AND runs.fence = held.fence
LEFT JOIN turns ON turns.id = held.turn_id
WHERE runs.id IS NULL OR turns.cancel_requested_at IS NOT NULL
"""
