"""Follows a conversation: turn after turn from a place on, and what changes of it in between.

The turns are read as everyone reads them, by `subscription.py`. No connection is held while waiting.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.errors import DatabaseUnavailableError
from app.ids import ConversationId
from app.messages.codec import dump_json
from app.runs import Run, Turn
from app.storage.database import Database
from app.storage.run_state_store import RunStateStore
from app.storage.transcript_store import TranscriptStore
from app.streaming.conversation_watch import ConversationWatch
from app.streaming.patience import patiently
from app.streaming.subscription import Subscriptions
from app.wire.conversation import description_of
from app.wire.event import Frame, conversation_frame


@dataclass(frozen=True, slots=True)
class Place:
    """The next event is the one after that seq of that turn, which may not have begun yet."""

    number: int
    seq: int


@dataclass(frozen=True, slots=True)
class ConversationSubscriptions:
    database: Database
    runs: RunStateStore
    transcripts: TranscriptStore
    turns: Subscriptions
    watch: ConversationWatch

    @property
    def shutting_down(self) -> asyncio.Event:
        return self.turns.followers.shutting_down

    def to(self, run: Run, place: Place) -> AsyncGenerator[Frame]:
        """What comes after that place, until the conversation is closed or erased."""
        return _Reader(self, run, place).frames()

    async def look(self, run_id: ConversationId) -> tuple[Run, datetime] | None:
        """The conversation as it stands, and the time; None once it is erased."""
        async with self.database.connection() as connection:
            return await self.runs.any_run(connection, run_id)

    async def turn(self, run_id: ConversationId, number: int) -> Turn | None:
        async with self.database.connection() as connection:
            return await self.transcripts.turn_numbered(connection, run_id, number)


class _Reader:
    def __init__(self, source: ConversationSubscriptions, run: Run, place: Place) -> None:
        self._source = source
        self._run = run
        self._told = _told_of(run) if run.is_open else ""
        self._now = run.updated_at
        self._place = place

    async def frames(self) -> AsyncGenerator[Frame]:
        """The last frame says why there are no more."""
        watch, run = self._source.watch, self._run
        with watch.following(run.id, run.version) as bell:
            async with aclosing(self._frames(bell)) as frames:
                try:
                    async for frame in frames:
                        yield frame
                except DatabaseUnavailableError:
                    yield self._closing("shutdown")

    async def _frames(self, bell: asyncio.Event) -> AsyncGenerator[Frame]:
        while not self._source.shutting_down.is_set():
            bell.clear()
            if not await self._look():
                yield self._closing("deleted")
                return
            turn = await self._next_turn()
            # That it is closed is the last thing to tell, after all of its turns.
            for frame in self._news() if turn is None or self._run.is_open else ():
                yield frame
            if turn is not None:
                async with aclosing(self._of_turn(turn, bell)) as frames:
                    async for frame in frames:
                        yield frame
                        if frame.type == "stream.closing":
                            return
                self._place = Place(turn.number + 1, 0)
                continue
            if not self._run.is_open:
                return
            await bell.wait()
        yield self._closing("shutdown")

    async def _look(self) -> bool:
        """Reads the conversation anew; False once it is erased."""
        source, run_id = self._source, self._run.id
        found = await patiently(lambda: source.look(run_id), source.shutting_down)
        if found is None:
            return False
        self._run, self._now = found
        source.watch.saw(run_id, self._run.version)
        return True

    async def _next_turn(self) -> Turn | None:
        source, place = self._source, self._place
        if place.number > self._run.turn_count:
            return None
        return await patiently(
            lambda: source.turn(self._run.id, place.number), source.shutting_down
        )

    async def _of_turn(self, turn: Turn, bell: asyncio.Event) -> AsyncGenerator[Frame]:
        """The turn's frames to its end, with the news of the conversation in between."""
        frames = self._source.turns.to(turn, after=self._place.seq)
        coming = asyncio.ensure_future(anext(frames))
        try:
            while True:
                await _rings_or_comes(bell, coming)
                if coming.done():
                    frame = coming.result()
                    yield self._closing("deleted") if _is_of_erasure(frame) else frame
                    if frame.is_terminal or frame.type == "stream.closing":
                        return
                    coming = asyncio.ensure_future(anext(frames))
                    continue
                bell.clear()
                # When it was erased, the turn's own reader says so; that it was closed comes last.
                for news in self._news() if await self._look() and self._run.is_open else ():
                    yield news
        finally:
            coming.cancel()
            await asyncio.wait([coming])
            await frames.aclose()

    def _news(self) -> Iterator[Frame]:
        """At most one: what the conversation is called and how it stands, where that has changed."""
        told = _told_of(self._run)
        if told != self._told:
            self._told = told
            yield self._frame("conversation.updated", {"conversation": description_of(self._run)})

    def _closing(self, reason: str) -> Frame:
        return self._frame("stream.closing", {"reason": reason})

    def _frame(self, kind: str, payload: dict[str, Any]) -> Frame:
        return conversation_frame(kind, self._run.id, self._now, payload)


def _told_of(run: Run) -> str:
    """To be compared: as text, since in Python 1 is True."""
    return dump_json(description_of(run))


def _is_of_erasure(frame: Frame) -> bool:
    """The one terminal event that was never committed."""
    return frame.is_terminal and frame.seq is None


async def _rings_or_comes(bell: asyncio.Event, coming: "asyncio.Future[Frame]") -> None:
    ringing = asyncio.ensure_future(bell.wait())
    try:
        await asyncio.wait([ringing, coming], return_when=asyncio.FIRST_COMPLETED)
    finally:
        ringing.cancel()
