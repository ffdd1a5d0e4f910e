"""What was committed a moment ago, for those who follow it, and the bell that wakes them."""

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from weakref import WeakValueDictionary

from app.bell import Bell
from app.ids import ConversationId, TurnId
from app.wire.event import Frame

# Characters of a turn's latest frames that are kept at hand; who is further behind reads the table.
WINDOW = 256 * 1024
# Seconds between two looks at other processes' turns: as long as their writers' own pause.
PAUSE = 0.02


class Closing(Enum):
    """Why a feed ends although its turn has not ended here."""

    SHUTDOWN = "shutdown"
    DELETED = "deleted"
    LOST = "lost"


class Feed:
    """The latest committed frames of one running turn. Readers keep their own place."""

    def __init__(self, last_seq: int) -> None:
        """`last_seq`: of the last event that was committed before, by whichever process."""
        self.closing: Closing | None = None
        self.last_seq = last_seq
        self._frames: deque[Frame] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    def after(self, seq: int) -> Sequence[Frame] | None:
        """The frames after that seq, or None when the first of them is no longer at hand."""
        if seq >= self.last_seq:
            return ()
        first = self._frames[0].seq if self._frames else None
        if first is None or first > seq + 1:
            return None
        return [frame for frame in self._frames if (frame.seq or 0) > seq]

    async def wait(self, seq: int) -> None:
        """Until there is something after that seq, or the feed is closing."""
        while seq >= self.last_seq and self.closing is None:
            await self._changed.wait()

    def publish(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self._frames.append(frame)
            self._size += len(frame.document)
            self.last_seq = frame.seq or self.last_seq
        while self._size > WINDOW and len(self._frames) > 1:
            self._size -= len(self._frames.popleft().document)
        self._ring()

    def close(self, closing: Closing) -> None:
        """An erasure has the last word."""
        if self.closing is None or closing is Closing.DELETED:
            self.closing = closing
        self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class ForeignFeed(Feed):
    """Of a turn that runs in another process; `foreign_turns.py` fills it from the table."""

    def __init__(self, run_id: ConversationId, turn_id: TurnId, last_seq: int) -> None:
        super().__init__(last_seq)
        self.run_id = run_id
        self.turn_id = turn_id


class Followers:
    """The feeds of the turns that run in this process, and of those elsewhere that are followed."""

    def __init__(self) -> None:
        self._feeds: dict[TurnId, Feed] = {}
        # There for as long as somebody reads it.
        self._foreign: WeakValueDictionary[TurnId, ForeignFeed] = WeakValueDictionary()
        self.foreign_bell = Bell(pause=PAUSE)
        # Ended, but somebody still reads: an erasure has to reach them too.
        self._ended: WeakValueDictionary[TurnId, Feed] = WeakValueDictionary()
        self._shutting_down = asyncio.Event()

    @property
    def shutting_down(self) -> asyncio.Event:
        return self._shutting_down

    def feed(self, turn_id: TurnId) -> Feed | None:
        return self._feeds.get(turn_id)

    def foreign(self, run_id: ConversationId, turn_id: TurnId, after: int) -> Feed:
        """The feed of a turn that does not run here; a new one begins after that seq."""
        feed = self._foreign.get(turn_id)
        if feed is None:
            self._foreign[turn_id] = feed = ForeignFeed(run_id, turn_id, after)
            self.foreign_bell.ring()
        if self._shutting_down.is_set():
            feed.close(Closing.SHUTDOWN)
        return feed

    @property
    def followed_elsewhere(self) -> Sequence[ForeignFeed]:
        """What `foreign` has given and somebody still reads, but for what has ended."""
        return [feed for feed in self._foreign.values() if feed.closing is None]

    def open(self, turn_id: TurnId, last_seq: int = 0) -> Feed:
        """The feed of a turn that runs here from now on."""
        self._leave(turn_id, Closing.LOST)
        feed = self._feeds.setdefault(turn_id, Feed(last_seq))
        if self._shutting_down.is_set():
            feed.close(Closing.SHUTDOWN)
        return feed

    def ended(self, turn_id: TurnId) -> None:
        """The terminal frame was published; whoever holds the feed still reads it to its end."""
        feed = self._feeds.pop(turn_id, None)
        if feed is not None:
            self._ended[turn_id] = feed

    def close(self, turn_id: TurnId, closing: Closing) -> None:
        if closing is Closing.DELETED:
            self._leave(turn_id, closing)
        feed = self._feeds.pop(turn_id, None)
        if feed is None and closing is Closing.DELETED:
            feed = self._ended.get(turn_id)
        if feed is not None:
            feed.close(closing)

    def lose(self, turn_id: TurnId, feed: Feed) -> None:
        """This feed ends; one of a later attempt does not."""
        if self._feeds.get(turn_id) is feed:
            del self._feeds[turn_id]
        feed.close(Closing.LOST)

    def shut_down(self) -> None:
        """Every stream that is still open ends with `stream.closing`."""
        self._shutting_down.set()
        for turn_id in list(self._foreign):
            self._leave(turn_id, Closing.SHUTDOWN)
        for turn_id in list(self._feeds):
            self.close(turn_id, Closing.SHUTDOWN)

    def leave(self, feed: ForeignFeed, closing: Closing) -> None:
        """Nothing more comes from elsewhere."""
        self._leave(feed.turn_id, closing)

    def _leave(self, turn_id: TurnId, closing: Closing) -> None:
        feed = self._foreign.pop(turn_id, None)
        if feed is not None:
            feed.close(closing)
