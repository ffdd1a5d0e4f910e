"""Ends a turn that its owner cannot end: a dead worker's, one that broke, one that will not stop.

What had been shown is kept: the messages are projected from the log.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from app.errors import WorkerLostError
from app.events.projection import Projection, project
from app.events.stream_event import (
    MessageCompleted,
    StreamEvent,
    ToolCallCompleted,
    TurnEnded,
    TurnStarted,
)
from app.messages.codec import encode
from app.messages.message import INTERRUPTED_RESULT, Outcome, Role
from app.observability.logging import get_logger
from app.runs import Claim, Turn, TurnStatus
from app.storage.database import Database, Driver
from app.storage.event_log import EventLog
from app.storage.run_state_store import RunStateStore, TurnEnd
from app.storage.transcript_store import TranscriptStore
from app.wire.event import Frame, TurnName, render
from app.wire.paths import Paths
from app.wire.problem import turn_problem

logger = get_logger()

EVERYTHING = 2**62


class ForcedEnd:
    def __init__(
        self,
        database: Database,
        runs: RunStateStore,
        transcripts: TranscriptStore,
        event_log: EventLog,
        paths: Paths,
    ) -> None:
        self._database = database
        self._runs = runs
        self._transcripts = transcripts
        self._event_log = event_log
        self._paths = paths

    async def cancel(self, claim: Claim, turn: Turn, *, wait: bool = True) -> bool:
        """As cancelled by a user. False: it had ended by itself, or someone else has it.

        Without `wait` also when somebody has locked its row.
        """
        return await self._end(claim, replace(turn, status=TurnStatus.CANCELLED), wait=wait)

    async def fail(self, claim: Claim, turn: Turn, error: Exception, *, wait: bool = True) -> bool:
        """As failed with this error."""
        problem = turn_problem(error, self._paths, turn.run_id, turn.id, request_id=turn.request_id)
        failed = replace(turn, status=TurnStatus.FAILED, error=problem)
        return await self._end(claim, failed, wait=wait)

    async def lose(self, claim: Claim, turn: Turn, *, wait: bool = True) -> bool:
        """As failed because its worker is gone."""
        return await self.fail(claim, turn, WorkerLostError(), wait=wait)

    async def _end(self, claim: Claim, turn: Turn, *, wait: bool) -> bool:
        """One transaction, in which the fence grows *before* the log is read."""
        async with self._database.statement() as driver, driver.transaction():
            taken = await self._runs.take(driver, claim, wait=wait)
            if taken is None:
                return False
            new_claim, now = taken
            end = await self._end_of(driver, replace(turn, completed_at=now), now)
            await self._runs.finish(driver, new_claim, end)
        logger.warning("turn_ended_by_force", turn_id=str(turn.id), status=turn.status.value)
        return True

    async def _end_of(self, driver: Driver, turn: Turn, now: datetime) -> TurnEnd:
        shown = await self._event_log.read(driver, turn.run_id, turn.id, after=0, limit=EVERYTHING)
        frames = _Frames(turn, self._paths, shown, now)
        if not shown:
            prompt = await self._transcripts.prompt(driver, turn.id)
            frames.add(TurnStarted(_before(turn), prompt))
        projection = frames.projection
        for event in _closing(projection):
            frames.add(event)
        said = [m.content for m in projection.messages if m.role is Role.ASSISTANT]
        output = said[-1] if said else None
        ended = replace(turn, output=output, last_seq=frames.last_seq + 1)
        frames.add(TurnEnded(ended, by="user"))
        return TurnEnd(
            turn=ended,
            messages=[encode(message) for message in projection.messages],
            in_context=output is not None,
            frames=frames.new,
        )


def _before(turn: Turn) -> Turn:
    return replace(turn, status=TurnStatus.RUNNING, error=None, completed_at=None)


def _closing(projection: Projection) -> Sequence[StreamEvent]:
    """An end for the message and the tool calls that were begun."""
    events: list[StreamEvent] = []
    if projection.open_message is not None:
        events.append(MessageCompleted(projection.messages[-1]))
    events += [
        ToolCallCompleted(call_id, Outcome.INTERRUPTED, INTERRUPTED_RESULT, None)
        for call_id in projection.open_calls
    ]
    return events


class _Frames:
    """What was shown, and what is added to it."""

    def __init__(self, turn: Turn, paths: Paths, shown: Sequence[Frame], now: datetime) -> None:
        self.new: list[Frame] = []
        self.projection = project(json.loads(frame.document) for frame in shown)
        self.last_seq = (shown[-1].seq or 0) if shown else 0
        self._name = TurnName(turn.run_id, turn.id, turn.number, paths)
        self._now = now

    def add(self, event: StreamEvent) -> None:
        self.last_seq += 1
        frame = render(event, self.last_seq, self._name, self._now)
        self.new.append(frame)
        self.projection.apply(json.loads(frame.document))
