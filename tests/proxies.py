"""Debian's nginx and PgBouncer with the files of deploy/, changed only in addresses and paths."""

import asyncio
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import make_url

from app.errors import DatabaseUnavailableError
from app.storage.account import account_for
from app.storage.database import opened_database

DEPLOY = Path(__file__).parents[1] / "deploy"
NGINX = "/usr/sbin/nginx"
PGBOUNCER = "/usr/sbin/pgbouncer"
START = 10.0
NGINX_PATHS = (
    *("pid", "client_body_temp_path", "proxy_temp_path", "fastcgi_temp_path", "uwsgi_temp_path"),
    "scgi_temp_path",
)


@asynccontextmanager
async def nginx(directory: Path, ports: Sequence[int]) -> AsyncGenerator[str]:
    """nginx before services on these ports of this machine. Yields its URL."""
    port = free_port()
    servers = "\n".join(f"server 127.0.0.1:{p} max_fails=3 fail_timeout=2s;" for p in ports)
    given = _changed(
        (DEPLOY / "nginx.conf").read_text(),
        {
            "server service:8000 max_fails=3 fail_timeout=2s resolve;": servers,
            "listen 8080 ": f"listen 127.0.0.1:{port} ",
            "access_log /dev/stdout paths;": "access_log access.log paths;",
            **{f"{each} /tmp/": f"{each} {directory}/" for each in NGINX_PATHS},
        },
    )
    path = directory / "nginx.conf"
    path.write_text(given)
    command = [NGINX, "-p", str(directory), "-c", str(path), "-g", "daemon off;"]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        url = f"http://127.0.0.1:{port}"
        await _until_answered(url)
        yield url
    finally:
        await _ended(process, signal.SIGTERM)


class PgBouncer:
    def __init__(self, url: str, command: Sequence[str], options: Mapping[str, Any]) -> None:
        self.url = url
        self._command = command
        self._options = options
        self._process: Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, **self._options)
        await _until_connected(self.url)

    async def stop(self) -> None:
        if self._process is not None:
            await _ended(self._process, signal.SIGKILL)

    async def restart(self, *, pause: float) -> None:
        """Every connection is lost; for `pause` seconds nobody answers."""
        await self.stop()
        await asyncio.sleep(pause)
        await self.start()


@asynccontextmanager
async def pgbouncer(directory: Path, server_url: str) -> AsyncGenerator[PgBouncer]:
    """PgBouncer before the embedded server of this URL."""
    server = make_url(server_url)
    port, name, user = free_port(), server.database, server.query["user"]
    socket_directory = str(server.query["host"])
    users = directory / "userlist.txt"
    users.write_text(f'"{user}" ""\n')
    given = _changed(
        (DEPLOY / "pgbouncer.ini").read_text(),
        {
            "chat = host=database port=5432 dbname=chat": (
                f"{name} = host={socket_directory} port=5432 dbname={name} user={user}"
            ),
            "listen_addr = 0.0.0.0": "listen_addr = 127.0.0.1\nunix_socket_dir =",
            "listen_port = 6432": f"listen_port = {port}",
            "auth_type = scram-sha-256": "auth_type = trust",
            "/etc/pgbouncer/userlist.txt": str(users),
        },
    )
    path = directory / "pgbouncer.ini"
    path.write_text(given)
    for each in (directory, path, users):
        each.chmod(0o755)
    account = account_for(Path(socket_directory))
    url = f"postgresql://{user}@127.0.0.1:{port}/{name}"
    bouncer = PgBouncer(url, [PGBOUNCER, "-q", str(path)], account.switch)
    await bouncer.start()
    try:
        yield bouncer
    finally:
        await bouncer.stop()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def _ended(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
    await process.wait()


async def _until_answered(url: str) -> None:
    async with asyncio.timeout(START), httpx.AsyncClient() as client:
        while True:
            with suppress(httpx.TransportError):
                await client.get(url)
                return
            await asyncio.sleep(0.05)


async def _until_connected(url: str) -> None:
    async with asyncio.timeout(START):
        while True:
            with suppress(DatabaseUnavailableError):
                async with (
                    opened_database(url, pool_size=1, pooled=True) as database,
                    database.statement() as driver,
                ):
                    await driver.fetchval("SELECT 1")
                return
            await asyncio.sleep(0.05)


def _changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, f"{old!r} is not once in the file"
        text = text.replace(old, new)
    return text
