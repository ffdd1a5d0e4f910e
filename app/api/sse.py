"""Streams over HTTP: Server-Sent Events as the HTML standard has them (section 9.2).

Routes write stored documents with their ids, nothing else. Heartbeat and disconnect live here.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping

from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from app.api.answers import REPLAYED
from app.api.state import state_of
from app.chat.turn_stream import TurnStream
from app.errors import BadLastEventIdError
from app.observability.logging import get_logger
from app.wire.event import EventId, Frame

logger = get_logger()

# Milliseconds after which a browser reconnects. It travels with the first event, never alone, since
# some clients take a block without data for an event.
RETRY = 2000
HEARTBEAT = b":\n\n"
# Bytes that are sent at once: a reader is dead when it takes none of them, not when it is slow.
PIECE = 32 * 1024


class StreamAnswer(EventSourceResponse):
    """Frames as they come. A client that leaves, or takes nothing for too long, stops nothing."""

    def __init__(
        self,
        request: Request,
        frames: AsyncGenerator[Frame],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        state = state_of(request)
        self._abort = state.abort_connection
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - the library says only `dict`
            _pieces(frames, state.heartbeat),
            headers=headers,
            # The library would send its own between two pieces of one event.
            ping=0,
            send_timeout=state.send_timeout,
            sep="\n",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            # Closed in order, the connection would wait for the reader to take what is buffered.
            logger.info("reader_cut_off", path=scope["path"])
            self._abort(scope)


def turn_stream_answer(request: Request, stream: TurnStream) -> StreamAnswer:
    headers = {"X-Turn-ID": str(stream.turn.id)}
    if stream.replayed:
        headers[REPLAYED] = "true"
    return StreamAnswer(request, stream.frames, headers)


async def _pieces(frames: AsyncGenerator[Frame], heartbeat: float) -> AsyncGenerator[bytes]:
    """The events, each in pieces of a size, and a comment whenever there was none for a while."""
    coming = asyncio.ensure_future(anext(frames, None))
    try:
        while True:
            await asyncio.wait([coming], timeout=heartbeat)
            if not coming.done():
                yield HEARTBEAT
                continue
            frame = coming.result()
            if frame is None:
                return
            coming = asyncio.ensure_future(anext(frames, None))
            for piece in _cut(_block(frame)):
                yield piece
    finally:
        coming.cancel()
        await asyncio.wait([coming])
        await frames.aclose()


def _cut(block: bytes) -> Iterator[bytes]:
    for start in range(0, len(block), PIECE):
        yield block[start : start + PIECE]


def _block(frame: Frame) -> bytes:
    lines = [f"event: {frame.type}", f"data: {frame.document}", "", ""]
    if frame.seq == 1:
        lines.insert(0, f"retry: {RETRY}")
    if frame.id is not None:
        lines.insert(0, f"id: {frame.id}")
    return "\n".join(lines).encode()


def cursor_of(last_event_id: str | None, after: str | None) -> EventId | None:
    """`Last-Event-ID`, else `?after=`: a browser that reconnects keeps the URL and sends the header.

    Raises BadLastEventIdError.
    """
    text = last_event_id or after or ""
    if not text:
        return None
    event_id = EventId.parse(text)
    if event_id is None:
        raise BadLastEventIdError
    return event_id
