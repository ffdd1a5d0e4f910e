"""A change of what a conversation is called, and of what its client keeps with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from app.chat.metadata import merged
from app.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPatch:
    """What to change: `title` and `metadata` (a merge patch), where they are given; None removes.

    `if_match`: only at one of these versions; None: at any.
    """

    changes: Mapping[str, object]
    if_match: frozenset[int] | None = None

    def title_of(self, run: Run) -> str | None:
        return cast("str | None", self.changes.get("title", run.title))

    def metadata_of(self, run: Run) -> Mapping[str, object]:
        if "metadata" not in self.changes:
            return run.metadata
        patch = self.changes["metadata"]
        return {} if patch is None else merged(run.metadata, cast("Mapping[str, object]", patch))
