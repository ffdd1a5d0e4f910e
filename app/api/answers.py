"""Answers: documents as JSON bytes, with the headers that belong to them."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from app.messages.codec import dump_json
from app.wire.problem import MEDIA_TYPE


class JsonAnswer(Response):
    """Any size of integer, no NaN: the same writer that stores what is shown."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return dump_json(content).encode()


class ProblemAnswer(JsonAnswer):
    media_type = MEDIA_TYPE


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
        # The rest of the body is not read, so the connection cannot be used again.
        headers["Connection"] = "close"
    return ProblemAnswer(document, status_code=status, headers=headers)
