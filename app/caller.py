"""Who is calling: always an argument, never a global."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

LOCAL_USER = "local"

Action: TypeAlias = Literal["read", "write", "delete"]


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated person or program; `scopes` reach beyond the caller's own data."""

    user_id: str
    scopes: frozenset[str] = frozenset()

    def acts_for_anyone(self, action: Action) -> bool:
        """Only the scope that names exactly that action reaches beyond one's own data."""
        return f"conversations:{action}:any" in self.scopes
