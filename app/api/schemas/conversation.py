"""Bodies that create conversations."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.api.examples import PREFIX
from app.api.schemas.text import Metadata, MetadataPatch, StorableText, WrittenText
from app.chat.config import DEFAULT_PROFILE


def _whole(value: object) -> object:
    """In JSON 3.0 is the same number as 3 (JSON Schema, section 6.1.1 of the validation part)."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class ConfigOverrides(BaseModel):
    """What a client may set of the default profile. `tools`: by name, of those that it offers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    instructions: Annotated[StorableText, Field(max_length=100_000)] | None = None
    max_context_turns: Annotated[int, Field(ge=1, le=200), BeforeValidator(_whole)] | None = None
    tools: Annotated[list[StorableText], Field(max_length=200)] | None = None
    reasoning: Literal["hidden", "shown"] | None = None


class CreateConversation(BaseModel):
    """Everything is optional."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"title": "Trip to Oslo"}]}
    )

    title: Annotated[WrittenText, Field(max_length=200)] | None = None
    metadata: Metadata = Field(default_factory=dict[str, object])
    profile: Literal["default"] = DEFAULT_PROFILE
    config: ConfigOverrides = Field(default_factory=ConfigOverrides)
    session_id: Annotated[StorableText, Field(min_length=1, max_length=200)] | None = None
    parent_workflow_id: Annotated[StorableText, Field(min_length=1, max_length=200)] | None = None


class PatchConversation(BaseModel):
    """A JSON Merge Patch (RFC 7396): what is not given stays, null removes."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [f"{PREFIX}patch"]},
    )

    title: Annotated[WrittenText, Field(max_length=200)] | None = None
    metadata: MetadataPatch | None = None
