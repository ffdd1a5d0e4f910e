"""What clients see of two replicas behind nginx and PgBouncer, also when parts of it break."""

import asyncio
import signal
import time
from collections.abc import Sequence

import httpx
import pytest

from app.storage.database import opened_database
from tests.following import Following, last_attempt
from tests.process import service
from tests.process.test_life import create, send
from tests.proxy.conftest import Deployment
from tests.scripted_model import CallTool, Gate, Hold, Pause, Reply, ScriptedModel
from tests.sse import Block, blocks, read, text_of

STREAMS = 200
WORDS = 30
PACE = 0.2


def stream_path(conversation: str) -> str:
    return f"/v1/conversations/{conversation}/messages/stream"


async def test_every_event_passes_at_once(deployment: Deployment, model: ScriptedModel) -> None:
    """Each is read before the next one is made."""
    gates = [Gate() for _ in range(5)]
    model.will_say(*(step for n, gate in enumerate(gates) for step in (Hold(gate), f"word {n} ")))
    client, seen = deployment.client, list[Block]()
    conversation = await create(client)
    waiting = iter(gates)
    async with (
        asyncio.timeout(10),
        client.stream("POST", stream_path(conversation), json={"content": "hi"}) as answer,
    ):
        async for block in blocks(answer):
            seen.append(block)
            if block.type in ("turn.started", "text.delta") and (gate := next(waiting, None)):
                gate.open()

    assert len([block for block in seen if block.type == "text.delta"]) == len(gates)
    assert answer.headers["cache-control"] == "no-store"


async def test_both_replicas_are_used_and_one_conversation_spans_them(
    deployment: Deployment, model: ScriptedModel
) -> None:
    model.will_always(Reply(["fine"]))
    conversation = await create(deployment.client)
    for _ in range(10):
        answer = await send(deployment.client, conversation, "hi")
        assert answer.json()["status"] == "completed"

    begun = [len(running.events("turn_begun")) for running in deployment.replicas]
    assert sum(begun) == 10
    assert all(begun)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_200_streams_while_one_replica_goes(
    deployment: Deployment,
    model: ScriptedModel,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    """Every client resumes to the end; joined, its events are the log, byte for byte."""
    words = [f"word {n} " for n in range(WORDS)]
    model.will_always(Reply([step for word in words for step in (word, Pause(PACE))]))
    client = deployment.client
    conversations = [await create(client) for _ in range(STREAMS)]
    followers = [Following(lambda: [client], each, "hi", f"key-{each}") for each in conversations]
    watching = [asyncio.ensure_future(each.to_the_end(120)) for each in followers]
    async with asyncio.timeout(60):
        while not all(len(each.found) > 2 for each in followers):
            await asyncio.sleep(0.05)
    first = deployment.replicas[0]
    began = time.monotonic()
    first.process.send_signal(number)

    await asyncio.gather(*watching)

    took = time.monotonic() - began
    wrong = 0
    for follower in followers:
        path = f"/v1/conversations/{follower.conversation}/turns"
        turn = follower.found[0].data["turn_id"]
        logged = await read(client, "GET", f"{path}/{turn}/events")
        wrong += [block.raw for block in logged] != [block.raw for block in follower.found]
        assert text_of(list(last_attempt(follower.found))) == "".join(words)
        assert len((await client.get(path)).json()["data"]) == 1
    restarted = sum(any(b.type == "turn.restarted" for b in each.found) for each in followers)
    with capsys.disabled():
        cuts = sum(each.cuts for each in followers)
        print(  # noqa: T201 - the figures
            f"\n{STREAMS} streams, one of two replicas {number.name}: all ended {took:.1f} s after, "
            f"{restarted} turns begun again, {cuts} streams cut, {wrong} clients with wrong bytes"
        )
    assert wrong == 0
    async with asyncio.timeout(30):
        assert await first.process.wait() == (-number if number is signal.SIGKILL else 0)


async def test_resumed_through_nginx_after_every_event_of_a_turn_with_tools(
    deployment: Deployment, model: ScriptedModel
) -> None:
    model.will_say("Let me ", "look. ", CallTool("c1", "echo", '{"text": "x"}'))
    model.will_say("Here ", "it is.")
    client = deployment.client
    whole = await read(client, "POST", stream_path(await create(client)), json={"content": "hi"})
    names = whole[0].data
    path = f"/v1/conversations/{names['conversation_id']}/turns/{names['turn_id']}/events"

    for place, block in enumerate(whole[:-1], 1):
        for _ in range(2):  # once at each replica
            rest = await read(client, "GET", path, headers={"Last-Event-ID": block.id or ""})
            assert [each.raw for each in rest] == [each.raw for each in whole[place:]]


async def test_no_replica_is_a_problem_that_says_so_and_goes_away(
    deployment: Deployment, model: ScriptedModel
) -> None:
    client = deployment.client
    conversation = await create(client)
    ports = [running.client.base_url.port or 0 for running in deployment.replicas]
    for running in deployment.replicas:
        await running.kill()

    answers = await client.get("/v1/conversations"), await send(client, conversation, "hi")
    assert [answer.json()["retryable"] for answer in answers] == [True, False]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "no_replica")
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["retry-after"] == "1"

    await deployment.start_another(ports[0])
    async with asyncio.timeout(20):
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.2)
    model.will_say("back")
    assert (await send(client, conversation, "hi")).json()["output"] == "back"


