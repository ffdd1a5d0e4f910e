"""The one writer: numbers, renders and commits what happens, in batches for all turns of the process.

Nobody sees an event before its commit. A first event goes at once, then there is at most one commit
every 20 ms, whatever the number of turns.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from app.errors import DatabaseUnavailableError, LostOwnershipError
from app.events.merging import merged
from app.events.stream_event import StreamEvent
from app.ids import TurnId
from app.observability.logging import get_logger
from app.runs import BegunTurn
from app.storage.database import Database, Driver, LockTimeoutError, data_errors
from app.storage.event_log import Batch, EventLog
from app.streaming.followers import Feed, Followers
from app.wire.event import Frame, TurnName, render
from app.wire.paths import Paths

logger = get_logger()

INTERVAL = 0.02
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
PATIENCE = timedelta(seconds=2)
# Characters that may wait while the database is away; then the model is read no further.
LARGEST_BACKLOG = 1024 * 1024


class TurnLog:
    """The events of one attempt of a turn, on their way to the log and then to `feed`."""

    def __init__(
        self, begun: BegunTurn, paths: Paths, feed: Feed, note: Callable[["TurnLog"], None]
    ) -> None:
        self.feed = feed
        self.claim = begun.claim
        self.name = TurnName(begun.claim.run_id, begun.claim.turn_id, begun.number, paths)
        self.error: Exception | None = None
        self._began_at = begun.started_at
        self._clock_at_begin = time.monotonic()
        self._note = note
        self._next_seq = begun.last_seq + 1
        self._pending: list[tuple[StreamEvent, datetime]] = []
        self._backlog = 0
        self._in_flight: Batch | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        self.closed = False

    def now(self) -> datetime:
        """The database's time when this attempt began, and what has passed since."""
        return self._began_at + timedelta(seconds=time.monotonic() - self._clock_at_begin)

    async def append(self, event: StreamEvent) -> None:
        """Waits only when too much waits already. Raises what the log was given up with."""
        while self._backlog > LARGEST_BACKLOG and self.error is None:
            self._settled.clear()
            await self._settled.wait()
        if self.error is not None:
            raise self.error
        self._pending.append((event, self.now()))
        self._backlog += _size(event)
        self._note(self)

    def take(self) -> Batch | None:
        """The next batch to commit: the one in flight until its commit is known."""
        if self._in_flight is None and self._pending and not self.closed:
            self._in_flight = Batch(self.claim, self._render())
        return self._in_flight

    def committed(self) -> Sequence[Frame]:
        batch, self._in_flight = self._in_flight, None
        self._settled.set()
        return batch.frames if batch is not None else ()

    def give_up(self, error: Exception) -> None:
        self.error = error
        self._in_flight = None
        self._pending.clear()
        self._settled.set()

    async def close(self) -> Sequence[Frame]:
        """No event goes to the log any more; returns those that have not. Awaits a flush.

        Raises what the log was given up with.
        """
        self.closed = True
        while self._in_flight is not None:
            self._settled.clear()
            await self._settled.wait()
        if self.error is not None:
            raise self.error
        return self._render()

    def render_last(self, event: StreamEvent) -> Frame:
        """The terminal frame, which is committed with the turn's end."""
        frame = render(event, self._next_seq, self.name, self.now())
        self._next_seq += 1
        return frame

    @property
    def waits(self) -> bool:
        """For a flush: with a batch whose commit is not known, or with events that came since."""
        return self._in_flight is not None or (bool(self._pending) and not self.closed)

    def _render(self) -> list[Frame]:
        frames: list[Frame] = []
        moment = self._pending[0][1] if self._pending else self._began_at
        for event in merged([event for event, _ in self._pending]):
            frames.append(render(event, self._next_seq, self.name, moment))
            self._next_seq += 1
        self._pending.clear()
        self._backlog = 0
        return frames


def _size(event: StreamEvent) -> int:
    return len(getattr(event, "delta", "")) + len(getattr(event, "content", "")) + 100


class Recorder:
    def __init__(
        self, database: Database, event_log: EventLog, followers: Followers, paths: Paths
    ) -> None:
        self._database = database
        self._event_log = event_log
        self._followers = followers
        self._paths = paths
        self._waiting: dict[TurnId, TurnLog] = {}
        self._bell = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, begun: BegunTurn) -> TurnLog:
        feed = self._followers.open(begun.claim.turn_id, begun.last_seq)
        return TurnLog(begun, self._paths, feed, self._note)

    def show_end(self, log: TurnLog, frames: Sequence[Frame]) -> None:
        """Shows the last frames, which were committed with the turn's end."""
        log.feed.publish(frames)
        self._followers.ended(log.claim.turn_id)

    async def settle(self, limit: float) -> None:
        """Until nothing waits for a flush, for `limit` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._idle.wait()

    async def keep_flushing(self) -> None:
        """One connection of its own, one flush at a time."""
        pause = FIRST_PAUSE
        while True:
            await self._bell.wait()
            try:
                async with self._database.statement() as driver:
                    while True:
                        await self._flush(driver)
                        pause = FIRST_PAUSE
                        await asyncio.sleep(INTERVAL)
                        await self._bell.wait()
            except DatabaseUnavailableError:
                logger.warning("log_delayed", retry_in_s=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _note(self, log: TurnLog) -> None:
        self._waiting[log.claim.turn_id] = log
        self._idle.clear()
        self._bell.set()

    async def _flush(self, driver: Driver) -> None:
        logs = {log.claim.turn_id: log for log in self._waiting.values()}
        batches = [batch for log in logs.values() if (batch := log.take()) is not None]
        if batches:
            await self._write(driver, logs, batches)
        self._waiting = {name: log for name, log in self._waiting.items() if log.waits}
        if not self._waiting:
            self._bell.clear()
            self._idle.set()

    async def _write(
        self, driver: Driver, logs: dict[TurnId, TurnLog], batches: Sequence[Batch]
    ) -> None:
        passed = await self._append(driver, batches)
        for batch in batches:
            log = logs[batch.claim.turn_id]
            if batch.claim.turn_id in passed:
                log.feed.publish(log.committed())
            else:
                await self._write_alone(driver, log, batch)

    async def _append(self, driver: Driver, batches: Sequence[Batch]) -> set[TurnId]:
        """One bad turn must not stop the others: then each is written alone."""
        try:
            return await self._event_log.append(driver, batches)
        except data_errors():
            return set()

    async def _write_alone(self, driver: Driver, log: TurnLog, batch: Batch) -> None:
        try:
            ours = await self._event_log.append_alone(driver, batch, PATIENCE)
        except LockTimeoutError:
            return
        except data_errors() as error:
            log.give_up(error)
            return
        if ours:
            log.feed.publish(log.committed())
            return
        log.give_up(LostOwnershipError())
        self._followers.lose(log.claim.turn_id, log.feed)
