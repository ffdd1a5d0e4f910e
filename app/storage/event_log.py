"""What happened while a turn ran, as it was shown: appended by whoever may write for the turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from app.ids import ConversationId, TurnId
from app.runs import Claim, TurnStatus
from app.storage.database import Driver, Row
from app.storage.notices import EVENTS, MANY, MOST_IDS
from app.wire.event import Frame, lines, parse_lines


@dataclass(frozen=True, slots=True)
class Batch:
    """The frames of one flush of one turn; sent again unchanged until its commit is known."""

    claim: Claim
    frames: Sequence[Frame]

    @property
    def first_seq(self) -> int:
        return self.frames[0].seq or 0

    @property
    def last_seq(self) -> int:
        return self.frames[-1].seq or 0


@dataclass(frozen=True, slots=True)
class Place:
    """How far a turn's log was read."""

    run_id: ConversationId
    turn_id: TurnId
    after: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What lies behind a place, and how the turn stood then; `status` None: it was erased.

    `is_full`: there may be more.
    """

    turn_id: TurnId
    status: TurnStatus | None
    is_full: bool
    _texts: Sequence[str]
    _after: int

    def frames(self) -> Sequence[Frame]:
        """Raises ValueError when a release that is not known here has written them."""
        return _frames_of(self._texts, self._after)


class EventLog:
    async def append(self, driver: Driver, batches: Sequence[Batch]) -> set[TurnId]:
        """Appends in one statement; returns the turns that are still ours.

        A turn that is missing is lost, or its run was locked by someone just then.
        """
        rows: Sequence[Row] = await driver.fetch(_APPEND, *_columns(batches))
        return {TurnId(row["turn_id"]) for row in rows}

    async def append_alone(self, driver: Driver, batch: Batch, patience: timedelta) -> bool:
        """The same for one turn, but waits for its run. False: the turn is not ours any more.

        Raises the driver's LockNotAvailableError when the run stays locked.
        """
        async with driver.transaction():
            milliseconds = str(int(patience.total_seconds() * 1000))
            await driver.execute("SELECT set_config('lock_timeout', $1, true)", milliseconds)
            rows = await driver.fetch(_APPEND_ALONE, *_columns([batch]))
        return bool(rows)

    async def read(
        self, driver: Driver, run_id: ConversationId, turn_id: TurnId, *, after: int, limit: int
    ) -> list[Frame]:
        """The frames after that seq, until `limit` characters are reached; none once erased."""
        rows: Sequence[Row] = await driver.fetch(_READ, run_id, turn_id, after, limit)
        return _frames_of([row["frames"] for row in rows], after)

    async def read_many(
        self, driver: Driver, places: Sequence[Place], *, limit: int
    ) -> Sequence[Progress]:
        """The same for many turns in one statement, of each until `limit` characters are reached."""
        rows: Sequence[Row] = await driver.fetch(
            _READ_MANY,
            [place.run_id for place in places],
            [place.turn_id for place in places],
            [place.after for place in places],
            limit,
        )
        return [_progress(row) for row in rows]

    async def last_seq(self, driver: Driver, run_id: ConversationId, turn_id: TurnId) -> int:
        """Of the last committed event; 0 when there is none."""
        row: Row = await driver.fetchrow(_LAST_SEQ, run_id, turn_id)
        return row["last_seq"]

    async def prune(self, driver: Driver, older_than: timedelta, limit: int) -> int:
        """Removes the events of up to `limit` turns that ended that long ago; returns how many.

        Always a turn's whole log: half of one could be told neither as it was nor again.
        """
        row: Row = await driver.fetchrow(_PRUNE, older_than, limit)
        return row["removed"]


def _frames_of(texts: Sequence[str], after: int) -> list[Frame]:
    frames = [frame for text in texts for frame in parse_lines(text)]
    return [frame for frame in frames if frame.seq is not None and frame.seq > after]


def _progress(row: Row) -> Progress:
    status = None if row["status"] is None else TurnStatus(row["status"])
    return Progress(TurnId(row["turn_id"]), status, row["is_full"], row["texts"], row["after"])


def _columns(batches: Sequence[Batch]) -> tuple[list[object], ...]:
    return (
        [batch.claim.run_id for batch in batches],
        [batch.claim.turn_id for batch in batches],
        [batch.claim.fence for batch in batches],
        [batch.first_seq for batch in batches],
        [batch.last_seq for batch in batches],
        [lines(batch.frames) for batch in batches],
    )


# The answer names the turns that passed the fence, not the rows that were inserted: a batch that is
# sent again inserts none. Several runs are locked in the order of their ids.
_STATEMENT = f"""
WITH batch AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::int[], $5::int[], $6::text[])
        AS batch (run_id, turn_id, fence, first_seq, last_seq, frames)
), live AS (
    SELECT batch.run_id, batch.turn_id FROM runs
    JOIN batch ON runs.id = batch.run_id AND runs.active_turn_id = batch.turn_id
        AND runs.fence = batch.fence
    ORDER BY runs.id FOR SHARE OF runs {{wait}}
), written AS (
    INSERT INTO events (run_id, turn_id, first_seq, last_seq, frames)
    SELECT run_id, turn_id, first_seq, last_seq, frames FROM batch
    WHERE turn_id IN (SELECT turn_id FROM live)
    ON CONFLICT DO NOTHING
)
SELECT turn_id, (
    SELECT pg_notify('{EVENTS}', CASE WHEN count(*) > {MOST_IDS} THEN '{MANY}'
                                 ELSE string_agg(run_id::text, ' ') END) FROM live) AS told
