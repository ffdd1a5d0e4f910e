"""Which methods a path has: for HEAD, which every GET has too, and for `Allow`."""

import asyncio
import re
from collections.abc import Iterable

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Methods:
    def __init__(self, routers: Iterable[APIRouter]) -> None:
        routes = [route for router in routers for route in router.routes]
        self._routes: list[tuple[re.Pattern[str], set[str]]] = [
            (route.path_regex, route.methods or set[str]())
            for route in routes
            if isinstance(route, APIRoute)
        ]

    def of(self, scope: Scope) -> list[str]:
        """Those of the request's path, in alphabetical order; none where there is no such path."""
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        found = [methods for pattern, methods in self._routes if pattern.match(path)]
        methods = set[str]().union(*found)
        return sorted(methods | {"HEAD"} if "GET" in methods else methods)


class HeadMiddleware:
    """Answers HEAD as GET without the content (RFC 9110, section 9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()

        async def gone_when_answered() -> Message:
            """A stream learns so that nobody listens; else it would go on in silence."""
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        await self._app({**scope, "method": "GET"}, gone_when_answered, send_head)
