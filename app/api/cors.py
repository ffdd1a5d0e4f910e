"""Which pages of other origins may call (the Fetch standard's CORS protocol)."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

METHODS = ("GET", "HEAD", "POST", "PATCH", "DELETE")
TAKEN = (
    "Authorization",
    "Baggage",
    "Content-Type",
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "Last-Event-ID",
    "Prefer",
    "Traceparent",
    "Tracestate",
    "X-Request-ID",
)
EXPOSED = (
    "ETag",
    "Idempotency-Replayed",
    "Link",
    "Location",
    "Preference-Applied",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "X-Request-ID",
    "X-Turn-ID",
)
# Seconds that a browser may remember the answer to its preflight.
MAX_AGE = 600


def allowing(origins: Sequence[str], app: ASGIApp) -> ASGIApp:
    """Without origins no page elsewhere may read anything, which is what browsers do by default."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=TAKEN,
        expose_headers=EXPOSED,
        max_age=MAX_AGE,
    )
