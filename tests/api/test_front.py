"""What stands before the routes: methods, origins, base path, proxies, headers of every answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest

from app.bootstrap import Service, running_service
from app.observability.logging import configure_logging
from app.settings import Settings
from tests.api.test_conversations import create
from tests.api.test_messages import send
from tests.api.test_streams import stream
from tests.conftest import client_of, delete_all
from tests.scripted_model import Reply, ScriptedModel

PAGE = "https://chat.example"


@asynccontextmanager
async def configured(settings: Settings, url: str, **changes: object) -> AsyncGenerator[Service]:
    async with running_service(settings.model_copy(update=changes), url) as service:
        yield service
        await delete_all(service.database)


async def test_every_get_has_a_head(client: httpx.AsyncClient) -> None:
    conversation = await create(client)
    turn = (await send(client, conversation, "hi")).json()["id"]
    path = f"/v1/conversations/{conversation}"

    for suffix in ("", "/messages", "/turns", f"/turns/{turn}", "/messages?limit=1"):
        head, got = await client.head(path + suffix), await client.get(path + suffix)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers.get("etag") == got.headers.get("etag")
        assert head.headers["content-length"] == str(len(got.content))
    for other in ("/health/live", "/health/ready", "/v1/conversations"):
        assert (await client.head(other)).status_code == 200
    assert (await client.head("/v1/conversations/nonsense")).status_code == 404
    etag = (await client.get(path)).headers["etag"]
    assert (await client.head(path, headers={"If-None-Match": etag})).status_code == 304


@pytest.mark.parametrize("suffix", ["/events", "/turns/{}/events"])
async def test_a_head_of_a_stream_ends_at_once(
    live: httpx.AsyncClient, service: Service, suffix: str
) -> None:
    conversation = await create(live)
    turn = (await send(live, conversation, "hi")).json()["id"]

    answer = await live.head(f"/v1/conversations/{conversation}{suffix.format(turn)}")

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    async with asyncio.timeout(2):
        while service.conversation_watch.streams:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/conversations", "GET, HEAD, POST"),
        ("/v1/conversations/x", "DELETE, GET, HEAD, PATCH"),
        ("/v1/conversations/x/messages", "GET, HEAD, POST"),
        ("/v1/conversations/x/messages/stream", "POST"),
        ("/v1/conversations/x/close", "POST"),
        ("/health/live", "GET, HEAD"),
    ],
)
async def test_another_method_is_told_which_there_are(
    client: httpx.AsyncClient, path: str, allowed: str, through_proxies: bool
) -> None:
    # nginx refuses TRACE by itself.
    for method in ("PUT", "OPTIONS", *(() if through_proxies else ("TRACE",))):
        answer = await client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
        assert answer.headers["allow"] == allowed


async def test_every_answer_says_what_a_browser_may_do_with_it(
    client: httpx.AsyncClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    conversation = await create(client)
    answers = [
        await client.get("/health/live"),
        await client.get(f"/v1/conversations/{conversation}"),
        await client.get("/nowhere"),
        await client.post("/v1/conversations", content=b"{"),
    ]
    monkeypatch.setattr(type(service.runner), "get", broken)
    answers.append(await client.get(f"/v1/conversations/{conversation}"))

    assert [answer.status_code for answer in answers] == [200, 200, 404, 415, 500]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-request-id"]
    assert [answer.headers["cache-control"] for answer in answers] == [
        *("no-store", "private, no-cache", "no-store", "no-store", "no-store")
    ]


async def test_pages_of_the_listed_origins_may_call_and_read_all(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    async with configured(settings, postgres_url, chat_cors_origins=PAGE) as service:
        page = client_of(service, {"Origin": PAGE})
        preflight = await page.options(
            "/v1/conversations",
            headers={
                "Access-Control-Request-Method": "PATCH",
                "Access-Control-Request-Headers": "authorization, idempotency-key, last-event-id",
            },
        )
        conversation = await create(page)
        model.will_say("streamed")
        streamed = await page.post(
            f"/v1/conversations/{conversation}/messages/stream", json={"content": "hi"}
        )
        answers = [streamed, await page.get("/v1/conversations/nonsense"), await page.get("/x")]
        elsewhere = client_of(service, {"Origin": "https://evil.example"})
        foreign = await elsewhere.get("/v1/conversations")

    assert preflight.status_code == 200
    assert "PATCH" in preflight.headers["access-control-allow-methods"]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    for answer in (preflight, *answers):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["vary"].startswith("Origin")
    for answer in answers:
        exposed = answer.headers["access-control-expose-headers"]
        assert {"ETag", "Location", "Link", "RateLimit", "Retry-After", "X-Turn-ID"} <= set(
            exposed.split(", ")
        )
    assert foreign.status_code == 403
    assert "access-control-allow-origin" not in foreign.headers


async def test_without_origins_no_page_elsewhere_may_read(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/conversations", headers={"Origin": "http://localhost:3000"})

    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


async def test_below_a_base_path_all_links_lead_back(
    settings: Settings, postgres_url: str, model: ScriptedModel
) -> None:
    async with configured(settings, postgres_url, chat_root_path="/ai/chat") as service:
        client = client_of(service)
        created = await client.post("/ai/chat/v1/conversations")
        place = created.headers["location"]
        assert place.startswith("/ai/chat/v1/conversations/")
        turn = (await client.post(f"{place}/messages", json={"content": "hi"})).json()
        assert turn["links"]["self"] == f"{place}/turns/{turn['id']}"
        assert (await client.get(turn["links"]["self"])).json() == turn
        events = await client.get(turn["links"]["events"])
        assert f'"links":{{"self":"{turn["links"]["self"]}"'.encode() in events.content
        model.will(Reply(status=500))
        failed = (await client.post(f"{place}/messages", json={"content": "hi"})).json()
        assert (await client.get(failed["links"]["self"])).json()["error"] == failed
        assert failed["instance"] == failed["links"]["self"]
        await client.post("/ai/chat/v1/conversations")
        page = await client.get("/ai/chat/v1/conversations?limit=1")
        following = page.headers["link"].partition(">")[0].removeprefix("<")
        assert following.startswith("/ai/chat/v1/conversations?")
        assert len((await client.get(following)).json()["data"]) == 1
        # A proxy may strip the base path, and probes come past it.
        stripped = place.removeprefix("/ai/chat")
        assert (await client.get(stripped)).json()["id"] == created.json()["id"]
        assert (await client.get("/health/live")).status_code == 200
        wrong = await client.get("/ai/chatter/v1/conversations")
        assert (wrong.status_code, wrong.json()["code"]) == (404, "not_found")
        assert (await client.put(place)).headers["allow"] == "DELETE, GET, HEAD, PATCH"


@pytest.mark.parametrize(
    ("trusted", "client_address"),
    [(None, "127.0.0.1"), ("10.0.0.0/8", "127.0.0.1"), ("127.0.0.1,10.0.0.0/8", "203.0.113.7")],
)
async def test_only_trusted_proxies_say_who_the_client_is(
    settings: Settings,
    postgres_url: str,
    capsys: pytest.CaptureFixture[str],
    trusted: str | None,
    client_address: str,
) -> None:
    async with configured(settings, postgres_url, chat_trusted_proxies=trusted) as service:
        configure_logging(level="info", as_json=True)
        forwarded = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7, 10.1.2.3"}
        await client_of(service, forwarded).get("/v1/conversations?limit=7&token=secret")
        configure_logging(level="warning", as_json=True)

    (line,) = [text for text in capsys.readouterr().err.splitlines() if '"request"' in text]
    assert f'"client": "{client_address}"' in line
    assert '"path": "/v1/conversations"' in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "4bf92f3577b34da6a3ce929d0e0e4736",
        ),
        (
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "4bf92f3577b34da6a3ce929d0e0e4736",
        ),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x", None),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01", None),
        ("nonsense", None),
    ],
)
async def test_the_caller_s_trace_is_kept_with_the_turn(
    live: httpx.AsyncClient, header: str, trace_id: str | None
) -> None:
    conversation = await create(live)
    headers = {"traceparent": header}

    sent = await live.post(
        f"/v1/conversations/{conversation}/messages", json={"content": "hi"}, headers=headers
    )
    streamed = await stream(live, conversation, headers=headers)

    assert sent.json()["trace_id"] == trace_id
    assert streamed[-1].data["turn"]["trace_id"] == trace_id
