"""The server's open connections, for the one case in which a request has to reset its own."""

from collections.abc import Callable

from starlette.types import Scope


class Connections:
    """Told by the server how to reset one; without a server there is nothing to reset."""

    def __init__(self) -> None:
        self._reset: Callable[[object], None] = _nothing

    def served_by(self, reset: Callable[[object], None]) -> None:
        """`reset` takes the client's address, as a request's scope has it."""
        self._reset = reset

    def abort(self, scope: Scope) -> None:
        self._reset(scope.get("client"))


def _nothing(_client: object) -> None:
    """Requests that come by no connection, as in tests."""
