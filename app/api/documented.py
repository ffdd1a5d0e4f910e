"""What routes say of their answers, for the description of the API. Nothing here changes an answer."""

from collections.abc import Sequence
from typing import Any

from app.api import examples
from app.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    ChatWorkflowError,
    DatabaseUnavailableError,
    DrainingError,
    ForbiddenError,
    InvalidRequestError,
    MalformedJsonError,
    ModelError,
    ModelRateLimitedError,
    ModelTimeoutError,
    OutcomeUnknownError,
    OverloadedError,
    RateLimitedError,
    StillRunningError,
    TurnInProgressError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
    WorkerLostError,
)
from app.wire.problem import INTERNAL_ERROR, KINDS, MEDIA_TYPE, TURN_CANCELLED, Kind

Responses = dict[int | str, dict[str, Any]]

# Any request that needs authentication.
EVERY = (UnauthenticatedError, ForbiddenError, RateLimitedError, DatabaseUnavailableError)
# Any that has a body.
OF_A_BODY = (
    MalformedJsonError,
    BodyTimeoutError,
    BodyTooLargeError,
    UnsupportedMediaTypeError,
    InvalidRequestError,
)
# Any that begins a turn, and any that waits for its end.
OF_A_BEGIN = (TurnInProgressError, DrainingError, OverloadedError, OutcomeUnknownError)
OF_A_WAIT = (
    ModelError,
    WorkerLostError,
    ModelRateLimitedError,
    ModelTimeoutError,
    StillRunningError,
)
_OF_A_TURN = {
    *(KINDS[error].code for error in (*OF_A_WAIT, OutcomeUnknownError, TurnInProgressError)),
    TURN_CANCELLED.code,
}
_WITH_RETRY_AFTER = {429, 503}
_NOT_TO_BE_REPEATED = {409, 422}


def answer(
    model: object, example: str, description: str, headers: Sequence[str] = ()
) -> dict[str, Any]:
    """An answer with a JSON document; `example` names one of `examples.py`."""
    return {
        "model": model,
        "description": description,
        "content": {"application/json": {"example": examples.PREFIX + example}},
        "headers": _headers(headers),
    }


def empty(description: str, headers: Sequence[str] = ()) -> dict[str, Any]:
    return {"description": description, "headers": _headers(headers)}


def stream(description: str, headers: Sequence[str] = ()) -> dict[str, Any]:
    """An answer of events; the schema is that of one of them, as OpenAPI 3.2 has it too."""
    content = {"schema": {"$ref": "#/components/schemas/ServerSentEvent"}}
    return {
        "description": description,
        "content": {"text/event-stream": {**content, "example": examples.PREFIX + "event"}},
        "headers": _headers(headers),
    }


def problems(*errors: type[ChatWorkflowError], also: Sequence[Kind] = ()) -> Responses:
    """The problems that a route answers with, beside those of every route; one entry a status."""
    kinds = [*(KINDS[error] for error in (*EVERY, *errors)), *also, INTERNAL_ERROR]
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {status: _problem(status, by_status[status]) for status in sorted(by_status)}


def _problem(status: int, kinds: Sequence[Kind]) -> dict[str, Any]:
    named = {
        kind.code: {
            "summary": kind.title,
            "value": examples.problem(kind, of_a_turn=kind.code in _OF_A_TURN),
        }
        for kind in kinds
    }
    headers = ["WWW-Authenticate"] if status == 401 else []
    if any(kind.retry_after for kind in kinds) or status in _WITH_RETRY_AFTER:
        headers.append("Retry-After")
    if status in _NOT_TO_BE_REPEATED:
        headers.append("X-Should-Retry")
    if _OF_A_TURN & set(named):
        headers.append("X-Turn-ID-Of-A-Problem")
    return {
        "description": " · ".join(f"`{code}`" for code in named),
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/ProblemDocument"},
                "examples": named,
            }
        },
        "headers": _headers(headers),
    }


def _headers(names: Sequence[str]) -> dict[str, Any]:
    """By the names that they have in the description's components."""
    every = ("X-Request-ID", "RateLimit-Policy", "RateLimit")
    return {
        name.removesuffix("-Of-A-Problem"): {"$ref": f"#/components/headers/{name}"}
        for name in (*every, *names)
    }
