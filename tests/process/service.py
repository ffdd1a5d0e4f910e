"""The real service in a process of its own, as a user starts it."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

COMMAND = Path(sys.executable).parent / "chat-workflow"


class RunningService:
    """`log` holds the lines it has written, parsed."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self._served = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())
        self.client = httpx.AsyncClient()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            entry = json.loads(line) if line.startswith(b"{") else {"event": line.decode()}
            self.log.append(entry)
            # Each of several workers says so, and all have the one address.
            if entry["event"] == "serving" and not self._served.is_set():
                self.client = httpx.AsyncClient(base_url=entry["url"], timeout=30)
                self._served.set()
        self._served.set()

    async def serving(self) -> "RunningService":
        async with asyncio.timeout(30):
            await self._served.wait()
        assert self.process.returncode is None, self.log
        return self

    def events(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log if entry["event"] == name]

    async def kill(self) -> None:
        await self.send_signal(signal.SIGKILL)

    async def terminate(self) -> int:
        return await self.send_signal(signal.SIGTERM)

    async def send_signal(self, number: signal.Signals) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(30):
            status = await self.process.wait()
            await self._reading
        await self.client.aclose()
        return status


async def start(**settings: object) -> RunningService:
    return await (await launch(**settings)).serving()


async def launch(*arguments: str, **settings: object) -> RunningService:
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "serve", *arguments),
        env=environment(**settings),
        stderr=PIPE,
        start_new_session=True,
    )
    return RunningService(process)


async def run(*arguments: str, **settings: object) -> tuple[int, str, str]:
    """A command to its end: status, output, errors."""
    process = await asyncio.create_subprocess_exec(
        COMMAND, *arguments, env=environment(**settings), stdout=PIPE, stderr=PIPE
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


def environment(**settings: object) -> Mapping[str, str]:
    """Nothing of the tests' own environment but what a program needs to run."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}  # noqa: TID251 - see above
    defaults = {"CHAT_PORT": "0", "CHAT_LOG_FORMAT": "json"}
    given = {name.upper(): str(value) for name, value in settings.items()}
    return {**kept, **defaults, **given}
