"""The one reader: what lies after a cursor, then what comes, to the terminal event.

Frames come from memory while the reader keeps up with a turn that runs here, else from the table,
at the reader's own pace. No connection is held between two reads.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from app.errors import DatabaseUnavailableError
from app.runs import Turn
from app.storage.database import Database
from app.storage.event_log import EventLog
from app.storage.transcript_store import TranscriptStore
from app.streaming.followers import Closing, Feed, Followers
from app.streaming.patience import patiently
from app.streaming.rebuilding import rebuilt
from app.wire.event import Frame, TurnName, frame, moment_of
from app.wire.paths import Paths

# Characters after which one read of the table stops; a single event may be larger.
PAGE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Subscriptions:
    database: Database
    event_log: EventLog
    transcripts: TranscriptStore
    followers: Followers
    paths: Paths

    def to(self, turn: Turn, *, after: int = 0) -> AsyncGenerator[Frame]:
        """The turn's frames after that seq. Its feed is taken now, so that nothing is missed."""
        reader = _Reader(self, turn, after, self.followers.feed(turn.id))
        return reader.frames()

    async def last_seq(self, turn: Turn) -> int:
        """Of the last committed event of a running turn."""
        async with self.database.statement() as driver:
            return await self.event_log.last_seq(driver, turn.run_id, turn.id)


class _Reader:
    def __init__(self, source: Subscriptions, turn: Turn, after: int, feed: Feed | None) -> None:
        self._source = source
        self._turn = turn
        self._name = TurnName(turn.run_id, turn.id, turn.number, source.paths)
        self._seq = after
        self._last: Frame | None = None
        self._feed = feed

    async def frames(self) -> AsyncGenerator[Frame]:
        shutting_down = self._source.followers.shutting_down
        while True:
            try:
                frames = await patiently(self._next, shutting_down)
            except DatabaseUnavailableError:
                frames = self._closed(Closing.SHUTDOWN)
            for item in frames:
                yield item
                self._seq, self._last = item.seq or self._seq, item
            if frames and _is_last(frames[-1]):
                return

    async def _next(self) -> Sequence[Frame]:
        """Waits for the next frames; the last of a stream ends with one that says so."""
        if self._feed is None:
            return await self._from_elsewhere()
        if self._feed.closing is Closing.DELETED:
            return self._closed(Closing.DELETED)
        frames = self._feed.after(self._seq)
        if frames is None:
            return await self._from_table() or await self._without_feed()
        if frames:
            return frames
        if self._feed.closing is not None:
            return self._closed(self._feed.closing)
        await self._feed.wait(self._seq)
        return ()

    async def _without_feed(self) -> Sequence[Frame]:
        """What memory has let go of is not in the table either: pruned, or erased."""
        self._feed = None
        return await self._from_elsewhere()

    async def _from_table(self) -> Sequence[Frame]:
        source, turn = self._source, self._turn
        async with source.database.statement() as driver:
            return await source.event_log.read(
                driver, turn.run_id, turn.id, after=self._seq, limit=PAGE
            )

    async def _from_elsewhere(self) -> Sequence[Frame]:
        """A turn that has ended, or runs in another process."""
        frames = await self._from_table()
        if frames:
            return frames
        source, turn = self._source, self._turn
        async with source.database.statement() as driver:
            status = await source.transcripts.status(driver, turn.id)
        if status is None:
            return self._closed(Closing.DELETED)
        if status.is_terminal:
            return await self._from_table() or await self._from_transcript()
        # It may have been taken over by this process meanwhile.
        here = source.followers.feed(turn.id)
        self._feed = here or source.followers.foreign(turn.run_id, turn.id, self._seq)
        return ()

    async def _from_transcript(self) -> Sequence[Frame]:
        source, turn = self._source, self._turn
        async with source.database.connection() as connection:
            ended = await source.transcripts.any_turn(connection, turn.run_id, turn.id)
        if ended is None:
            return self._closed(Closing.DELETED)
        return list(rebuilt(ended.turn, self._name, [item.message for item in ended.messages]))

    def _closed(self, closing: Closing) -> Sequence[Frame]:
        match closing:
            case Closing.LOST:
                self._feed = None
                return ()
            case Closing.DELETED:
                return [self._uncommitted("turn.cancelled", {"by": "erasure"})]
            case Closing.SHUTDOWN:
                return [self._uncommitted("stream.closing", {"reason": "shutdown"})]

    def _uncommitted(self, kind: str, payload: dict[str, str]) -> Frame:
        """Its time is the last event's: what is told never goes backwards."""
        moment = self._turn.created_at if self._last is None else moment_of(self._last)
        return frame(kind, None, self._name, moment, dict(payload))


def _is_last(item: Frame) -> bool:
    return item.is_terminal or item.type == "stream.closing"
