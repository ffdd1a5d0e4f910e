"""Bodies: bounded while they are read, and JSON as RFC 8259 has it, not as Python reads it."""

import asyncio
import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, cast

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from app.api.admission import admitted
from app.api.state import state_of
from app.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    Fault,
    InvalidRequestError,
    MalformedJsonError,
    UnsupportedMediaTypeError,
)

# Seconds for a whole body.
BODY_TIMEOUT = 30.0
MOST_VALUES = 20_000


class StrictJsonRoute(APIRoute):
    """Reads a route's body before FastAPI does, so that nothing else has to be caught there."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def strict(request: Request) -> Response:
            if not takes_body:
                return await handle(request)
            state = state_of(request)
            # Who is not let in is not listened to.
            await admitted(request)
            try:
                async with asyncio.timeout(BODY_TIMEOUT):
                    body = await _read(request, state.max_body)
            except TimeoutError as error:
                raise BodyTimeoutError from error
            except ClientDisconnect:
                return Response(status_code=400)
            if body:
                _require_json(request)
            document = parse(body) if body else None
            _require_few_values(document)
            return await handle(_ReadRequest(request, body, document))

        return strict


class _ReadRequest(Request):
    """A request whose body was read and parsed before."""

    def __init__(self, request: Request, body: bytes, document: object) -> None:
        super().__init__(request.scope, request.receive)
        self._body = body
        self._json = document


def parse(body: bytes) -> object:
    """Raises MalformedJsonError also for NaN, Infinity, 1e999, a byte order mark and deep nests."""
    try:
        return json.loads(
            body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        raise MalformedJsonError from error


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("JSON has no such number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number is too large")
    return number


def _require_json(request: Request) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json":
        return
    if request.method != "PATCH" or media_type != "application/merge-patch+json":
        raise UnsupportedMediaTypeError


def _require_few_values(document: object) -> None:
    """To check each of a million values, and to tell of each that is bad, would take seconds."""
    values, left = 0, [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            inner = cast("dict[str, object]", value).values()
        elif isinstance(value, list):
            inner = cast("list[object]", value)
        else:
            continue
        values += len(inner)
        if values > MOST_VALUES:
            fault = Fault("", f"must not hold more than {MOST_VALUES} values")
            raise InvalidRequestError([fault])
        left.extend(inner)


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise BodyTooLargeError(limit)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError(limit)
        chunks.append(chunk)
    return b"".join(chunks)
