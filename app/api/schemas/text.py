"""Checks on what clients write: only what can be stored, whole."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from app.chat.metadata import flaw_of, flaw_of_patch
from app.messages.text_policy import is_storable


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("must not hold NUL or a lone surrogate")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    flaw = flaw_of(value)
    if flaw is not None:
        raise ValueError(flaw)
    return value


def _metadata_patch(value: dict[str, Any]) -> dict[str, Any]:
    flaw = flaw_of_patch(value)
    if flaw is not None:
        raise ValueError(flaw)
    return value


# The patterns are for the description of the API; the checks are the functions above.
StorableText = Annotated[
    str, AfterValidator(_storable), Field(json_schema_extra={"pattern": r"^[^\u0000]*$"})
]
WrittenText = Annotated[
    str,
    AfterValidator(_storable),
    AfterValidator(_not_blank),
    Field(json_schema_extra={"pattern": r"^[^\u0000]*[^\s\u0000][^\u0000]*$"}),
]
_METADATA: dict[str, Any] = {
    "description": "At most 16 KiB of JSON, nested at most 16 levels deep, without NUL.",
    "propertyNames": {"pattern": r"^[^\u0000]*$"},
    "additionalProperties": {"$ref": "#/components/schemas/Json"},
}
Metadata = Annotated[dict[str, Any], AfterValidator(_metadata), Field(json_schema_extra=_METADATA)]
MetadataPatch = Annotated[
    dict[str, Any],
    AfterValidator(_metadata_patch),
    Field(
        json_schema_extra={
            **_METADATA,
            "description": "A JSON Merge Patch (RFC 7396); what comes of it is at most 16 KiB.",
        }
    ),
]
