"""A network between client and service that can be cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class Relay:
    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections = 0
        self.is_down = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Relay"]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Resets every connection, as a lost network shows in the end."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.is_down:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, there_writer}
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with suppress(ConnectionError, OSError):
        writer.close()
