"""One line for each request that was answered: never its query, headers or body."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.observability.logging import get_logger

logger = get_logger()

# Asked every few seconds by machines; of interest only to who looks for them.
_QUIET = "/health/"


class RequestLogMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.monotonic(), 0

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            client = scope.get("client")
            log = logger.debug if _QUIET in scope["path"] else logger.info
            log(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                duration_ms=round((time.monotonic() - began) * 1000),
                client=client[0] if client else None,
                request_id=scope["state"]["request_id"],
            )
