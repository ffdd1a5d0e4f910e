"""Send a message, and read the history."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from app.api.answers import REPLAYED, JsonAnswer, NotModified, kept_as, problem_answer
from app.api.dependencies import (
    Absent,
    CallerDep,
    ConversationIdDep,
    CursorQuery,
    HoldsStreamPlace,
    IdempotencyKeyDep,
    IfNoneMatchHeader,
    PathsDep,
    RequestIdDep,
    RunnerDep,
    SenderDep,
    TraceIdDep,
)
from app.api.documented import (
    OF_A_BEGIN,
    OF_A_BODY,
    OF_A_WAIT,
    answer,
    empty,
    problems,
    stream,
)
from app.api.etags import etag_of, is_unchanged
from app.api.pagination import encode_cursor, page_answer, turn_number_of
from app.api.preferences import preference_of
from app.api.schemas.message import SendMessage
from app.api.schemas.page import Page
from app.api.sse import turn_stream_answer
from app.api.strict_json import StrictJsonRoute
from app.chat.runner import TurnWithMessages
from app.chat.turn import Prompt
from app.errors import (
    BadCursorError,
    ConversationClosedError,
    IdempotencyMismatchError,
    InvalidRequestError,
    NotFoundError,
)
from app.runs import TurnStatus
from app.wire.message import MessageDocument, message_document
from app.wire.paths import Paths
from app.wire.problem import TURN_CANCELLED, about_turn, document_of
from app.wire.turn import TurnDocument, turn_document

router = APIRouter(
    prefix="/v1/conversations/{conversation_id}/messages",
    tags=["messages"],
    route_class=StrictJsonRoute,
)

CURSOR = "messages"
SENT = ("X-Turn-ID", "Idempotency-Replayed")
OF_A_SEND = (
    *OF_A_BODY,
    NotFoundError,
    ConversationClosedError,
    IdempotencyMismatchError,
    *OF_A_BEGIN,
)


@router.post(
    "",
    summary="Send a message and wait for the answer",
    response_model=None,
    responses={
        200: answer(TurnDocument, "turn", "The turn, which has ended", SENT),
        202: answer(
            TurnDocument,
            "running_turn",
            "The turn, which still runs",
            (*SENT, "Location", "Preference-Applied"),
        ),
        **problems(*OF_A_SEND, *OF_A_WAIT, also=[TURN_CANCELLED]),
    },
)
async def send_message(
    caller: SenderDep,
    runner: RunnerDep,
    paths: PathsDep,
    conversation_id: ConversationIdDep,
    request_id: RequestIdDep,
    trace_id: TraceIdDep,
    key: IdempotencyKeyDep,
    body: SendMessage,
    prefer: Annotated[
        list[str] | Absent, Header(description="`respond-async`, or `wait=n` seconds (RFC 7240).")
    ] = None,
) -> Response:
    """With `Prefer` the turn may be returned while it still runs, as 202 with its `Location`."""
    preference = preference_of(prefer or ())
    prompt = prompt_of(body, request_id, trace_id, key)
    sent = await runner.send_message(caller, conversation_id, prompt, wait=preference.wait)
    turn = sent.stored.turn
    if turn.status.is_terminal:
        ended = ended_turn_answer(sent.stored, paths)
        if sent.replayed:
            ended.headers[REPLAYED] = "true"
        return ended
    accepted = turn_answer(sent.stored, paths, status=202)
    accepted.headers["Location"] = paths.turn(conversation_id, turn.id)
    accepted.headers["Preference-Applied"] = preference.applied or ""
    return accepted


@router.post(
    "/stream",
    summary="Send a message and stream the turn",
    dependencies=[HoldsStreamPlace],
    response_model=None,
    responses={
        200: stream("The turn's events, from the first to the terminal one", SENT),
        **problems(*OF_A_SEND),
    },
)
async def stream_message(
    request: Request,
    caller: SenderDep,
    runner: RunnerDep,
    conversation_id: ConversationIdDep,
    request_id: RequestIdDep,
    trace_id: TraceIdDep,
    key: IdempotencyKeyDep,
    body: SendMessage,
) -> Response:
    """A refusal is an error before the first byte, never an event."""
    prompt = prompt_of(body, request_id, trace_id, key)
    sent = await runner.send_message_stream(caller, conversation_id, prompt)
    return turn_stream_answer(request, sent)


def prompt_of(body: SendMessage, request_id: str, trace_id: str | None, key: str | None) -> Prompt:
    return Prompt(
        content=body.content,
        metadata=body.metadata,
        request_id=request_id,
        trace_id=trace_id,
        idempotency_key=key,
    )


@router.get(
    "",
    summary="Read the history, oldest first",
    response_model=None,
    responses={
        200: answer(Page[MessageDocument], "messages", "A page", ("ETag", "Link")),
        304: empty("Nothing has changed", ("ETag",)),
        **problems(NotFoundError, BadCursorError, InvalidRequestError),
    },
)
async def list_messages(
    request: Request,
    caller: CallerDep,
    runner: RunnerDep,
    conversation_id: ConversationIdDep,
    limit: Annotated[int, Query(ge=1, le=200, description="How many turns.")] = 20,
    cursor: CursorQuery = None,
    if_none_match: IfNoneMatchHeader = None,
) -> Response:
    """The first page holds the latest turns; `next_cursor` leads to older ones.

    304 when `If-None-Match` names the `ETag`: a cheap question for those who ask often.
    """
    before = turn_number_of(cursor, CURSOR)
    # Read first: what comes between the two reads makes the page newer than its tag, never older.
    version = await runner.version(caller, conversation_id)
    if is_unchanged(if_none_match, version):
        return NotModified(etag_of(version))
    placed = await runner.get_history(caller, conversation_id, limit=limit, before=before)
    documents = [
        message_document(item.message, item.turn_id, item.turn_number)
        for item in placed
        if item.message.is_shown
    ]
    first = placed[0].turn_number if placed else 1
    older = encode_cursor(CURSOR, first) if first > 1 else None
    return page_answer(request, documents, older, kept_as(etag_of(version)))


def ended_turn_answer(ended: TurnWithMessages, paths: Paths) -> Response:
    """The turn as it was stored; its own problem where it failed."""
    turn = ended.turn
    if turn.status is TurnStatus.CANCELLED:
        path = paths.turn(turn.run_id, turn.id)
        document = document_of(TURN_CANCELLED, instance=path, request_id=turn.request_id)
        problem: Response = problem_answer(about_turn(document, paths, turn.run_id, turn.id))
    elif turn.error is not None:
        wait = turn.error.get("retry_after")
        problem = problem_answer(turn.error, retry_after=wait if isinstance(wait, int) else None)
    else:
        return turn_answer(ended, paths)
    problem.headers["X-Turn-ID"] = str(turn.id)
    return problem


def turn_answer(stored: TurnWithMessages, paths: Paths, *, status: int = 200) -> JsonAnswer:
    messages = [
        message_document(item.message, item.turn_id, item.turn_number)
        for item in stored.messages
        if item.message.is_shown
    ]
    return JsonAnswer(
        turn_document(stored.turn, paths, messages),
        status_code=status,
        headers={"X-Turn-ID": str(stored.turn.id)},
    )
