"""Bodies that send messages."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.api.schemas.text import Metadata, WrittenText

LONGEST_CONTENT = 200_000


class SendMessage(BaseModel):
    """A user's message; `content` counts characters (Unicode code points)."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"content": "My name is Ada."}]},
    )

    content: Annotated[WrittenText, Field(min_length=1, max_length=LONGEST_CONTENT)]
    metadata: Metadata = Field(default_factory=dict[str, object])
