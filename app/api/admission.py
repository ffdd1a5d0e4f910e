"""Who is calling, and whether they may call once more: asked once for each request."""

from starlette.requests import Request

from app.api.limits import count
from app.api.state import state_of
from app.caller import Caller


async def admitted(request: Request) -> Caller:
    """Raises CallerError."""
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None:
        return known
    state = state_of(request)
    caller = await state.authenticator.authenticate(request.headers)
    count(request, state.limits.requests, caller)
    request.state.caller = caller
    return caller
