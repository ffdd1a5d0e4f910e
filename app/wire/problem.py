"""What went wrong, for clients: RFC 9457 problem details, and the only map from error to status.

The text never comes from an exception, and never holds the value that was refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired

from typing_extensions import TypedDict

from app.errors import (
    BadCursorError,
    BadLastEventIdError,
    BodyTimeoutError,
    BodyTooLargeError,
    ChatWorkflowError,
    ConversationClosedError,
    DatabaseUnavailableError,
    DrainingError,
    ForbiddenError,
    IdempotencyMismatchError,
    InvalidRequestError,
    MalformedJsonError,
    ModelError,
    ModelRateLimitedError,
    ModelTimeoutError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    PreconditionFailedError,
    RateLimitedError,
    StillRunningError,
    TurnInProgressError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
    WorkerLostError,
)
from app.ids import ConversationId, TurnId
from app.wire.identifier import Id
from app.wire.paths import Paths, TurnLinks

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:chat-workflow:problem:"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem. `retryable`: the same request may succeed later, unchanged."""

    status: int
    code: str
    title: str
    detail: str
    retryable: bool = False
    retry_after: int | None = None


class FaultDocument(TypedDict):
    pointer: str
    message: str


class ProblemDocument(TypedDict):
    """RFC 9457. `code` is what programs look at; `openapi/problems.md` lists all of them.

    `turn_id` and `links` stand where a turn was begun by the request, or is in its way;
    `retry_after` in seconds, in a turn's problem, where its model's provider asks to wait.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str | None
    retryable: bool
    errors: NotRequired[list[FaultDocument]]
    turn_id: NotRequired[Id]
    links: NotRequired[TurnLinks]
    retry_after: NotRequired[int]


KINDS: Mapping[type[ChatWorkflowError], Kind] = {
    MalformedJsonError: Kind(
        400, "malformed_json", "Malformed JSON", "The body is not a JSON document in UTF-8."
    ),
    BadCursorError: Kind(
        400,
        "bad_cursor",
        "Bad cursor",
        "The cursor does not come from this list; start without one.",
    ),
    BadLastEventIdError: Kind(
        400,
        "bad_last_event_id",
        "Bad last event id",
        "This is not the id of an event of this turn that was sent.",
    ),
    IdempotencyMismatchError: Kind(
        422,
        "idempotency_mismatch",
        "Idempotency key mismatch",
        "This Idempotency-Key was used for another request.",
    ),
    UnauthenticatedError: Kind(
        401,
        "unauthenticated",
        "Not authenticated",
        "Send a valid key as 'Authorization: Bearer …'.",
    ),
    ForbiddenError: Kind(
        403, "forbidden", "Forbidden", "This request is not allowed from here, or for this caller."
    ),
    NotFoundError: Kind(404, "not_found", "Not found", "There is nothing here."),
    TurnInProgressError: Kind(
        409,
        "turn_in_progress",
        "A turn is running",
        "The conversation is busy; wait for the running turn to end. Nothing was stored.",
        retryable=True,
        retry_after=1,
    ),
    ConversationClosedError: Kind(
        409,
        "conversation_closed",
        "Conversation closed",
        "A closed conversation takes no messages.",
    ),
    BodyTimeoutError: Kind(
        408, "body_timeout", "Body timed out", "The body did not arrive in time.", retryable=True
    ),
    PreconditionFailedError: Kind(
        412,
        "precondition_failed",
        "Precondition failed",
        "The conversation has changed since: read it again, then send the change with its ETag.",
    ),
    BodyTooLargeError: Kind(
        413, "body_too_large", "Body too large", "The body is larger than this service takes."
    ),
    UnsupportedMediaTypeError: Kind(
        415, "unsupported_media_type", "Unsupported media type", "Send application/json."
    ),
    InvalidRequestError: Kind(
        422, "invalid_request", "Invalid request", "See 'errors' for each fault."
    ),
    RateLimitedError: Kind(
        429,
        "rate_limited",
        "Too many requests",
        "This caller has too many requests, sends or open streams; see 'Retry-After'.",
        retryable=True,
    ),
    ModelError: Kind(
        502,
        "model_error",
        "The model failed",
        "The model refused, broke off or gave no answer.",
        retryable=True,
    ),
    WorkerLostError: Kind(
        502,
        "worker_lost",
        "The worker was lost",
        "The process that ran this turn stopped before its end, as did those that tried again.",
        retryable=True,
    ),
    ModelRateLimitedError: Kind(
        503,
        "model_rate_limited",
        "The model is rate limited",
        "The model's provider takes no more requests for now.",
        retryable=True,
    ),
    DrainingError: Kind(
        503,
        "draining",
        "Shutting down",
        "This instance is shutting down; try again.",
        retryable=True,
        retry_after=1,
    ),
    OverloadedError: Kind(
        503,
        "overloaded",
        "Overloaded",
        "As many turns run in this process as may; nothing was stored, try again.",
        retryable=True,
        retry_after=1,
    ),
    DatabaseUnavailableError: Kind(
        503,
        "database_unavailable",
        "Database unavailable",
        "The database cannot be reached; try again.",
        retryable=True,
        retry_after=1,
    ),
    OutcomeUnknownError: Kind(
        503,
        "outcome_unknown",
        "Outcome unknown",
        "The database went away while the turn was begun; 'links' will tell, a 404 there means no.",
        retry_after=1,
    ),
    ModelTimeoutError: Kind(
        504,
        "model_timeout",
        "The model timed out",
        "The model sent nothing within the time limit.",
        retryable=True,
    ),
    StillRunningError: Kind(
        504,
        "turn_still_running",
        "The turn is still running",
        "The turn goes on; read it at 'links'.",
        retryable=False,
    ),
}
TURN_CANCELLED = Kind(
    409, "turn_cancelled", "The turn was cancelled", "The turn was stopped before its end."
)
INTERNAL_ERROR = Kind(
    500, "internal_error", "Internal error", "Something went wrong on our side; it was logged."
)


_ABOUT_A_TURN = (TurnInProgressError, StillRunningError, DrainingError, OutcomeUnknownError)


def kind_of(error: BaseException) -> Kind:
    """Anything that is not in the map is a fault of ours."""
    return next((KINDS[cls] for cls in type(error).__mro__ if cls in KINDS), INTERNAL_ERROR)


def retry_after_of(error: BaseException) -> int | None:
    """Seconds to wait, where we know."""
    if isinstance(error, ModelRateLimitedError | RateLimitedError):
        return error.retry_after
    return kind_of(error).retry_after


def problem_document(
    error: BaseException, paths: Paths, *, instance: str, request_id: str | None
) -> ProblemDocument:
    document = document_of(kind_of(error), instance=instance, request_id=request_id)
    if isinstance(error, InvalidRequestError):
        document["errors"] = [
            {"pointer": fault.pointer, "message": fault.message} for fault in error.faults
        ]
    if isinstance(error, _ABOUT_A_TURN):
        return about_turn(document, paths, error.conversation_id, error.turn_id)
    return document


def document_of(kind: Kind, *, instance: str, request_id: str | None) -> ProblemDocument:
    return {
        "type": TYPE_PREFIX + kind.code,
        "title": kind.title,
        "status": kind.status,
        "detail": kind.detail,
        "instance": instance,
        "code": kind.code,
        "request_id": request_id,
        "retryable": kind.retryable,
    }


def about_turn(
    document: ProblemDocument,
    paths: Paths,
    conversation_id: ConversationId | None,
    turn_id: TurnId | None,
) -> ProblemDocument:
    """With these a client knows that a turn was begun, and where it is."""
    if conversation_id is None or turn_id is None:
        return document
    return {
        **document,
        "turn_id": str(turn_id),
        "links": paths.turn_links(conversation_id, turn_id),
    }


def turn_problem(
    error: BaseException,
    paths: Paths,
    conversation_id: ConversationId,
    turn_id: TurnId,
    *,
    request_id: str | None,
) -> Mapping[str, Any]:
    """The problem of a turn, as it is stored with it and shown ever after."""
    path = paths.turn(conversation_id, turn_id)
    document = problem_document(error, paths, instance=path, request_id=request_id)
    turned = about_turn(document, paths, conversation_id, turn_id)
    wait = retry_after_of(error)
    return turned if wait is None else {**turned, "retry_after": wait}
