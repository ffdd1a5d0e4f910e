"""Behind a proxy the service may stand below a path of its own."""

from starlette.types import ASGIApp, Receive, Scope, Send


class BasePathMiddleware:
    """Takes requests both from proxies that strip the base path and from those that do not."""

    def __init__(self, app: ASGIApp, base: str) -> None:
        """`base` as in "/chat", or empty."""
        self._app = app
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._base:
            path: str = scope["path"]
            if not (path == self._base or path.startswith(f"{self._base}/")):
                path = self._base + path
            scope = {**scope, "path": path, "root_path": self._base}
        await self._app(scope, receive, send)
