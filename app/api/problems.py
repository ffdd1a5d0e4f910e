"""Hooks the map from error to problem into FastAPI."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.answers import problem_answer
from app.api.methods import Methods
from app.api.state import state_of
from app.errors import (
    ChatWorkflowError,
    Fault,
    InvalidRequestError,
    NotFoundError,
    TurnInProgressError,
)
from app.observability.logging import get_logger
from app.wire.problem import (
    Kind,
    ProblemDocument,
    document_of,
    kind_of,
    problem_document,
    retry_after_of,
)

logger = get_logger()

MOST_FAULTS = 100


def install(app: FastAPI, methods: Methods) -> None:
    async def http(request: Request, error: Exception) -> Response:
        """Unknown paths and methods, as the framework finds them."""
        if not isinstance(error, HTTPException):
            raise error
        if error.status_code == HTTPStatus.NOT_FOUND:
            return await _expected(request, NotFoundError())
        answer = _plain(request, HTTPStatus(error.status_code))
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            # The framework names those of the first route only that it finds.
            answer.headers["Allow"] = ", ".join(methods.of(request.scope))
        return answer

    app.add_exception_handler(ChatWorkflowError, _expected)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, _unexpected)


async def _expected(request: Request, error: Exception) -> Response:
    document = _document(request, error)
    if kind_of(error).status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("request_failed", code=document["code"], request_id=_id_of(request))
    answer = problem_answer(document, retry_after=retry_after_of(error))
    if "turn_id" in document and not isinstance(error, TurnInProgressError):
        answer.headers["X-Turn-ID"] = document["turn_id"]
    return answer


async def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return await _expected(request, InvalidRequestError(_faults(error.errors())))


def _plain(request: Request, status: HTTPStatus) -> Response:
    kind = Kind(status, status.phrase.lower().replace(" ", "_"), status.phrase, status.description)
    document = document_of(kind, instance=request.url.path, request_id=_id_of(request))
    return problem_answer(document)


async def _unexpected(request: Request, error: Exception) -> Response:
    logger.error("request_broke", request_id=_id_of(request), exc_info=error)
    document = _document(request, error)
    return problem_answer(document)


def _document(request: Request, error: Exception) -> ProblemDocument:
    paths = state_of(request).paths
    return problem_document(error, paths, instance=request.url.path, request_id=_id_of(request))


def _id_of(request: Request) -> str:
    return request.state.request_id


def _faults(errors: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Where and what, by a JSON pointer (RFC 6901); never the value, and the first hundred only."""
    return [
        Fault(_pointer(error["loc"]), error["msg"].removeprefix("Value error, "))
        for error in errors[:MOST_FAULTS]
    ]


def _pointer(location: Sequence[int | str]) -> str:
    """Of the body `/name`, of anything else `/query/name`."""
    # Behind a parameter's name stands only which of its types was tried.
    place = location[1:] if location and location[0] == "body" else location[:2]
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in place)
