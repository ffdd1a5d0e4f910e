"""Entity tags (RFC 9110, section 8.8.3): a conversation's version, and the conditions on it."""

import re

from starlette.requests import Request

_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_VERSION = re.compile("[0-9]{1,18}")


def etag_of(version: int) -> str:
    return f'"{version}"'


def is_unchanged(request: Request, version: int) -> bool:
    """Whether `If-None-Match` names this version; compared weakly, as that header is."""
    given = _header(request, "if-none-match")
    if given.strip() == "*":
        return True
    return any(tag == str(version) for _, tag in _TAG.findall(given))


def expected_versions(request: Request) -> frozenset[int] | None:
    """The versions that `If-Match` allows; None when any will do.

    Compared strongly: a weak tag allows nothing, and neither does one that we have not given.
    """
    given = _header(request, "if-match")
    if not given or given.strip() == "*":
        return None
    tags = [tag for weak, tag in _TAG.findall(given) if not weak]
    return frozenset(int(tag) for tag in tags if _VERSION.fullmatch(tag))


def _header(request: Request, name: str) -> str:
    return ", ".join(request.headers.getlist(name))