async def test_a_client_that_leaves_nginx_leaves_the_replica_too(
    deployment: Deployment, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a ", Hold(gate), "b")
    client = deployment.client
    conversation = await create(client)
    await read(client, "POST", stream_path(conversation), json={"content": "hi"}, stop_after=2)
    turn = (await client.get(f"/v1/conversations/{conversation}/turns")).json()["data"][0]
    assert turn["status"] == "running"
    gate.open()
    async with asyncio.timeout(10):
        while not any(running.events("turn_ended") for running in deployment.replicas):
            await asyncio.sleep(0.05)
    kept = await read(client, "GET", turn["links"]["events"])
    assert text_of(kept) == "a b"


async def test_pgbouncer_restarts_in_the_middle_of_turns(
    deployment: Deployment, model: ScriptedModel
) -> None:
    """The log waits for it; nothing is lost, shown twice or out of order."""
    words = [f"word {n} " for n in range(40)]
    model.will_always(Reply([step for word in words for step in (word, Pause(0.1))]))
    client = deployment.client
    conversations = [await create(client) for _ in range(10)]
    followers = [Following(lambda: [client], each, "hi", f"key-{each}") for each in conversations]
    watching = [asyncio.ensure_future(each.to_the_end(60)) for each in followers]
    while not all(len(each.found) > 2 for each in followers):
        await asyncio.sleep(0.05)

    await deployment.pgbouncer.restart(pause=0.5)

    await asyncio.gather(*watching)
    for follower in followers:
        turn = follower.found[0].data["turn_id"]
        path = f"/v1/conversations/{follower.conversation}/turns/{turn}/events"
        logged = await read(client, "GET", path)
        assert [block.raw for block in logged] == [block.raw for block in follower.found]
        assert text_of(list(last_attempt(follower.found))) == "".join(words)


async def test_commands_work_beside_pgbouncer(deployment: Deployment) -> None:
    for command in (("migrate",), ("keys", "create", "--user", "ada"), ("keys", "list")):
        status, _, errors = await service.run(*command, **deployment.settings)
        assert status == 0, errors


async def test_postgresql_sees_as_many_connections_as_is_said(
    deployment: Deployment, model: ScriptedModel
) -> None:
    """Under load: PgBouncer's pool, and one of each process that listens."""
    model.will_always(Reply([step for n in range(20) for step in (f"{n} ", Pause(0.05))]))
    client = deployment.client
    conversations = [await create(client) for _ in range(40)]
    turns = [
        asyncio.ensure_future(read(client, "POST", stream_path(each), json={"content": "hi"}))
        for each in conversations
    ]
    most = 0
    async with (
        opened_database(deployment.direct_url, pool_size=1) as database,
        database.statement() as driver,
    ):
        while not all(each.done() for each in turns):
            counted = await driver.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
                "AND pid <> pg_backend_pid()"
            )
            most = max(most, counted)
            await asyncio.sleep(0.05)
        listening: Sequence[httpx.Response] = await driver.fetch(
            "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT 1' OR query LIKE 'LISTEN%'"
        )

    assert most <= 20 + len(deployment.replicas)
    assert len(listening) == len(deployment.replicas)
