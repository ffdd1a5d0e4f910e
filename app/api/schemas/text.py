"""Checks on what clients write: only what can be stored, whole."""

from typing import Annotated, Any

from pydantic import AfterValidator

from app.chat.metadata import flaw_of
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


StorableText = Annotated[str, AfterValidator(_storable)]
WrittenText = Annotated[str, AfterValidator(_storable), AfterValidator(_not_blank)]
Metadata = Annotated[dict[str, Any], AfterValidator(_metadata)]
