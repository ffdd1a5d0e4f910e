"""Runs uvicorn, and owns the signals: a stock server would cut what is still running."""

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from app.bootstrap import Service, running_service
from app.errors import ConfigurationError
from app.frameworks.pydantic_ai.models import DEMO
from app.identity.loopback import is_loopback
from app.observability.logging import get_logger
from app.settings import Settings
from app.supervised import Supervised

logger = get_logger()

SIGNALS = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 2048
# Seconds that an idle connection is kept: longer than a proxy keeps its end, so that no request of
# it meets a connection that is just closing.
KEEP_ALIVE = 75
MANY_FILES = 65_536
# Seconds; the kernel takes no more.
LONGEST_KEEPALIVE = 32_767
# Seconds after the drain: for the last bytes of streams, and to close connections.
EXIT_LIMIT = 8.0
# Seconds between two looks at the embedded server.
DATABASE_LOOK = 1.0


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Not uvicorn's business: it would close the sockets at once."""
        yield

    def reset(self, client: object) -> None:
        """Resets the connection from this address; what is buffered for it is dropped."""
        for connection in list(self.server_state.connections):
            if getattr(connection, "client", None) == client:
                connection.transport.abort()


async def serve(
    settings: Settings,
    database_url: str,
    ensure_database: Callable[[], None],
    supervised: Supervised | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. A second signal stops without waiting for turns.

    A tool may not have stopped when this returns; its turn was handed over.
    """
    _allow_many_files()
    sockets = [listen(settings) if supervised is None else supervised.listener]
    async with running_service(settings, database_url) as service:
        server = Server(uvicorn_config(service))
        service.connections.served_by(server.reset)
        signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, signals.put_nowait, number)
        async with asyncio.TaskGroup() as group:
            shutdown = group.create_task(_shut_down(settings, service, server, signals))
            looking = group.create_task(_look_after(ensure_database))
            _announce(settings, sockets[0])
            if supervised is not None:
                supervised.report_serving()
                supervised.when_orphaned(lambda: _give_up_the_port(server, signals))
            await server.serve(sockets)
            shutdown.cancel()
            looking.cancel()
    if service.engine.held:
        logger.warning("tools_left_running", turns=len(service.engine.held))


def _give_up_the_port(server: uvicorn.Server, signals: "asyncio.Queue[signal.Signals]") -> None:
    """The supervisor is gone: its successor needs the port, and shall not wait for our drain."""
    for listening in server.servers:
        listening.close()
    signals.put_nowait(signal.SIGTERM)


def _allow_many_files() -> None:
    """Each stream is a socket; many systems give a process 1,024 until it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _look_after(ensure_database: Callable[[], None]) -> None:
    """An embedded server that dies is started again; nobody else would."""
    while True:
        await asyncio.sleep(DATABASE_LOOK)
        try:
            await asyncio.to_thread(ensure_database)
        except ConfigurationError as error:
            logger.error("database_not_started", reason=str(error))  # noqa: TRY400 - one line says it


async def _shut_down(
    settings: Settings,
    service: Service,
    server: uvicorn.Server,
    signals: "asyncio.Queue[signal.Signals]",
) -> None:
    """New sends get 503 while the sockets stay open; running turns get their grace."""
    received = await signals.get()
    logger.info("shutting_down", signal=received.name)
    async with asyncio.TaskGroup() as group:
        drain = group.create_task(service.drain(settings.chat_shutdown_grace))
        second = group.create_task(signals.get())
        await asyncio.wait([drain, second], return_when=asyncio.FIRST_COMPLETED)
        server.force_exit = not drain.done()
        drain.cancel()
        second.cancel()
    server.should_exit = True
    # All is handed over. What is left to close, above all to a database that does not answer, must
    # not keep the process.
    asyncio.get_running_loop().call_later(EXIT_LIMIT, os._exit, 0)


def uvicorn_config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        service.app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=5,
    )


def _notice_the_vanished(listener: socket.socket, limit: float) -> None:
    """A client that is gone without a word, or takes nothing, loses its connection after `limit`
    seconds: unanswered bytes are given up then (RFC 5482), and silence is probed (RFC 9293, 3.8.4).

    What it accepts inherits this on Linux; elsewhere the system's own, longer times hold.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", min(limit / 2, LONGEST_KEEPALIVE)),
        ("TCP_KEEPINTVL", min(limit / 6, LONGEST_KEEPALIVE)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", limit * 1_000),
    ):
        option: int | None = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, max(1, int(value)))


def listen(settings: Settings) -> socket.socket:
    """Raises ConfigurationError. Without authentication only this machine may connect."""
    host, port = settings.chat_host, settings.chat_port
    if settings.chat_auth == "none" and not is_loopback(host):
        raise ConfigurationError(
            f"CHAT_HOST={host!r} can be reached from elsewhere, which CHAT_AUTH=none does not allow: "
            "set CHAT_AUTH=keys"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, TypeError, UnicodeError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "not a host"
        raise ConfigurationError(f"cannot listen on {host!r}:{port}: {reason}") from None
    bound = listener.getsockname()[0]
    if settings.chat_auth == "none" and not is_loopback(bound):
        listener.close()
        raise ConfigurationError(f"CHAT_HOST={host!r} is {bound}, which others can reach")
    _notice_the_vanished(listener, settings.chat_send_timeout)
    listener.listen(BACKLOG)
    return listener


def _announce(settings: Settings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    logger.info("serving", url=f"http://{name}:{port}", model=settings.chat_model)
    if settings.chat_model == DEMO:
        logger.warning("demo_model", hint="answers are made up here; set CHAT_MODEL for real ones")
