"""What is said when the two ways to the database are set wrongly."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.storage import embedded
from app.storage.database import opened_database
from tests import proxies
from tests.process import service

NOWHERE = "postgresql://chat@127.0.0.1:9/postgres"


@dataclass(frozen=True)
class Ways:
    pooled: str
    direct: str
    other: str


@pytest.fixture
async def ways(folder: Path) -> AsyncGenerator[Ways]:
    """To one database through PgBouncer and straight, and to another one of the server."""
    postgres = embedded.start(folder / "data")
    (folder / "pgbouncer").mkdir()
    async with (
        opened_database(postgres.url, pool_size=1) as database,
        database.statement() as driver,
    ):
        await driver.execute("CREATE DATABASE other")
    other = make_url(postgres.url).set(database="other").render_as_string(False)
    async with proxies.pgbouncer(folder / "pgbouncer", postgres.url) as bouncer:
        status, _, errors = await service.run("migrate", database_url=postgres.url)
        assert status == 0, errors
        yield Ways(bouncer.url, postgres.url, other)
    postgres.release()


async def told(**settings: object) -> str:
    """The one line with which the service does not start."""
    running = await service.launch(**settings)
    async with asyncio.timeout(30):
        status = await running.process.wait()
    await running.kill()
    assert status == 1
    (line,) = [entry["event"] for entry in running.log if entry["event"].startswith("chat-")]
    return line


async def test_a_pooler_that_is_not_named(ways: Ways) -> None:
    assert "set CHAT_DB_POOLER=transaction" in await told(database_url=ways.pooled)


async def test_a_direct_way_that_is_none(ways: Ways) -> None:
    line = await told(
        database_url=ways.pooled,
        database_direct_url=ways.pooled,
        chat_db_pooler="transaction",
    )
    assert "DATABASE_DIRECT_URL to lead past it" in line


async def test_a_direct_way_to_another_database(ways: Ways) -> None:
    line = await told(
        database_url=ways.pooled, database_direct_url=ways.other, chat_db_pooler="transaction"
    )
    assert "another database" in line


async def test_a_direct_way_that_is_away_costs_nothing_but_time(ways: Ways) -> None:
    """Nobody listens then, and the schema is there already."""
    running = await service.start(
        database_url=ways.pooled, database_direct_url=NOWHERE, chat_db_pooler="transaction"
    )
    async with asyncio.timeout(10):
        while (await running.client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.1)
    created = await running.client.post("/v1/conversations")
    assert created.status_code == 201
    assert running.events("direct_database_away")
    assert await running.terminate() == 0


async def test_keys_are_made_where_the_service_looks(ways: Ways) -> None:
    settings = {
        "database_url": ways.pooled,
        "database_direct_url": ways.direct,
        "chat_db_pooler": "transaction",
    }
    status, shown, errors = await service.run("keys", "create", "--user", "ada", **settings)
    assert status == 0, errors
    running = await service.start(**settings, chat_auth="keys")
    headers = {"Authorization": f"Bearer {shown.split()[0]}"}
    assert (await running.client.get("/v1/conversations", headers=headers)).status_code == 200
    assert await running.terminate() == 0
