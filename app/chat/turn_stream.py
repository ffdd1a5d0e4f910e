"""A turn as it is told: its frames, or the documents in them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from app.runs import Turn
from app.wire.event import Frame


@dataclass(frozen=True, slots=True)
class TurnStream:
    """`turn` as it stood when the stream was made. Either iterate it, or `frames`, once.

    `replayed`: an earlier request with the same idempotency key has begun it, and it had ended.
    """

    turn: Turn
    frames: AsyncGenerator[Frame]
    replayed: bool = False

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """The events as documents, for programs that embed the service."""
        async for frame in self.frames:
            yield json.loads(frame.document)
