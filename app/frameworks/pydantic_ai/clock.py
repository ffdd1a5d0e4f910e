"""The framework stamps messages by this machine's clock, which may be wrong; we by the database's."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse


def skew(now: datetime) -> timedelta:
    """How far this machine's clock is behind, when it is `now` by the database's."""
    return now - datetime.fromtimestamp(time.time(), UTC)


def shifted(message: ModelMessage, by: timedelta) -> ModelMessage:
    """The same message, and its parts, at that much later a time."""
    if isinstance(message, ModelResponse):
        return replace(message, timestamp=message.timestamp + by)
    parts = [_part(part, by) for part in message.parts]
    moment = message.timestamp
    return replace(message, parts=parts, timestamp=None if moment is None else moment + by)


def _part(part: Any, by: timedelta) -> Any:
    """Not every part has a time."""
    moment = getattr(part, "timestamp", None)
    return replace(part, timestamp=moment + by) if isinstance(moment, datetime) else part
