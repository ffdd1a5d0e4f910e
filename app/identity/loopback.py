"""No authentication: one local user, and nobody but programs and pages of this machine."""

import ipaddress
import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from app.caller import LOCAL_USER, Caller
from app.errors import ForbiddenError

_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)


class Loopback:
    """A web page elsewhere must not reach the service through its reader's browser.

    Host must name this machine (a page could point its own name here), and a browser's Origin,
    where there is one, must do so too, or be one that the operator lets in.
    """

    def __init__(self, allowed_origins: Collection[str] = ()) -> None:
        self._allowed_origins = frozenset(allowed_origins)

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        host = _HOST.fullmatch(headers.get("host", ""))
        if host is None or not is_loopback(host.group(1).strip("[]")):
            raise ForbiddenError("Host is not a loopback name")
        origin = headers.get("origin")
        if origin is not None and not self._is_let_in(origin):
            raise ForbiddenError("Origin is foreign")
        return Caller(LOCAL_USER)

    def _is_let_in(self, origin: str) -> bool:
        return origin in self._allowed_origins or is_loopback(_name_of(origin))


def is_loopback(name: str | None) -> bool:
    if name is None:
        return False
    if name.lower() == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
