"""Runs and turns: what they are, and their statuses."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from app.ids import ConversationId, MessageId, TurnId


class RunStatus(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


class TurnStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        return self is not TurnStatus.RUNNING


class IncompleteReason(StrEnum):
    """Why a turn ended short of its answer although nothing failed."""

    OUTPUT_LIMIT = "output_limit"
    CONTENT_FILTER = "content_filter"
    REQUEST_LIMIT = "request_limit"
    TIME_LIMIT = "time_limit"


class RestartReason(StrEnum):
    """Why a turn was begun again: its process died, or handed it over and still lives, or did."""

    WORKER_LOST = "worker_lost"
    HANDED_OVER = "handed_over"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a turn or conversation; None means unknown, never zero. `cost` is in US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: Decimal | None = None
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class ActiveTurn:
    id: TurnId
    number: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Run:
    """A conversation, as its owner may see it."""

    id: ConversationId
    user_id: str
    status: RunStatus
    title: str | None
    metadata: Mapping[str, object]
    config: Mapping[str, object]
    session_id: str | None
    parent_workflow_id: str | None
    turn_count: int
    active_turn: ActiveTurn | None
    usage: Usage
    version: int
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None

    @property
    def is_open(self) -> bool:
        return self.status is RunStatus.OPEN


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of a conversation. `error` is the problem document as it was first rendered.

    `last_seq` is that of its terminal event, 0 while it runs.
    """

    id: TurnId
    run_id: ConversationId
    number: int
    status: TurnStatus
    attempt: int
    output: str | None
    reason: str | None
    error: Mapping[str, object] | None
    model: str | None
    finish_reason: str | None
    usage: Usage
    request_id: str | None
    trace_id: str | None
    created_at: datetime
    first_token_at: datetime | None
    completed_at: datetime | None
    last_seq: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to write for one running turn: good as long as the row still bears this fence."""

    run_id: ConversationId
    turn_id: TurnId
    fence: int


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """A turn whose begin is committed, with what its execution needs to know of the run.

    `restarted` stands with an attempt after the first: why there is one. `started_at` is when this
    attempt began, `last_seq` that of the last event that earlier attempts have shown.
    """

    claim: Claim
    number: int
    attempt: int
    user_id: str
    user_message_id: MessageId
    prompt: str
    prompt_metadata: Mapping[str, Any]
    config: Mapping[str, object]
    request_id: str | None
    trace_id: str | None
    created_at: datetime
    started_at: datetime
    last_seq: int = 0
    restarted: RestartReason | None = None

    def as_turn(self) -> Turn:
        """The turn as it stands while it runs."""
        return Turn(
            id=self.claim.turn_id,
            run_id=self.claim.run_id,
            number=self.number,
            status=TurnStatus.RUNNING,
            attempt=self.attempt,
            output=None,
            reason=None,
            error=None,
            model=None,
            finish_reason=None,
            usage=Usage(),
            request_id=self.request_id,
            trace_id=self.trace_id,
            created_at=self.created_at,
            first_token_at=None,
            completed_at=None,
        )
