"""Times on the wire: RFC 3339 in UTC, with Z."""

from datetime import UTC, datetime
from typing import Annotated, TypeAlias

from pydantic import WithJsonSchema

Moment: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def rfc3339_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)
