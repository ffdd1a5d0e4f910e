"""Two services on one database, where the tests know one: each request may come to either."""

import asyncio
from typing import Any, cast

from app.bootstrap import Service
from app.ids import TurnId


class _Engines:
    def __init__(self, services: tuple[Service, Service]) -> None:
        self._engines = [service.engine for service in services]

    @property
    def held(self) -> frozenset[TurnId]:
        return self._engines[0].held | self._engines[1].held

    async def wait(self, turn_id: TurnId, limit: float) -> None:
        await asyncio.gather(*(engine.wait(turn_id, limit) for engine in self._engines))

    async def stop(self, turn_id: TurnId, limit: float) -> None:
        await asyncio.gather(*(engine.stop(turn_id, limit) for engine in self._engines))

    async def stop_all(self) -> None:
        await asyncio.gather(*(engine.stop_all() for engine in self._engines))


class _Watches:
    def __init__(self, services: tuple[Service, Service]) -> None:
        self._watches = [service.conversation_watch for service in services]

    @property
    def streams(self) -> int:
        return sum(watch.streams for watch in self._watches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watches[0], name)


class _Pair:
    """Of what runs in both, both; of what is the same in both, the first's."""

    def __init__(self, first: Service, second: Service, url: str) -> None:
        self._first = first
        self.url = url
        self.engine = _Engines((first, second))
        self.conversation_watch = _Watches((first, second))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)


def pair(first: Service, second: Service, url: str) -> Service:
    """`url` leads to either of them."""
    return cast("Service", _Pair(first, second, url))


def url_of(service: Service) -> str | None:
    """Where a pair is reached; None: it is one service."""
    return getattr(service, "url", None)
