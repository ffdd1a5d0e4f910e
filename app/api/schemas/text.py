"""Checks on what clients write: only what can be stored, whole."""

from typing import Annotated, Any, cast

from pydantic import AfterValidator

from app.messages.codec import dump_json
from app.messages.text_policy import is_storable, storable_json

LARGEST_METADATA = 16 * 1024
DEEPEST_METADATA = 16


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("must not hold NUL or a lone surrogate")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    if not _is_shallow(value, DEEPEST_METADATA):
        raise ValueError(f"must not be nested deeper than {DEEPEST_METADATA} levels")
    if storable_json(value) != value:
        raise ValueError("must not hold NUL or a lone surrogate")
    if len(dump_json(value).encode()) > LARGEST_METADATA:
        raise ValueError(f"must not be larger than {LARGEST_METADATA} bytes of JSON")
    return value


def _is_shallow(value: object, levels: int) -> bool:
    if levels == 0:
        return False
    if isinstance(value, dict):
        values = cast("dict[str, object]", value).values()
        return all(_is_shallow(item, levels - 1) for item in values)
    if isinstance(value, list):
        return all(_is_shallow(item, levels - 1) for item in cast("list[object]", value))
    return True


StorableText = Annotated[str, AfterValidator(_storable)]
WrittenText = Annotated[str, AfterValidator(_storable), AfterValidator(_not_blank)]
Metadata = Annotated[dict[str, Any], AfterValidator(_metadata)]
