"""What one caller may do at once in this process, and the headers that say so."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.caller import Caller
from app.errors import RateLimitedError

# Seconds to wait for one of one's own streams to end.
STREAM_RETRY = 5
# Callers that are remembered before those who have been quiet are looked for.
FEW = 1_000
_STATE = "quotas"


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a caller has left, as draft-ietf-httpapi-ratelimit-headers has it.

    `window`, `reset` and `wait` in seconds; `wait`: how long the refused has to, 0 for the allowed.
    """

    name: str
    limit: int
    window: int
    remaining: int
    reset: int
    wait: int

    @property
    def policy(self) -> str:
        return f'"{self.name}";q={self.limit};w={self.window}'

    @property
    def state(self) -> str:
        return f'"{self.name}";r={self.remaining};t={self.reset}'


class RateLimit:
    """At most `limit` in any `window` seconds: the times of what was done lately are kept."""

    def __init__(
        self,
        name: str,
        *,
        limit: int | None,
        window: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `limit` everything is allowed."""
        self._name = name
        self._limit = limit
        self._window = window
        self._clock = clock
        self._taken: dict[str, deque[float]] = {}
        self._many = FEW

    @property
    def remembered(self) -> int:
        """Callers that something is known of."""
        return len(self._taken)

    def take(self, user_id: str) -> Quota | None:
        """Counts one more, unless it is one too many; None when there is no limit."""
        if self._limit is None:
            return None
        now = self._clock()
        self._forget_the_quiet(now)
        taken = self._taken.setdefault(user_id, deque())
        while taken and taken[0] <= now - self._window:
            taken.popleft()
        is_allowed = len(taken) < self._limit
        if is_allowed:
            taken.append(now)
        until_more = math.ceil(taken[0] + self._window - now)
        return Quota(
            name=self._name,
            limit=self._limit,
            window=self._window,
            remaining=self._limit - len(taken),
            reset=until_more,
            wait=0 if is_allowed else until_more,
        )

    def _forget_the_quiet(self, now: float) -> None:
        if len(self._taken) <= self._many:
            return
        lately = now - self._window
        self._taken = {user: taken for user, taken in self._taken.items() if taken[-1] > lately}
        self._many = max(FEW, 2 * len(self._taken))


class OpenStreams:
    """How many streams each caller has open here."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    @contextmanager
    def one_more(self, user_id: str) -> Generator[None]:
        """Raises RateLimitedError."""
        if self._open[user_id] >= self._limit:
            raise RateLimitedError(STREAM_RETRY)
        self._open[user_id] += 1
        try:
            yield
        finally:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]


@dataclass(frozen=True, slots=True)
class Limits:
    """`requests` counts everything that is authenticated, `sends` what begins turns."""

    requests: RateLimit
    sends: RateLimit
    streams: OpenStreams


def count(request: Request, limit: RateLimit, caller: Caller) -> None:
    """Counts the request, and has its answer say what is left. Raises RateLimitedError."""
    quota = limit.take(caller.user_id)
    if quota is None:
        return
    request.scope["state"].setdefault(_STATE, []).append(quota)
    if quota.wait:
        raise RateLimitedError(quota.wait)


class QuotaHeadersMiddleware:
    """Adds `RateLimit-Policy` and `RateLimit` where something was counted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_quotas(message: Message) -> None:
            quotas: list[Quota] = scope["state"].get(_STATE, [])
            if message["type"] == "http.response.start" and quotas:
                headers = MutableHeaders(scope=message)
                headers["RateLimit-Policy"] = ", ".join(quota.policy for quota in quotas)
                headers["RateLimit"] = ", ".join(quota.state for quota in quotas)
            await send(message)

        await self._app(scope, receive, send_with_quotas)
