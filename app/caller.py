"""Who is calling: always an argument, never a global."""

from dataclasses import dataclass

LOCAL_USER = "local"


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated person or program; `scopes` reach beyond the caller's own data."""

    user_id: str
    scopes: frozenset[str] = frozenset()
