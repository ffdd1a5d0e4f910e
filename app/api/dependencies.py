"""What routes ask for by type: the caller, the runner, ids from the path."""

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Header, Path, Request

from app.api.state import state_of
from app.caller import Caller
from app.chat.runner import ChatWorkflowRunner
from app.errors import NotFoundError
from app.ids import ConversationId, TurnId


async def _caller(request: Request) -> Caller:
    """Known already where a body was read, which is done for known callers only."""
    known: Caller | None = getattr(request.state, "caller", None)
    return known or await state_of(request).authenticator.authenticate(request.headers)


async def _runner(request: Request) -> ChatWorkflowRunner:
    return state_of(request).runner


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
        str | None,
        Header(
            min_length=1,
            max_length=255,
            pattern=r"^[\x21-\x7e]+$",
            description="Makes the request safe to repeat for 24 hours.",
        ),
    ] = None,
) -> str | None:
    return idempotency_key


async def _conversation_id(
    conversation_id: Annotated[str, Path(description="The conversation's id, a UUIDv7.")],
) -> ConversationId:
    return ConversationId(_uuid(conversation_id))


async def _turn_id(
    turn_id: Annotated[str, Path(description="The turn's id, a UUIDv7.")],
) -> TurnId:
    return TurnId(_uuid(turn_id))


CallerDep = Annotated[Caller, Depends(_caller)]
RunnerDep = Annotated[ChatWorkflowRunner, Depends(_runner)]
RequestIdDep = Annotated[str, Depends(_request_id)]
ConversationIdDep = Annotated[ConversationId, Depends(_conversation_id)]
IdempotencyKeyDep = Annotated[str | None, Depends(_idempotency_key)]
TurnIdDep = Annotated[TurnId, Depends(_turn_id)]
