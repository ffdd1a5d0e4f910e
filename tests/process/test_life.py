"""Start, stop, kill and start again, with the real command and real signals."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.settings import Settings
from app.storage.database import opened_database
from tests.postmasters import send_to_postmasters
from tests.process import service
from tests.process.conftest import Starter
from tests.process.service import RunningService
from tests.scripted_model import Gate, Hold, Reply, ScriptedModel

pytestmark = pytest.mark.process


async def create(client: httpx.AsyncClient) -> str:
    return (await client.post("/v1/conversations")).json()["id"]


async def send(client: httpx.AsyncClient, conversation: str, content: str) -> httpx.Response:
    return await client.post(
        f"/v1/conversations/{conversation}/messages", json={"content": content}
    )


async def history(client: httpx.AsyncClient, conversation: str) -> list[Any]:
    response = await client.get(f"/v1/conversations/{conversation}/messages")
    return [(m["role"], m["content"]) for m in response.json()["data"]]


async def test_a_service_without_any_configuration_remembers_over_a_restart(
    directory: Path,
) -> None:
    first = await service.start(chat_data_dir=directory)
    ready = (await first.client.get("/health/ready")).json()
    conversation = await create(first.client)
    await send(first.client, conversation, "My name is Ada.")
    assert await first.terminate() == 0
    assert ready == {"status": "ready", "model": "demo", "reason": None}
    assert first.events("demo_model")

    second = await service.start(chat_data_dir=directory)
    answer = await send(second.client, conversation, "What is my name?")
    assert await second.terminate() == 0

    assert answer.json()["output"] == "Your name is Ada."


async def test_a_turn_of_a_killed_process_goes_on_and_so_does_the_conversation(
    started: Starter, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("half", Hold(gate))
    first = await started(chat_lease=12)
    conversation = await create(first.client)
    sending = asyncio.ensure_future(send(first.client, conversation, "hi"))
    await gate.reached()
    await first.kill()
    await asyncio.wait([sending])

    second = await started(chat_lease=12)
    at_once = await send(second.client, conversation, "too early")
    later = await _until_accepted(second.client, conversation)

    assert at_once.status_code == 409
    assert at_once.json()["code"] == "turn_in_progress"
    assert later.status_code == 200
    turns = (await second.client.get(f"/v1/conversations/{conversation}/turns")).json()["data"]
    assert [(turn["status"], turn["attempt"]) for turn in turns] == [
        ("completed", 1),
        ("completed", 2),
    ]
    assert (await history(second.client, conversation))[0] == ("user", "hi")
    assert "too early" not in model.texts


async def _until_accepted(client: httpx.AsyncClient, conversation: str) -> httpx.Response:
    async with asyncio.timeout(30):
        while (response := await send(client, conversation, "again")).status_code == 409:
            await asyncio.sleep(0.2)
    return response


async def test_a_kill_of_service_and_database_loses_no_answer(
    started: Starter, directory: Path, model: ScriptedModel
) -> None:
    model.will_say("kept")
    first = await started()
    conversation = await create(first.client)
    await send(first.client, conversation, "hi")
    send_to_postmasters(directory, signal.SIGKILL)
    await first.kill()

    second = await started()

    assert await history(second.client, conversation) == [("user", "hi"), ("assistant", "kept")]


async def test_on_sigterm_running_turns_may_end(started: Starter, model: ScriptedModel) -> None:
    gate = Gate()
    model.will_say("all ", Hold(gate), "of it")
    running = await started(chat_shutdown_grace=20)
    conversation = await create(running.client)
    sending = asyncio.ensure_future(send(running.client, conversation, "hi"))
    await gate.reached()

    stopping = asyncio.ensure_future(running.terminate())
    await _until_draining(running)
    refused = await send(running.client, conversation, "late")
    gate.open()
    answer = await sending

    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert answer.json()["output"] == "all of it"
    assert await stopping == 0


async def _until_draining(running: RunningService) -> None:
    async with asyncio.timeout(10):
        while (await running.client.get("/health/ready")).status_code != 503:
            await asyncio.sleep(0.02)


async def test_what_does_not_end_within_the_grace_is_told_and_goes_on_at_the_next_start(
    started: Starter, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("half", Hold(gate))
    first = await started(chat_shutdown_grace=0.5)
    conversation = await create(first.client)
    sending = asyncio.ensure_future(send(first.client, conversation, "hi"))
    await gate.reached()
    began = time.monotonic()
    assert await first.terminate() == 0
    answer = await sending

    assert time.monotonic() - began < 8
    assert (answer.status_code, answer.json()["code"]) == (503, "draining")
    turn_id = answer.json()["turn_id"]

    second = await started(chat_lease=60)
    async with asyncio.timeout(10):
        path = f"/v1/conversations/{conversation}/turns/{turn_id}"
        while (turn := (await second.client.get(path)).json())["status"] == "running":
            await asyncio.sleep(0.1)
    assert (turn["status"], turn["attempt"]) == ("completed", 2)


async def test_a_second_signal_does_not_wait(started: Starter, model: ScriptedModel) -> None:
    gate = Gate()
    model.will_always(Reply([Hold(gate)]))
    running = await started(chat_shutdown_grace=600)
    conversation = await create(running.client)
    sending = asyncio.ensure_future(send(running.client, conversation, "hi"))
    await gate.reached()
    running.process.send_signal(signal.SIGINT)
    await _until_draining(running)
    began = time.monotonic()

    await running.send_signal(signal.SIGINT)

    assert time.monotonic() - began < 10
    sending.cancel()
    await asyncio.wait([sending])


async def test_two_services_share_one_embedded_server(
    started: Starter, model: ScriptedModel
) -> None:
    model.will_say("one")
    first, second = await started(), await started()
    conversation = await create(first.client)

    await send(second.client, conversation, "hi")
    await first.kill()

    assert await history(second.client, conversation) == [("user", "hi"), ("assistant", "one")]


async def test_time_zones_of_service_and_database_do_not_matter(
    postgres_url: str, model: ScriptedModel, started: Starter
) -> None:
    async with opened_database(postgres_url, pool_size=1) as server, server.statement() as driver:
        await driver.execute("ALTER ROLE chat SET timezone = 'America/St_Johns'")
    running = await started(tz="Asia/Kolkata", database_url=postgres_url, chat_auto_migrate="on")
    conversation = await create(running.client)
    turn = (await send(running.client, conversation, "hi")).json()
    document = (await running.client.get(f"/v1/conversations/{conversation}")).json()

    for moment in (document["created_at"], document["updated_at"], turn["completed_at"]):
        assert moment.endswith("Z")
        assert moment[:13] == time.strftime("%Y-%m-%dT%H", time.gmtime())


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"chat_nonsense": "1"}, "unknown setting CHAT_NONSENSE"),
        ({"chat_host": "0.0.0.0"}, "set CHAT_AUTH=keys"),  # noqa: S104 - that is the point
        ({"chat_model": "nonsense"}, "CHAT_MODEL='nonsense'"),
        ({"chat_model": "openai:gpt-5"}, "CHAT_MODEL='openai:gpt-5'"),
        ({"chat_tools": "no_such_module"}, "CHAT_TOOLS: cannot import 'no_such_module'"),
        ({"chat_tools": "tests.broken_tools"}, "raises ZeroDivisionError on import"),
        ({"database_url": "mysql://h/d"}, "not a postgresql:// URL"),
        ({"database_url": "postgresql://h:abc/d"}, "DATABASE_URL is not a URL"),
        ({"database_url": "postgresql://h/d?what=1"}, "unknown parameter 'what'"),
        ({"database_url": "postgresql://h/d?port=abc"}, "DATABASE_URL has a port that is none"),
        ({"database_url": f"postgresql://{'a' * 300}/d"}, "DATABASE_URL has a host that is none"),
        ({"database_url": "postgresql://127.0.0.1:9/d?sslmode=x"}, "lets nobody in"),
        ({"chat_model": "m", "chat_model_base_url": "http://[::1"}, "a base URL is like"),
        ({"chat_model": "openai-chat:gpt-5", "openai_api_key": ""}, "CHAT_MODEL='openai-chat:"),
        ({"chat_data_dir": "~no-such-user/x"}, "cannot use"),
        ({"chat_data_dir": "/dev/null/x"}, "cannot use"),
    ],
)
async def test_a_start_that_cannot_be_is_one_line(
    directory: Path, settings: dict[str, object], line: str
) -> None:
    status, output, errors = await service.run("serve", **{"chat_data_dir": directory, **settings})

    assert status == 1
    assert output == ""
    said = [each for each in errors.splitlines() if each.startswith("chat-workflow: ")]
    assert len(said) == 1
    assert line in said[0]
    assert "Traceback" not in errors


async def test_keys_are_made_listed_and_revoked(directory: Path) -> None:
    settings = {"chat_data_dir": directory}
    status, output, _ = await service.run(
        "keys", "create", "--user", "ada", "--scope", "conversations:read:any", **settings
    )
    token = output.split()[0]
    assert status == 0
    assert token.startswith("cw_")

    running = await service.start(chat_auth="keys", **settings)
    headers = {"Authorization": f"Bearer {token}"}
    assert (await running.client.get("/v1/conversations", headers=headers)).status_code == 200
    _, listed, _ = await service.run("keys", "list", **settings)
    key_id = listed.split()[0]
    assert "ada" in listed
    assert "conversations:read:any" in listed
    assert token not in listed
    status, _, _ = await service.run("keys", "revoke", key_id, **settings)
    assert status == 0
    assert (await running.client.get("/v1/conversations", headers=headers)).status_code == 401
    assert await running.terminate() == 0

    status, _, errors = await service.run("keys", "revoke", key_id, **settings)
    assert status != 0
    assert "no such key" in errors
    status, _, errors = await service.run(
        "keys", "create", "--user", "ada", "--scope", "all", **settings
    )
    assert status != 0
    assert "unknown scope" in errors


async def test_a_schema_that_is_behind_is_refused_until_it_is_migrated(postgres_url: str) -> None:
    async with opened_database(postgres_url, pool_size=1) as server:
        async with server.connection() as connection:
            await connection.execute(text("CREATE DATABASE behind"))
        url = server.url.set(database="behind").render_as_string(hide_password=False)

    status, _, errors = await service.run("serve", database_url=url)
    assert status == 1
    assert "run 'chat-workflow migrate'" in errors

    assert (await service.run("migrate", database_url=url))[0] == 0
    assert (await service.run("migrate", database_url=url))[0] == 0
    running = await service.start(database_url=url)
    assert (await running.client.get("/health/ready")).status_code == 200
    assert await running.terminate() == 0


async def test_help_lists_every_setting() -> None:
    status, output, _ = await service.run("serve", "--help")

    assert status == 0
    for name in Settings.model_fields:
        assert name.upper() in output


@pytest.mark.parametrize("declared", [True, False])
async def test_a_large_body_is_refused_before_it_is_read_whole(
    started: Starter, declared: bool
) -> None:
    running = await started(chat_max_body=100_000)
    conversation = await create(running.client)
    url = running.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    length = b"Content-Length: 60000000" if declared else b"Transfer-Encoding: chunked"
    head = f"POST /v1/conversations/{conversation}/messages HTTP/1.1\r\nHost: localhost\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n" + length + b"\r\n\r\n")
    if not declared:
        writer.write(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")

    async with asyncio.timeout(5):
        answer = await reader.readuntil(b"\r\n\r\n")
        rest = await reader.read()

    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    assert json.loads(rest)["code"] == "body_too_large"
    writer.close()


async def test_a_client_that_sends_60_mb_sees_the_answer(started: Starter) -> None:
    running = await started()
    conversation = await create(running.client)

    answer = await send(running.client, conversation, "x" * 60_000_000)

    assert answer.status_code == 413
    assert (await send(running.client, conversation, "fine")).status_code == 200


async def test_an_embedded_server_that_dies_is_started_again_and_a_turn_survives_it(
    started: Starter, directory: Path, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("kept ", Hold(gate), "whole")
    running = await started(chat_lease=15)
    conversation = await create(running.client)
    sending = asyncio.ensure_future(send(running.client, conversation, "hi"))
    await gate.reached()
    send_to_postmasters(directory, signal.SIGKILL)
    gate.open()

    answer = await sending

    assert answer.status_code == 200, [running.log[-20:], answer.text]
    assert answer.json()["output"] == "kept whole"
    assert await history(running.client, conversation) == [
        ("user", "hi"),
        ("assistant", "kept whole"),
    ]


async def test_while_the_database_is_away_requests_are_told_so_and_it_comes_back(
    started: Starter, directory: Path
) -> None:
    running = await started()
    conversation = await create(running.client)
    send_to_postmasters(directory, signal.SIGKILL)

    statuses = set[int]()
    async with asyncio.timeout(20):
        while 200 not in statuses or 503 not in statuses:
            answer = await running.client.get(f"/v1/conversations/{conversation}")
            statuses.add(answer.status_code)
            if answer.status_code == 503:
                assert answer.json()["code"] == "database_unavailable"

    assert statuses == {200, 503}
    # Its right to run turns may have run out meanwhile: it takes a new one at once.
    async with asyncio.timeout(2):
        while (await running.client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.05)
