"""One PostgreSQL, one database and one service for all tests; every test cleans up by DELETE."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import hypothesis
import pytest
from pydantic import SecretStr

from app.bootstrap import Service, running_service
from app.observability.logging import configure_logging
from app.server import Server, listen, uvicorn_config
from app.settings import Settings
from app.storage import embedded
from app.storage.database import Database
from app.storage.tables import metadata
from tests import proxies
from tests.replicas import pair, url_of
from tests.scripted_model import ScriptedModel

TOOLS = "tests.tools"

hypothesis.settings.register_profile("whole", max_examples=1000)
# The state machine runs some hundred statements for each example.
hypothesis.settings.register_profile("long", max_examples=400)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--through-proxies",
        action="store_true",
        help="each request through nginx to one of two replicas, and their statements through PgBouncer",
    )


@pytest.fixture(scope="session")
def through_proxies(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--through-proxies"))


@pytest.fixture(scope="session", autouse=True)
def _logging() -> None:
    configure_logging(level="warning", as_json=True)


@pytest.fixture(scope="session")
def programs() -> Path | None:
    """PG_BINDIR names another PostgreSQL's programs than the wheel's, e.g. version 15."""
    given = os.environ.get("PG_BINDIR")  # noqa: TID251 - a test run's own setting
    return Path(given) if given else None


@pytest.fixture(scope="session")
def data_directory() -> Generator[Path]:
    """Where an account without privileges can reach it, which pytest's own folders are not."""
    directory = Path(tempfile.mkdtemp(prefix="chat-workflow-tests-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def direct_url(data_directory: Path, programs: Path | None) -> Generator[str]:
    postgres = embedded.start(data_directory, programs)
    yield postgres.url
    postgres.release()


@pytest.fixture(scope="session")
async def postgres_url(
    direct_url: str, data_directory: Path, through_proxies: bool
) -> AsyncGenerator[str]:
    """What services are given: the server, or PgBouncer before it."""
    if not through_proxies:
        yield direct_url
        return
    (data_directory / "pgbouncer").mkdir()
    async with proxies.pgbouncer(data_directory / "pgbouncer", direct_url) as bouncer:
        yield bouncer.url


@pytest.fixture(scope="session")
async def _model() -> AsyncGenerator[ScriptedModel]:
    async with ScriptedModel().serving() as model:
        yield model


@pytest.fixture
def model(_model: ScriptedModel) -> Generator[ScriptedModel]:
    yield _model
    _model.forget()


@pytest.fixture(scope="session")
def settings(
    postgres_url: str, direct_url: str, _model: ScriptedModel, through_proxies: bool
) -> Settings:
    return Settings(
        database_url=SecretStr(postgres_url),
        database_direct_url=SecretStr(direct_url),
        chat_db_pooler="transaction" if through_proxies else "none",
        chat_trusted_proxies="127.0.0.1" if through_proxies else None,
        chat_auto_migrate=True,
        chat_db_pool=5,
        chat_max_turns_per_process=1000,
        chat_model="scripted",
        chat_model_base_url=_model.base_url,
        chat_model_retries=0,
        chat_tools=TOOLS,
        chat_instructions="Be brief.",
        chat_log_level="warning",
    )


@pytest.fixture(scope="session")
async def _service(
    settings: Settings, postgres_url: str, data_directory: Path, through_proxies: bool
) -> AsyncGenerator[Service]:
    async with _started(settings, postgres_url, data_directory, through_proxies) as service:
        yield service


@asynccontextmanager
async def _started(
    settings: Settings, postgres_url: str, data_directory: Path, through_proxies: bool
) -> AsyncGenerator[Service]:
    """One service; or two that look like one, behind nginx."""
    if not through_proxies:
        async with running_service(settings, postgres_url) as service:
            yield service
        return
    async with (
        running_service(settings, postgres_url) as first,
        running_service(settings, postgres_url) as second,
        on_a_socket(first, settings) as url,
        on_a_socket(second, settings) as other_url,
    ):
        ports = [httpx.URL(each).port or 0 for each in (url, other_url)]
        directory = Path(tempfile.mkdtemp(dir=data_directory))
        directory.chmod(0o755)
        async with proxies.nginx(directory, ports) as front:
            yield pair(first, second, front)


@pytest.fixture
async def service(_service: Service) -> AsyncGenerator[Service]:
    yield _service
    await _service.engine.stop_all()
    await delete_all(_service.database)


@pytest.fixture
async def client(service: Service, model: ScriptedModel) -> AsyncGenerator[httpx.AsyncClient]:
    """Straight into the application, without a socket."""
    async with client_of(service) as client:
        yield client


@pytest.fixture(scope="module")
async def keyed(
    settings: Settings, postgres_url: str, data_directory: Path, through_proxies: bool
) -> AsyncGenerator[Service]:
    """A service that asks for keys."""
    with_keys = settings.model_copy(update={"chat_auth": "keys"})
    async with _started(with_keys, postgres_url, data_directory, through_proxies) as service:
        yield service
        await service.engine.stop_all()
        await delete_all(service.database)


@pytest.fixture(scope="session")
async def _url(_service: Service, settings: Settings) -> AsyncGenerator[str]:
    """The service on a socket: streams come as they are made only over a real connection."""
    if (front := url_of(_service)) is not None:
        yield front
        return
    async with on_a_socket(_service, settings) as url:
        yield url


@pytest.fixture
async def live(
    _url: str, service: Service, model: ScriptedModel
) -> AsyncGenerator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(base_url=_url, timeout=20, limits=limits) as client:
        yield client


@asynccontextmanager
async def on_a_socket(service: Service, settings: Settings) -> AsyncGenerator[str]:
    """Streams come as they are made only over a real connection. Yields the service's URL."""
    server = Server(uvicorn_config(service))
    listener = listen(settings.model_copy(update={"chat_port": 0}))
    serving = asyncio.ensure_future(server.serve([listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await serving


def client_of(service: Service, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    if (front := url_of(service)) is not None:
        # Not every test closes its client: no connection is kept.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=front, timeout=20, limits=limits, headers=headers)
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    return httpx.AsyncClient(
        transport=transport, base_url="http://localhost", timeout=20, headers=headers
    )


async def delete_all(database: Database) -> None:
    """Every table but the workers, whose rows belong to the running service."""
    async with database.transaction() as transaction:
        for table in reversed(metadata.sorted_tables):
            if table.name != "workers":
                await transaction.execute(table.delete())
