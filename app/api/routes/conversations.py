"""Create, read, list, close and erase conversations."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Request
from pydantic import Field
from starlette.responses import Response

from app.api.answers import REPLAYED, JsonAnswer, NotModified, kept_as
from app.api.dependencies import (
    Absent,
    AfterQuery,
    CallerDep,
    ConversationIdDep,
    CursorQuery,
    HoldsStreamPlace,
    IdempotencyKeyDep,
    IfMatchHeader,
    IfNoneMatchHeader,
    LastEventIdHeader,
    PathsDep,
    RunnerDep,
)
from app.api.documented import OF_A_BODY, answer, empty, problems, stream
from app.api.etags import etag_of, expected_versions, is_unchanged
from app.api.pagination import encode_cursor, page_answer, place_of
from app.api.routes.messages import turn_answer
from app.api.schemas.conversation import CreateConversation, PatchConversation
from app.api.schemas.page import Page
from app.api.schemas.text import StorableText
from app.api.sse import StreamAnswer, cursor_of
from app.api.strict_json import StrictJsonRoute
from app.chat.conversation_patch import ConversationPatch
from app.chat.runner import NewConversation, Order
from app.errors import (
    BadCursorError,
    BadLastEventIdError,
    IdempotencyMismatchError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    TurnInProgressError,
)
from app.runs import Run, RunStatus
from app.wire.conversation import ConversationDocument, conversation_document
from app.wire.turn import TurnDocument

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], route_class=StrictJsonRoute)

NO_BODY = CreateConversation()
UserQuery = Annotated[
    Annotated[StorableText, Field(min_length=1, max_length=200)] | Absent,
    Query(description="Another user's, with the scope `conversations:read:any`."),
]
# The same document by its own name (RFC 7396, section 4).
MERGE_PATCH = {
    "requestBody": {
        "content": {
            "application/merge-patch+json": {
                "schema": {"$ref": "#/components/schemas/PatchConversation"}
            }
        }
    }
}
ORDERS = {"-updated_at": Order.UPDATED, "-created_at": Order.CREATED}


@router.post(
    "",
    summary="Create a conversation",
    status_code=201,
    response_model=None,
    responses={
        201: answer(
            ConversationDocument,
            "conversation",
            "It was created",
            ("Location", "ETag", "Idempotency-Replayed"),
        ),
        **problems(*OF_A_BODY, IdempotencyMismatchError, NotFoundError),
    },
)
async def create_conversation(
    caller: CallerDep,
    runner: RunnerDep,
    paths: PathsDep,
    key: IdempotencyKeyDep,
    body: Annotated[CreateConversation, Body()] = NO_BODY,
) -> Response:
    run, replayed = await runner.create(
        caller,
        NewConversation(
            title=body.title,
            metadata=body.metadata,
            overrides=body.config.model_dump(exclude_none=True),
            session_id=body.session_id,
            parent_workflow_id=body.parent_workflow_id,
            idempotency_key=key,
        ),
    )
    created = conversation_answer(run, status=201)
    created.headers["Location"] = paths.conversation(run.id)
    if replayed:
        created.headers[REPLAYED] = "true"
    return created


@router.get(
    "",
    summary="List conversations, newest first",
    response_model=None,
    responses={
        200: answer(Page[ConversationDocument], "conversations", "A page", ("Link",)),
        **problems(BadCursorError, InvalidRequestError),
    },
)
async def list_conversations(
    request: Request,
    caller: CallerDep,
    runner: RunnerDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: CursorQuery = None,
    status: Annotated[RunStatus | Absent, Query()] = None,
    sort: Annotated[Literal["-updated_at", "-created_at"], Query()] = "-updated_at",
    user_id: UserQuery = None,
) -> Response:
    order = ORDERS[sort]
    runs = await runner.list(
        caller,
        limit=limit + 1,
        order=order,
        after=place_of(cursor, sort),
        status=status,
        user_id=user_id,
    )
    page, last = runs[:limit], None
    if len(runs) > limit:
        moment = page[-1].updated_at if order is Order.UPDATED else page[-1].created_at
        last = encode_cursor(sort, moment.isoformat(), page[-1].id)
    return page_answer(request, [conversation_document(run) for run in page], last)


@router.get(
    "/{conversation_id}",
    summary="Read a conversation",
    response_model=None,
    responses={
        200: answer(ConversationDocument, "conversation", "As it stands", ("ETag",)),
        304: empty("It has not changed", ("ETag",)),
        **problems(NotFoundError),
    },
)
async def get_conversation(
    caller: CallerDep,
    runner: RunnerDep,
    conversation_id: ConversationIdDep,
    if_none_match: IfNoneMatchHeader = None,
) -> Response:
    """304 when `If-None-Match` names its `ETag`."""
    run = await runner.get(caller, conversation_id)
    if is_unchanged(if_none_match, run.version):
        return NotModified(etag_of(run.version))
    return conversation_answer(run)


@router.patch(
    "/{conversation_id}",
    summary="Change title and metadata",
    response_model=None,
    responses={
        200: answer(ConversationDocument, "conversation", "As it stands now", ("ETag",)),
        **problems(*OF_A_BODY, NotFoundError, PreconditionFailedError),
    },
    openapi_extra=MERGE_PATCH,
)
async def update_conversation(
    caller: CallerDep,
    runner: RunnerDep,
    conversation_id: ConversationIdDep,
    body: PatchConversation,
    if_match: IfMatchHeader = None,
) -> Response:
    """A JSON Merge Patch (RFC 7396): null removes. With `If-Match` only if nothing has changed."""
    given = body.model_dump(exclude_unset=True)
    wanted = ConversationPatch(changes=given, if_match=expected_versions(if_match))
    return conversation_answer(await runner.update(caller, conversation_id, wanted))


@router.post(
    "/{conversation_id}/close",
    summary="Close a conversation: final, and fine to repeat",
    response_model=None,
    responses={
        200: answer(ConversationDocument, "closed_conversation", "It is closed", ("ETag",)),
        **problems(NotFoundError, TurnInProgressError),
    },
)
async def close_conversation(
    caller: CallerDep, runner: RunnerDep, conversation_id: ConversationIdDep
) -> Response:
    return conversation_answer(await runner.close(caller, conversation_id))


@router.post(
    "/{conversation_id}/cancel",
    summary="Stop whichever turn is running; answers when it has ended",
    response_model=None,
    responses={
        200: answer(TurnDocument, "turn", "The turn, which has ended", ("X-Turn-ID",)),
        204: empty("No turn was running"),
        **problems(NotFoundError),
    },
)
async def cancel_running_turn(
    caller: CallerDep, runner: RunnerDep, paths: PathsDep, conversation_id: ConversationIdDep
) -> Response:
    """204 when none is running."""
    stopped = await runner.cancel(caller, conversation_id)
    return Response(status_code=204) if stopped is None else turn_answer(stopped, paths)


@router.get(
    "/{conversation_id}/events",
    summary="Follow a conversation, all its turns",
    dependencies=[HoldsStreamPlace],
    response_model=None,
    responses={
        200: stream("Events, until the conversation is closed or erased"),
        204: empty("It is closed, and nothing lies after the cursor"),
        **problems(NotFoundError, BadLastEventIdError),
    },
)
async def follow_conversation(
    request: Request,
    caller: CallerDep,
    runner: RunnerDep,
    conversation_id: ConversationIdDep,
    after: AfterQuery = None,
    last_event_id: LastEventIdHeader = None,
) -> Response:
    """After `Last-Event-ID` (or `?after=`) over all turns, else from the running turn's first event.

    204 when the conversation is closed and nothing lies after the cursor.
    """
    cursor = cursor_of(last_event_id, after)
    following = await runner.follow(caller, conversation_id, after=cursor)
    if following is None:
        return Response(status_code=204)
    return StreamAnswer(request, following.frames)


@router.delete(
    "/{conversation_id}",
    summary="Erase a conversation with everything it holds",
    status_code=204,
    response_model=None,
    responses={204: empty("It is erased, also when it was before"), **problems(NotFoundError)},
)
async def delete_conversation(
    caller: CallerDep, runner: RunnerDep, conversation_id: ConversationIdDep
) -> Response:
    await runner.delete(caller, conversation_id)
    return Response(status_code=204)


def conversation_answer(run: Run, *, status: int = 200) -> JsonAnswer:
    return JsonAnswer(
        conversation_document(run), status_code=status, headers=kept_as(etag_of(run.version))
    )
