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
from dataclasses import dataclass, field

from app.errors import ConfigurationError
from app.observability.logging import get_logger

logger = get_logger()

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Seconds that a process has to live to be replaced at once; else the pause doubles.
STEADY = 10.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class _Worker:
    """One of N places. `has_served`: one of the processes in it."""

    number: int
    process: Process | None = None
    has_served: bool = False
    pause: float = field(default=FIRST_PAUSE)


class Supervisor:
    def __init__(self, listener: socket.socket, workers: int) -> None:
        self._listener = listener
        self._workers = [_Worker(number) for number in range(1, workers + 1)]
        self._stopping = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, and until all have ended; returns the exit status.

        A second signal ends them without their grace. When none has ever served and one ends, all
        are stopped: a new one would end as well.
        """
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        async with asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(self._keep(worker))
        return self._status

    def _stop(self, number: signal.Signals) -> None:
        if not self._stopping.is_set():
            logger.info("stopping_workers", signal=number.name, workers=len(self._workers))
            # They have it too; what comes after them shall be refused, not wait for nobody.
            self._listener.close()
        self._stopping.set()
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.send_signal(number)

    async def _keep(self, worker: _Worker) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._run_one(worker)
            if self._stopping.is_set():
                return
            logger.error("worker_ended", worker=worker.number, status=status)
            if not any(each.has_served for each in self._workers):
                self._status = 1
                self._stop(signal.SIGTERM)
                return
            if time.monotonic() - began >= STEADY:
                worker.pause = FIRST_PAUSE
                continue
            await self._sleep(worker.pause)
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
        worker.has_served = bool(await reader.read(1)) or worker.has_served
        status = await worker.process.wait()
        writer.close()
        return status

    async def _sleep(self, seconds: float) -> None:
        await asyncio.wait([asyncio.ensure_future(self._stopping.wait())], timeout=seconds)


def require_connections(workers: int, pool: int, available: int) -> None:
    """Raises ConfigurationError when the embedded server has not enough for so many."""
    needed = workers * (pool + 1)
    if needed > available:
        raise ConfigurationError(
            f"{workers} workers with CHAT_DB_POOL={pool} need {needed} connections; the embedded "
            f"PostgreSQL has {available}: set CHAT_DB_POOL lower, or DATABASE_URL"
        )
