"""What a conversation was created with: a snapshot that later changes of the server do not alter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

from app.errors import Fault, InvalidRequestError

DEFAULT_PROFILE = "default"


@dataclass(frozen=True, slots=True)
class ChatWorkflowConfig:
    """Limits are in seconds. `instructions` are sent on every turn and never stored as a message.

    `tools`: the names of those that the model may call; None, in old snapshots only: all there are.
    """

    model: str
    instructions: str | None
    max_context_turns: int
    turn_timeout: float
    first_token_timeout: float
    reasoning: Literal["hidden", "shown"] = "hidden"
    tools: tuple[str, ...] | None = None
    profile: str = DEFAULT_PROFILE

    def with_overrides(self, overrides: Mapping[str, object]) -> "ChatWorkflowConfig":
        """Raises InvalidRequestError for a tool that is not offered."""
        wanted, offered = cast("Sequence[str]", overrides.get("tools", ())), self.tools or ()
        faults = [
            Fault(f"/config/tools/{place}", "there is no such tool")
            for place, name in enumerate(wanted)
            if name not in offered
        ]
        if faults:
            raise InvalidRequestError(faults)
        return replace(self, **cast("dict[str, Any]", overrides))

    def snapshot(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, object]) -> "ChatWorkflowConfig":
        """A field that a newer release has added is left out."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in snapshot.items() if name in known}
        return cls(**cast("dict[str, Any]", values))
