"""For whoever keeps this process alive."""

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from app.api.answers import JsonAnswer
from app.api.documented import answer
from app.api.state import state_of

router = APIRouter(prefix="/health", tags=["health"])


class Liveness(TypedDict):
    status: Literal["alive"]


class ReadinessDocument(TypedDict):
    """`reason` is null when ready; else database_unavailable, schema_behind or draining."""

    status: Literal["ready", "unavailable"]
    model: str
    reason: str | None


@router.get(
    "/live",
    summary="The process is alive",
    response_model=None,
    responses={200: answer(Liveness, "alive", "It is alive")},
)
async def get_liveness() -> Response:
    return JsonAnswer({"status": "alive"})


@router.get(
    "/ready",
    summary="The process can serve: database, schema, not shutting down",
    response_model=None,
    responses={
        200: answer(ReadinessDocument, "ready", "It can serve"),
        503: answer(ReadinessDocument, "not_ready", "It cannot, for this reason"),
    },
)
async def get_readiness(request: Request) -> Response:
    readiness = await state_of(request).health.readiness()
    document: ReadinessDocument = {
        "status": "ready" if readiness.reason is None else "unavailable",
        "model": readiness.model,
        "reason": readiness.reason,
    }
    return JsonAnswer(document, status_code=200 if readiness.reason is None else 503)
