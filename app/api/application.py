"""The HTTP application."""

from importlib.metadata import version

from fastapi import FastAPI

from app.api import problems
from app.api.request_id import RequestIdMiddleware
from app.api.routes import conversations, health, messages, turns
from app.api.state import ApiState


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
    )
    app.state.api = state
    app.add_middleware(RequestIdMiddleware)
    problems.install(app)
    for routes in (conversations, messages, turns, health):
        app.include_router(routes.router)
    return app
