"""The HTTP application, and what stands before it."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.api import cors, problems
from app.api.base_path import BasePathMiddleware
from app.api.connections import PeerMiddleware
from app.api.limits import QuotaHeadersMiddleware
from app.api.methods import HeadMiddleware, Methods
from app.api.openapi import describe
from app.api.request_id import RequestIdMiddleware
from app.api.request_log import RequestLogMiddleware
from app.api.routes import conversations, health, messages, turns
from app.api.security_headers import SecurityHeadersMiddleware
from app.api.state import ApiState
from app.api.turnstile import TurnstileMiddleware

ROUTERS = tuple(routes.router for routes in (conversations, messages, turns, health))


def create_application(state: ApiState | None = None) -> FastAPI:
    """Without state it can be described, but not served."""
    app = FastAPI(
        title="chat-workflow",
        summary="Multi-turn conversations with language-model agents, as durable workflow runs.",
        version=version("chat-workflow"),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        # Both would load scripts from elsewhere, and both would need authentication.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.api = state
    problems.install(app, Methods(ROUTERS))
    for router in ROUTERS:
        app.include_router(router)
    return app


def described() -> dict[str, Any]:
    """The API as an OpenAPI document."""
    return describe(create_application())


class Front:
    """The application as it is served: a request passes these from the top down.

    They stand outside of the framework, so that its answers to faults of ours pass them too.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        base_path: str,
        cors_origins: Sequence[str],
        trusted_proxies: Sequence[str],
    ) -> None:
        """`trusted_proxies`: addresses or networks whose `X-Forwarded-…` headers are believed."""
        app = HeadMiddleware(app)
        app = cors.allowing(cors_origins, app)
        app = QuotaHeadersMiddleware(app)
        app = SecurityHeadersMiddleware(app)
        app = BasePathMiddleware(app, base_path)
        app = RequestLogMiddleware(app)
        app = RequestIdMiddleware(app)
        if trusted_proxies:
            # uvicorn's types are its own; they say the same as Starlette's.
            app = ProxyHeadersMiddleware(app, list(trusted_proxies))  # pyright: ignore[reportArgumentType, reportAssignmentType]
        self._http = TurnstileMiddleware(PeerMiddleware(app))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Only HTTP is spoken here; uvicorn starts nothing else (its lifespan is off)."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']!r} is not spoken here")
        await self._http(scope, receive, send)
