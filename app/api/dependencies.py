"""What routes ask for by type: the caller, the runner, ids from the path."""

from collections.abc import AsyncGenerator
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Header, Path, Query, Request
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from app.api.admission import admitted
from app.api.limits import count
from app.api.state import state_of
from app.api.trace_context import trace_id_of
from app.caller import Caller
from app.chat.runner import ChatWorkflowRunner
from app.errors import NotFoundError
from app.ids import ConversationId, TurnId
from app.wire.paths import Paths

# A parameter may be left out; there is no way to write null in a query or header.
Absent = SkipJsonSchema[None]
_Key = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]
_Cursor = Annotated[str, Field(max_length=500)]
CursorQuery = Annotated[_Cursor | Absent, Query(description="`next_cursor` of the page before.")]
AfterQuery = Annotated[
    str | Absent,
    Query(description="`<turn number>-<seq>`; for clients that cannot send `Last-Event-ID`."),
]
LastEventIdHeader = Annotated[
    str | Absent,
    Header(alias="Last-Event-ID", description="Resume after this event; wins over `after`."),
]
IfNoneMatchHeader = Annotated[
    list[str] | Absent,
    Header(alias="If-None-Match", description="304 when its ETag is still this."),
]
IfMatchHeader = Annotated[
    list[str] | Absent, Header(alias="If-Match", description="412 when its ETag is not this.")
]


async def _caller(request: Request) -> Caller:
    """Known already where a body was read, which is done for known callers only."""
    return await admitted(request)


async def _sender(request: Request) -> Caller:
    """Who begins a turn, which is counted apart."""
    caller = await admitted(request)
    count(request, state_of(request).limits.sends, caller)
    return caller


async def _stream_place(request: Request) -> AsyncGenerator[None]:
    """Held until the last byte is sent: the framework ends this block no sooner."""
    caller = await admitted(request)
    with state_of(request).limits.streams.one_more(caller.user_id):
        yield


async def _runner(request: Request) -> ChatWorkflowRunner:
    return state_of(request).runner


async def _paths(request: Request) -> Paths:
    return state_of(request).paths


async def _request_id(request: Request) -> str:
    return request.state.request_id


def _uuid(text: str) -> UUID:
    """Only the canonical form names anything; every other text is the id of nothing."""
    try:
        parsed = UUID(text)
    except ValueError:
        raise NotFoundError from None
    if str(parsed) != text:
        raise NotFoundError
    return parsed


async def _idempotency_key(
    idempotency_key: Annotated[
        _Key | Absent, Header(description="Makes the request safe to repeat for 24 hours.")
    ] = None,
) -> str | None:
    return idempotency_key


async def _trace_id(
    traceparent: Annotated[
        str | Absent, Header(description="W3C Trace Context; its trace id stands in the turn.")
    ] = None,
) -> str | None:
    return trace_id_of(traceparent)


async def _conversation_id(
    conversation_id: Annotated[str, Path(description="The conversation's id, a UUIDv7.")],
) -> ConversationId:
    return ConversationId(_uuid(conversation_id))


async def _turn_id(
    turn_id: Annotated[str, Path(description="The turn's id, a UUIDv7.")],
) -> TurnId:
    return TurnId(_uuid(turn_id))


CallerDep = Annotated[Caller, Depends(_caller)]
SenderDep = Annotated[Caller, Depends(_sender)]
HoldsStreamPlace = Depends(_stream_place)
TraceIdDep = Annotated[str | None, Depends(_trace_id)]
RunnerDep = Annotated[ChatWorkflowRunner, Depends(_runner)]
PathsDep = Annotated[Paths, Depends(_paths)]
RequestIdDep = Annotated[str, Depends(_request_id)]
ConversationIdDep = Annotated[ConversationId, Depends(_conversation_id)]
IdempotencyKeyDep = Annotated[str | None, Depends(_idempotency_key)]
TurnIdDep = Annotated[TurnId, Depends(_turn_id)]
