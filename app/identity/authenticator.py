"""What the API asks for each request."""

from collections.abc import Mapping
from typing import Protocol

from app.caller import Caller


class Authenticator(Protocol):
    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Header names are in lower case. Raises CallerError."""
        ...
