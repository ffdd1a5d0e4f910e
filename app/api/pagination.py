"""Cursors: opaque to clients, keyset inside. A cursor of another list is refused."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from starlette.requests import Request

from app.api.answers import JsonAnswer
from app.errors import BadCursorError
from app.ids import ConversationId


def encode_cursor(kind: str, *key: object) -> str:
    document = json.dumps([kind, *map(str, key)], separators=(",", ":"))
    return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")


def turn_number_of(cursor: str | None, kind: str) -> int | None:
    if cursor is None:
        return None
    (number,) = _decode(cursor, kind, 1)
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        raise BadCursorError
    return int(number)


def place_of(cursor: str | None, kind: str) -> tuple[datetime, ConversationId] | None:
    if cursor is None:
        return None
    moment, identifier = _decode(cursor, kind, 2)
    try:
        place = datetime.fromisoformat(moment), ConversationId(UUID(identifier))
        if place[0].tzinfo is None:
            raise BadCursorError
        return place[0].astimezone(UTC), place[1]
    except (ValueError, OverflowError) as error:
        raise BadCursorError from error


def _decode(cursor: str, kind: str, length: int) -> list[str]:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        document: Any = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise BadCursorError from error
    if not _is_key(document, kind, length):
        raise BadCursorError
    return document[1:]


def _is_key(document: Any, kind: str, length: int) -> bool:
    if not isinstance(document, list) or len(document) != length + 1:  # pyright: ignore[reportUnknownArgumentType] - just parsed
        return False
    return document[0] == kind and all(isinstance(item, str) for item in document)  # pyright: ignore[reportUnknownVariableType] - just parsed


def page_answer(
    request: Request,
    data: Sequence[Mapping[str, Any]],
    next_cursor: str | None,
    headers: Mapping[str, str] | None = None,
) -> JsonAnswer:
    document = {
        "object": "list",
        "data": data,
        "has_more": next_cursor is not None,
        "next_cursor": next_cursor,
    }
    headers = dict(headers or {})
    if next_cursor is not None:
        query = dict(request.query_params) | {"cursor": next_cursor}
        headers["Link"] = f'<{request.url.path}?{urlencode(query)}>; rel="next"'
    return JsonAnswer(document, headers=headers)
