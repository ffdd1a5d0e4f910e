"""Two real replicas with nginx before them and PgBouncer behind them, as deploy/ has it."""

import signal
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.storage import embedded
from tests import proxies
from tests.postmasters import send_to_postmasters
from tests.process import service
from tests.process.service import RunningService
from tests.proxies import PgBouncer
from tests.scripted_model import ScriptedModel


@pytest.fixture
def folder() -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="cw-proxy-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
        send_to_postmasters(path, signal.SIGKILL)


@dataclass
class Deployment:
    """`client` speaks to nginx."""

    replicas: list[RunningService]
    client: httpx.AsyncClient
    pgbouncer: PgBouncer
    direct_url: str
    settings: dict[str, object] = field(default_factory=dict[str, object])

    async def start_another(self, port: int) -> RunningService:
        """In the place of one that has ended."""
        running = await service.start(**{**self.settings, "chat_port": port})
        self.replicas.append(running)
        return running


@pytest.fixture
async def deployment(folder: Path, model: ScriptedModel) -> AsyncGenerator[Deployment]:
    postgres = embedded.start(folder / "data")
    async with AsyncExitStack() as stack:
        (folder / "pgbouncer").mkdir()
        bouncer = await stack.enter_async_context(
            proxies.pgbouncer(folder / "pgbouncer", postgres.url)
        )
        settings: dict[str, Any] = {
            "database_url": bouncer.url,
            "database_direct_url": postgres.url,
            "chat_db_pooler": "transaction",
            "chat_auto_migrate": "on",
            "chat_model": "scripted",
            "chat_model_base_url": model.base_url,
            "chat_lease": 2,
            "chat_tools": "tests.tools",
            "chat_trusted_proxies": "127.0.0.1",
            "chat_max_turns_per_process": 300,
            "chat_streams_per_caller": 10_000,
        }
        replicas = [await service.start(**settings) for _ in range(2)]
        (folder / "nginx").mkdir()
        ports = [running.client.base_url.port or 0 for running in replicas]
        url = await stack.enter_async_context(proxies.nginx(folder / "nginx", ports))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=60, limits=limits)
        )
        yield Deployment(replicas, client, bouncer, postgres.url, settings)
        for running in replicas:
            await running.kill()
    postgres.release()
