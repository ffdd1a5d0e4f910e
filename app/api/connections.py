"""The server's open connections, for the one case in which a request has to reset its own."""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

_PEER = "peer"


class Connections:
    """Told by the server how to reset one; without a server there is nothing to reset."""

    def __init__(self) -> None:
        self._reset: Callable[[object], None] = _nothing

    def served_by(self, reset: Callable[[object], None]) -> None:
        """`reset` takes the peer's address, as the server gave it with the request."""
        self._reset = reset

    def abort(self, scope: Scope) -> None:
        self._reset(scope["state"].get(_PEER))


class PeerMiddleware:
    """Keeps the connection's own address, which forwarded headers may replace by the client's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})[_PEER] = scope.get("client")
        await self._app(scope, receive, send)


def _nothing(_peer: object) -> None:
    """Requests that come by no connection, as in tests."""
