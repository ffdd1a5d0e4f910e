"""What routes may use: runners, who is calling, and health. Nothing of the machinery below."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from app.api.limits import Limits
from app.chat.runner import ChatWorkflowRunner
from app.health import Health
from app.identity.authenticator import Authenticator
from app.wire.paths import Paths


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """`max_body` in bytes; `heartbeat` and `send_timeout` of streams in seconds.

    `abort_connection` resets the connection that a request came by.
    """

    runner: ChatWorkflowRunner
    paths: Paths
    authenticator: Authenticator
    health: Health
    limits: Limits
    max_body: int
    heartbeat: float
    send_timeout: float
    abort_connection: Callable[[Scope], None]


def state_of(request: Request) -> ApiState:
    return request.app.state.api
