"""Entity tags (RFC 9110, section 8.8.3): a conversation's version, and the conditions on it."""

import re
from collections.abc import Sequence

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_VERSION = re.compile("[0-9]{1,18}")


def etag_of(version: int) -> str:
    return f'"{version}"'


def is_unchanged(if_none_match: Sequence[str] | None, version: int) -> bool:
    """Whether `If-None-Match` names this version; compared weakly, as that header is."""
    given = ", ".join(if_none_match or ())
    if given.strip() == "*":
        return True
    return any(tag == str(version) for _, tag in _TAG.findall(given))


def expected_versions(if_match: Sequence[str] | None) -> frozenset[int] | None:
    """The versions that `If-Match` allows; None when any will do.

    Compared strongly: a weak tag allows nothing, and neither does one that we have not given.
    """
    given = ", ".join(if_match or ())
    if not given or given.strip() == "*":
        return None
    tags = [tag for weak, tag in _TAG.findall(given) if not weak]
    return frozenset(int(tag) for tag in tags if _VERSION.fullmatch(tag))
