"""Answers: documents as JSON bytes, with the headers that belong to them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.messages.codec import dump_json
from app.wire.problem import MEDIA_TYPE

# Says that an answer is that of an earlier request with the same Idempotency-Key.
REPLAYED = "Idempotency-Replayed"

# Seconds that a client whose body was refused may still send.
LINGER = 2.0


class JsonAnswer(Response):
    """Any size of integer, no NaN: the same writer that stores what is shown."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return dump_json(content).encode()


class NotModified(Response):
    """For a client whose copy is still right (RFC 9110, section 15.4.5)."""

    def __init__(self, etag: str) -> None:
        super().__init__(status_code=304, headers=kept_as(etag))


def kept_as(etag: str) -> dict[str, str]:
    """Headers of an answer that its client may keep, and has to ask about before each use."""
    return {"ETag": etag, "Cache-Control": "private, no-cache"}


class ProblemAnswer(JsonAnswer):
    media_type = MEDIA_TYPE


class UnreadBodyAnswer(ProblemAnswer):
    """Answers at once, then lets the client send on for a moment before the connection is closed.

    Closed with unread data it would be reset, and many a client would never see the answer.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def problem_answer(document: Mapping[str, Any], *, retry_after: int | None = None) -> ProblemAnswer:
    status: int = document["status"]
    headers: dict[str, str] = {}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    if status in (409, 422):
        # Some SDKs repeat a 409 by themselves.
        headers["x-should-retry"] = "false"
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="chat-workflow"'
    if status == 413:
        headers["Connection"] = "close"
        return UnreadBodyAnswer(document, status_code=status, headers=headers)
    return ProblemAnswer(document, status_code=status, headers=headers)
