"""The database goes away and comes back: before the start, under requests, under streams."""

import asyncio
import re
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx
import pytest

from app.storage import embedded
from tests.postmasters import send_to_postmasters
from tests.process import service
from tests.process.service import RunningService
from tests.process.test_life import create, history, send
from tests.scripted_model import Gate, Hold, Reply, ScriptedModel
from tests.sse import Block, blocks, read, text_of

pytestmark = pytest.mark.process

GRACE = 2
# Seconds beyond the grace: stopping turns, the log, the lease, and what may be left to close.
STOPPING = 15


class Away:
    """A server of somebody else's, as the service sees it, that can be stopped and frozen."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: embedded.EmbeddedPostgres | None = None
        self.start()
        assert self._server is not None
        self.url = self._server.url

    def start(self) -> None:
        self._server = embedded.start(self._directory)

    def stop(self) -> None:
        if self._server is not None:
            self._server.release()
            self._server = None

    def freeze(self) -> None:
        send_to_postmasters(self._directory, signal.SIGSTOP)

    def thaw(self) -> None:
        send_to_postmasters(self._directory, signal.SIGCONT)


@pytest.fixture
def database() -> Generator[Away]:
    with tempfile.TemporaryDirectory(prefix="cw-away-") as name:
        path = Path(name)
        path.chmod(0o755)
        away = Away(path / "data")
        yield away
        away.thaw()
        away.stop()


@pytest.fixture
async def running(database: Away, model: ScriptedModel) -> AsyncGenerator[RunningService]:
    running = await launched(database, model)
    yield await running.serving()
    await running.kill()


async def launched(database: Away, model: ScriptedModel) -> RunningService:
    return await service.launch(
        database_url=database.url,
        chat_auto_migrate="on",
        chat_model="scripted",
        chat_model_base_url=model.base_url,
        chat_lease=10,
        chat_shutdown_grace=GRACE,
    )


async def until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(15):
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.1)


async def expect_away(client: httpx.AsyncClient, conversation: str = "nonsense") -> None:
    """Every question is answered in time, and says what is wrong."""
    began = time.monotonic()
    ready = await client.get("/health/ready")
    assert time.monotonic() - began < 2
    assert (ready.status_code, ready.json()["reason"]) == (503, "database_unavailable")
    assert (await client.get("/health/live")).status_code == 200
    path = f"/v1/conversations/{conversation}"
    began = time.monotonic()
    answers = await asyncio.gather(
        client.post("/v1/conversations"),
        client.get("/v1/conversations"),
        client.post(f"{path}/messages", json={"content": "lost"}),
        client.post(f"{path}/messages/stream", json={"content": "lost"}),
        *(client.get(f"{path}{suffix}") for suffix in ("", "/messages", "/turns", "/events")),
        client.patch(path, json={"title": "lost"}),
        client.post(f"{path}/cancel"),
        client.post(f"{path}/close"),
        client.delete(path),
    )
    assert time.monotonic() - began < 25
    for answer in answers:
        if conversation == "nonsense" and answer.status_code == 404:
            continue
        assert answer.status_code == 503, [answer.request.url, answer.text]
        # A send that had reached the server before it froze cannot know.
        sent = "messages" in answer.request.url.path and answer.request.method == "POST"
        codes = {"database_unavailable", *(["outcome_unknown"] if sent else ())}
        assert answer.json()["code"] in codes
        assert answer.headers["retry-after"] == "1"


async def test_a_service_that_starts_before_its_database_begins_when_it_comes(
    database: Away, model: ScriptedModel
) -> None:
    database.stop()
    running = await launched(database, model)
    await running.serving()
    await expect_away(running.client)

    database.start()
    await until_ready(running.client)
    conversation = await create(running.client)
    model.will_say("hello")
    answer = await send(running.client, conversation, "hi")

    assert answer.json()["output"] == "hello"
    assert running.events("database_away_at_start")
    assert await running.terminate() == 0


async def test_a_service_can_be_stopped_while_its_database_is_away(
    database: Away, model: ScriptedModel
) -> None:
    database.stop()
    running = await launched(database, model)
    await running.serving()

    assert await running.terminate() == 0


async def test_a_database_that_lets_us_not_in_is_one_line_and_no_service(database: Away) -> None:
    url = re.sub(r"///[^?]+", "///no_such_database", database.url)

    status, output, errors = await service.run("serve", database_url=url)

    assert (status, output) == (1, "")
    said = [line for line in errors.splitlines() if line.startswith("chat-workflow: ")]
    assert len(said) == 1
    assert "lets nobody in" in said[0]


async def test_while_it_is_away_everyone_is_told_so_and_then_all_goes_on(
    running: RunningService, database: Away, model: ScriptedModel
) -> None:
    conversation = await create(running.client)
    model.will_say("before")
    await send(running.client, conversation, "hi")

    database.stop()
    await expect_away(running.client, conversation)
    database.start()
    await until_ready(running.client)

    assert await history(running.client, conversation) == [("user", "hi"), ("assistant", "before")]
    model.will_say("after")
    assert (await _accepted(running.client, conversation)).json()["output"] == "after"
    assert "lost" not in model.texts


async def _accepted(client: httpx.AsyncClient, conversation: str) -> httpx.Response:
    """The lease is had again a moment after the database."""
    async with asyncio.timeout(15):
        while (answer := await send(client, conversation, "again")).status_code == 503:
            await asyncio.sleep(0.1)
    assert answer.status_code == 200, answer.text
    return answer


async def test_streams_and_turns_outlive_it_and_show_nothing_that_was_not_committed(
    database: Away, model: ScriptedModel
) -> None:
    running = await service.start(
        database_url=database.url,
        chat_auto_migrate="on",
        chat_model="scripted",
        chat_model_base_url=model.base_url,
        chat_heartbeat=0.5,
    )
    gate, end = Gate(), Gate()
    model.will_say("kept ", Hold(gate), "while away ", Hold(end), "to the end")
    conversation = await create(running.client)
    path = f"/v1/conversations/{conversation}"
    following = asyncio.ensure_future(read(running.client, "GET", f"{path}/events"))
    seen: list[Block] = []
    watching = asyncio.ensure_future(_watch(running.client, path, seen))
    await gate.reached()
    while not text_of(seen):
        await asyncio.sleep(0.05)

    database.stop()
    gate.open()
    await end.reached()
    await asyncio.sleep(1.5)
    shown = text_of(seen)
    database.start()
    await until_ready(running.client)
    end.open()
    await watching
    closing = await running.client.post(f"{path}/close")

    assert shown == "kept "
    assert text_of(seen) == "kept while away to the end"
    assert seen[-1].type == "turn.completed"
    assert closing.status_code == 200
    followed = await following
    assert [b.raw for b in followed if b.id is not None] == [block.raw for block in seen]
    replayed = await read(running.client, "GET", f"{path}/turns/{seen[0].data['turn_id']}/events")
    assert [block.raw for block in replayed] == [block.raw for block in seen]
    await running.kill()


async def _watch(client: httpx.AsyncClient, path: str, seen: list[Block]) -> None:
    async with client.stream("POST", f"{path}/messages/stream", json={"content": "hi"}) as answer:
        async for block in blocks(answer):
            seen.append(block)  # noqa: PERF401 - seen as it grows


async def test_a_frozen_database_holds_nobody_for_long(
    running: RunningService, database: Away, model: ScriptedModel
) -> None:
    # What was sent to it before it froze is done when it wakes: also a turn may begin, or a delete.
    model.will_always(Reply(["after"]))
    conversation, other = await create(running.client), await create(running.client)
    database.freeze()

    await expect_away(running.client, conversation)
    database.thaw()
    await until_ready(running.client)

    assert (await _accepted(running.client, other)).json()["output"] == "after"


async def test_a_shutdown_does_not_wait_for_a_frozen_database(
    database: Away, running: RunningService, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("half", Hold(gate))
    conversation = await create(running.client)
    sending = asyncio.ensure_future(send(running.client, conversation, "hi"))
    await gate.reached()
    database.freeze()
    began = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        await running.process.wait()
    took = time.monotonic() - began
    answer = await sending

    assert took < GRACE + STOPPING
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    assert answer.json()["turn_id"]
