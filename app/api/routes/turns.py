"""Read turns."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.dependencies import (
    CallerDep,
    ConversationIdDep,
    HoldsStreamPlace,
    PathsDep,
    RunnerDep,
    TurnIdDep,
)
from app.api.pagination import encode_cursor, page_answer, turn_number_of
from app.api.routes.messages import turn_answer
from app.api.schemas.page import Page
from app.api.sse import cursor_of, turn_stream_answer
from app.errors import NotFoundError
from app.wire.turn import TurnDocument, turn_document

router = APIRouter(prefix="/v1/conversations/{conversation_id}/turns", tags=["turns"])

CURSOR = "turns"


@router.get(
    "",
    summary="List turns, newest first, without their messages",
    response_model=None,
    responses={200: {"model": Page[TurnDocument]}},
)
async def list_turns(
    request: Request,
    caller: CallerDep,
    runner: RunnerDep,
    paths: PathsDep,
    conversation_id: ConversationIdDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
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
    responses={200: {"model": TurnDocument}},
)
async def get(
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
    responses={200: {"content": {"text/event-stream": {}}}, 204: {}},
)
async def events(
    request: Request,
    caller: CallerDep,
    runner: RunnerDep,
    conversation_id: ConversationIdDep,
    turn_id: TurnIdDep,
    after: Annotated[str | None, Query(description="`<turn number>-<seq>`")] = None,
) -> Response:
    """After `Last-Event-ID` (or `?after=`), or from the first event; 204 after the last one."""
    cursor = cursor_of(request, after)
    stream = await runner.follow_turn(caller, conversation_id, turn_id, after=cursor)
    if stream is None:
        return Response(status_code=204)
    return turn_stream_answer(request, stream)


@router.post(
    "/{turn_id}/cancel",
    summary="Stop a turn; answers when it has ended",
    response_model=None,
    responses={200: {"model": TurnDocument}},
)
async def cancel(
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
