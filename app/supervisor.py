"""`serve --workers N`: several processes on one port, each a service of its own.

They share the listening socket, so that no waiting connection is lost with one of them, and
PostgreSQL; whatever one leaves behind when it dies, the others go on with. This process serves
nothing: it replaces what ends and passes signals on.
"""

import asyncio
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass

from app.errors import ConfigurationError
from app.observability.logging import get_logger
from app.server import SIGNALS

logger = get_logger()

# Seconds that a process has to live to be replaced at once; else the pause doubles.
STEADY = 10.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
# Seconds beyond the grace, and after a second signal, that a worker has before it is killed.
LAST_LIMIT = 30.0
AT_ONCE = 10.0


@dataclass(slots=True)
class _Worker:
    """One of N places, and the process in it."""

    number: int
    process: Process | None = None
    pause: float = FIRST_PAUSE


class Supervisor:
    def __init__(self, listener: socket.socket, workers: int, *, grace: float) -> None:
        """`grace`: seconds that a worker takes to let its turns end."""
        self._listener = listener
        self._grace = grace
        self._workers = [_Worker(number) for number in range(1, workers + 1)]
        self._stopping = asyncio.Event()
        self._one_serves = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, and until all have ended; returns the exit status.

        A second signal ends them without their grace. The first worker starts alone: when it ends
        before it has served, the others would as well, and the status is 1.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        first, *others = self._workers
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(first))
            await self._one_serves.wait()
            for worker in others:
                group.create_task(self._keep(worker))
        return self._status

    def _stop(self, number: signal.Signals) -> None:
        limit = AT_ONCE if self._stopping.is_set() else self._grace + LAST_LIMIT
        if not self._stopping.is_set():
            logger.info("stopping_workers", signal=number.name, workers=len(self._workers))
        self._end()
        self._send(number)
        asyncio.get_running_loop().call_later(limit, self._kill)

    def _end(self) -> None:
        # The workers have the socket too; what comes after them shall be refused.
        self._listener.close()
        self._stopping.set()
        self._one_serves.set()

    def _kill(self) -> None:
        """One that is frozen does not hear anything else."""
        logger.error("killing_workers")
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.send_signal(number)

    async def _keep(self, worker: _Worker) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._run_one(worker)
            if self._stopping.is_set():
                return
            if not self._one_serves.is_set():
                self._status = 1
                self._end()
                return
            logger.error("worker_ended", worker=worker.number, status=status)
            if time.monotonic() - began >= STEADY:
                worker.pause = FIRST_PAUSE
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(worker.pause):
                    await self._stopping.wait()
            worker.pause = min(worker.pause * 2, LONGEST_PAUSE)

    async def _run_one(self, worker: _Worker) -> int:
        ours, theirs = socket.socketpair()
        fds = self._listener.fileno(), theirs.fileno()
        worker.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app", "serve"),
            *("--listener", str(fds[0]), "--lifeline", str(fds[1])),
            pass_fds=fds,
            # A terminal's Ctrl-C comes to this process only, which passes it on.
            start_new_session=True,
        )
        theirs.close()
        if self._stopping.is_set():
            worker.process.send_signal(signal.SIGTERM)
        reader, writer = await asyncio.open_connection(sock=ours)
        if await reader.read(1):
            self._one_serves.set()
        status = await worker.process.wait()
        writer.close()
        return status


def require_connections(workers: int, pool: int, available: int) -> None:
    """Raises ConfigurationError when the embedded server has not enough for so many."""
    needed = workers * (pool + 1)
    if needed > available:
        raise ConfigurationError(
            f"{workers} workers with CHAT_DB_POOL={pool} need {needed} connections; the embedded "
            f"PostgreSQL has {available}: set CHAT_DB_POOL lower, or DATABASE_URL"
        )
