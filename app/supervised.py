"""What a process of `serve --workers` has from its supervisor: the shared port, and a lifeline."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from app.errors import ConfigurationError

SERVING = b"."


class Supervised:
    """Both sockets were inherited; the supervisor is gone when the lifeline is at its end."""

    def __init__(self, listener: int, lifeline: int) -> None:
        """File descriptors. Raises ConfigurationError when they are none of ours."""
        try:
            self.listener = socket.socket(fileno=listener)
            self._lifeline = socket.socket(fileno=lifeline)
        except OSError:
            raise ConfigurationError("only 'serve --workers' gives --listener") from None

    def report_serving(self) -> None:
        with suppress(OSError):
            self._lifeline.send(SERVING)

    def when_orphaned(self, call: Callable[[], None]) -> None:
        """Nobody would stop this process any more: it has to do so itself."""
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(self._lifeline)
            call()

        self._lifeline.setblocking(False)
        loop.add_reader(self._lifeline, gone)
