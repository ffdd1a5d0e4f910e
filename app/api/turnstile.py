"""Lets requests in one after the other, so that a thousand at once do not hold up what runs."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send


class TurnstileMiddleware:
    """One request begins for each round of the event loop; between two, streams and turns go on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            await asyncio.sleep(0)
        await self._app(scope, receive, send)
