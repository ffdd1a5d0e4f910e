"""Read turns."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.dependencies import (
    AfterQuery,
    CallerDep,
    ConversationIdDep,
    CursorQuery,
    HoldsStreamPlace,
    LastEventIdHeader,
    PathsDep,
    RunnerDep,
    TurnIdDep,
)
from app.api.documented import answer, empty, problems, stream
from app.api.pagination import encode_cursor, page_answer, turn_number_of
from app.api.routes.messages import turn_answer
from app.api.schemas.page import Page
from app.api.sse import cursor_of, turn_stream_answer
from app.errors import BadCursorError, BadLastEventIdError, InvalidRequestError, NotFoundError
from app.wire.turn import TurnDocument, turn_document

router = APIRouter(prefix="/v1/conversations/{conversation_id}/turns", tags=["turns"])

CURSOR = "turns"


@router.get(
    "",
    summary="List turns, newest first, without their messages",
    response_model=None,
    responses={
        200: answer(Page[TurnDocument], "turns", "A page", ("Link",)),
        **problems(NotFoundError, BadCursorError, InvalidRequestError),
    },
)
async def list_turns(
    request: Request,
    caller: CallerDep,
    runner: RunnerDep,
    paths: PathsDep,
    conversation_id: ConversationIdDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: CursorQuery = None,
) -> Response:
    before = turn_number_of(cursor, CURSOR)
    turns = await runner.turns(caller, conversation_id, limit=limit, before=before)
    last = turns[-1].number if turns else 1
    older = encode_cursor(CURSOR, last) if last > 1 else None
    return page_answer(request, [turn_document(turn, paths) for turn in turns], older)


@router.get(
    "/{turn_id}",
    summary="Read a turn with its messages",
    response_model=None,
    responses={
        200: answer(TurnDocument, "turn", "As it stands", ("X-Turn-ID",)),
        **problems(NotFoundError),
    },
)
async def get_turn(
    caller: CallerDep,
    runner: RunnerDep,
    paths: PathsDep,
    conversation_id: ConversationIdDep,
    turn_id: TurnIdDep,
) -> Response:
    return turn_answer(await runner.turn(caller, conversation_id, turn_id), paths)


@router.get(
    "/{turn_id}/events",
    summary="Replay and follow a turn",
    dependencies=[HoldsStreamPlace],
    response_model=None,
    responses={
        200: stream("The turn's events after the cursor, to the terminal one", ("X-Turn-ID",)),
        204: empty("Nothing lies after the cursor"),
        **problems(NotFoundError, BadLastEventIdError),
    },
)
async def follow_turn(
    request: Request,
    caller: CallerDep,
    runner: RunnerDep,
    conversation_id: ConversationIdDep,
    turn_id: TurnIdDep,
    after: AfterQuery = None,
    last_event_id: LastEventIdHeader = None,
) -> Response:
    """After `Last-Event-ID` (or `?after=`), or from the first event; 204 after the last one."""
    cursor = cursor_of(last_event_id, after)
    following = await runner.follow_turn(caller, conversation_id, turn_id, after=cursor)
    if following is None:
        return Response(status_code=204)
    return turn_stream_answer(request, following)


@router.post(
    "/{turn_id}/cancel",
    summary="Stop a turn; answers when it has ended",
    response_model=None,
    responses={
        200: answer(TurnDocument, "turn", "The turn, which has ended", ("X-Turn-ID",)),
        **problems(NotFoundError),
    },
)
async def cancel_turn(
    caller: CallerDep,
    runner: RunnerDep,
    paths: PathsDep,
    conversation_id: ConversationIdDep,
    turn_id: TurnIdDep,
) -> Response:
    """A turn that had ended before is returned as it is."""
    stopped = await runner.cancel(caller, conversation_id, turn_id)
    if stopped is None:
        raise NotFoundError
    return turn_answer(stopped, paths)