FROM live
"""  # noqa: S608 - our own constants
_APPEND = _STATEMENT.format(wait="SKIP LOCKED")
_APPEND_ALONE = _STATEMENT.format(wait="")

# Batches lie without a gap: the first of interest is the last that begins at or before the place.
_READ = """
SELECT frames FROM (
    SELECT first_seq, frames,
           sum(octet_length(frames)) OVER (ORDER BY first_seq) - octet_length(frames) AS before
    FROM events JOIN runs ON runs.id = run_id
    WHERE run_id = $1 AND turn_id = $2 AND last_seq > $3 AND erased_at IS NULL
        AND first_seq >= coalesce((
            SELECT max(first_seq) FROM events
            WHERE run_id = $1 AND turn_id = $2 AND first_seq <= $3 + 1), 1)
) AS rest
WHERE before < $4 ORDER BY first_seq
"""

_READ_MANY = """
SELECT place.turn_id, place.after, turns.status, coalesce(rest.texts, '{}') AS texts,
       coalesce(rest.size, 0) >= $4 AS is_full
FROM unnest($1::uuid[], $2::uuid[], $3::int[]) AS place (run_id, turn_id, after)
LEFT JOIN runs ON runs.id = place.run_id AND runs.erased_at IS NULL
LEFT JOIN turns ON turns.id = place.turn_id AND turns.run_id = runs.id
LEFT JOIN LATERAL (
    SELECT array_agg(frames ORDER BY first_seq) AS texts, sum(octet_length(frames)) AS size FROM (
        SELECT first_seq, frames,
               sum(octet_length(frames)) OVER (ORDER BY first_seq) - octet_length(frames) AS before
        FROM events
        WHERE events.run_id = runs.id AND events.turn_id = place.turn_id
            AND last_seq > place.after AND first_seq >= coalesce((
                SELECT max(first_seq) FROM events AS begun
                WHERE begun.run_id = runs.id AND begun.turn_id = place.turn_id
                    AND begun.first_seq <= place.after + 1), 1)
    ) AS rows WHERE before < $4
) AS rest ON true
"""

_LAST_SEQ = """
SELECT coalesce(max(last_seq), 0) AS last_seq FROM events WHERE run_id = $1 AND turn_id = $2
"""

# A turn is locked before its events, as erasure does, and one that is locked is left for later.
_PRUNE = """
WITH old AS (
    SELECT turns.id, turns.run_id FROM turns
    WHERE completed_at < now() - $1::interval AND EXISTS (
        SELECT FROM events WHERE events.run_id = turns.run_id AND events.turn_id = turns.id)
    ORDER BY id LIMIT $2
    FOR UPDATE SKIP LOCKED
), removed AS (
    DELETE FROM events USING old WHERE events.run_id = old.run_id AND events.turn_id = old.id
)
SELECT count(*)::int AS removed FROM old
"""
