"""A conversation as it goes on: its frames, or the documents in them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from app.wire.event import Frame


@dataclass(frozen=True, slots=True)
class ConversationStream:
    """Either iterate it, or `frames`, once."""

    frames: AsyncGenerator[Frame]

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """The events as documents, for programs that embed the service."""
        async for frame in self.frames:
            yield json.loads(frame.document)
