"""A network between client and service that can be cut."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from sqlalchemy import make_url


class Relay:
    """`is_frozen`: nothing passes, and nobody is told, as behind a lost firewall or a pulled cable."""

    def __init__(self, host: str, port: int) -> None:
        """`host` may be the folder of a PostgreSQL's socket."""
        self._target = host, port
        self.is_frozen = False
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
        there_reader, there_writer = await self._open()
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                while self.is_frozen:
                    await asyncio.sleep(0.05)
                writer.write(data)
                await writer.drain()
        with suppress(ConnectionError, OSError):
            writer.close()


@asynccontextmanager
async def relay_to(url: str) -> AsyncGenerator[tuple[Relay, str]]:
    """A relay before the embedded server of this URL, and the URL that leads through it."""
    server = make_url(url)
    async with Relay(str(server.query["host"]), 5432).running() as relay:
        yield relay, f"postgresql://{server.query['user']}@127.0.0.1:{relay.port}/{server.database}"
