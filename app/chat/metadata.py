"""A conversation's metadata: what clients may keep there, and how a merge patch changes it."""

from collections.abc import Mapping
from typing import Any, cast

from app.errors import Fault, InvalidRequestError
from app.messages.codec import dump_json
from app.messages.text_policy import storable_json

LARGEST = 16 * 1024
DEEPEST = 16


def flaw_of(metadata: Mapping[str, Any]) -> str | None:
    """What is wrong with it, as a sentence without its content; None when nothing is."""
    return flaw_of_patch(metadata) or _flaw_of_size(metadata)


def flaw_of_patch(patch: Mapping[str, Any]) -> str | None:
    """The same of a change, which may name more than may be kept."""
    if not _is_shallow(patch, DEEPEST):
        return f"must not be nested deeper than {DEEPEST} levels"
    if storable_json(patch) != patch:
        return "must not hold NUL or a lone surrogate"
    return None


def _flaw_of_size(metadata: Mapping[str, Any]) -> str | None:
    if len(dump_json(metadata).encode()) > LARGEST:
        return f"must not be larger than {LARGEST} bytes of JSON"
    return None


def merged(metadata: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata after a JSON Merge Patch (RFC 7396). Raises InvalidRequestError."""
    result = _merged(metadata, patch)
    flaw = flaw_of(result)
    if flaw is not None:
        raise InvalidRequestError([Fault("/metadata", f"after the patch it {flaw}")])
    return result


def _merged(target: object, patch: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(cast("Mapping[str, Any]", target)) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            result[name] = _merged(result.get(name), cast("Mapping[str, Any]", value))
        else:
            result[name] = value
    return result


def _is_shallow(value: object, levels: int) -> bool:
    if levels == 0:
        return False
    if isinstance(value, Mapping):
        values = cast("Mapping[str, object]", value).values()
        return all(_is_shallow(item, levels - 1) for item in values)
    if isinstance(value, list):
        return all(_is_shallow(item, levels - 1) for item in cast("list[object]", value))
    return True
