"""The README's page, in a real browser, with the commands that the README gives."""

import asyncio
import re
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from app.bootstrap import Service, running_service
from app.server import Server, listen, uvicorn_config
from app.settings import Settings
from tests.conftest import delete_all
from tests.relay import Relay
from tests.scripted_model import Gate, Hold, ScriptedModel

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass(frozen=True)
class Site:
    """The page, served from an origin of its own, and the network between it and the service."""

    address: str
    relay: Relay
    service: Service


@pytest.fixture
async def site(settings: Settings, postgres_url: str, model: ScriptedModel) -> AsyncGenerator[Site]:
    port = free_port()
    origins = f"http://localhost:{port}"
    own = settings.model_copy(update={"chat_cors_origins": origins, "chat_port": 0})
    async with running_service(own, postgres_url) as service:
        server = Server(uvicorn_config(service))
        listener = listen(own)
        serving = asyncio.ensure_future(server.serve([listener]))
        async with Relay("127.0.0.1", listener.getsockname()[1]).running() as relay:
            pages = await _serve_pages(port)
            page = f"http://localhost:{port}/browser.html"
            yield Site(f"{page}?service=http://localhost:{relay.port}", relay, service)
            pages.terminate()
            await pages.wait()
        await service.drain(0)
        server.should_exit = True
        await serving
        await delete_all(service.database)


async def _serve_pages(port: int) -> asyncio.subprocess.Process:
    readme = (ROOT / "README.md").read_text()
    (command,) = re.findall(r"^python3 (-m http\.server 3000 .*?)  ", readme, re.MULTILINE)
    arguments = command.replace("3000", str(port)).split()
    pages = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--bind", "127.0.0.1", cwd=ROOT, stderr=DEVNULL, stdout=DEVNULL
    )
    async with httpx.AsyncClient() as client, asyncio.timeout(10):
        while True:
            try:
                await client.get(f"http://127.0.0.1:{port}/")
            except httpx.TransportError:
                await asyncio.sleep(0.05)
            else:
                return pages


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def test_an_answer_comes_as_it_is_made(page: Page, site: Site, model: ScriptedModel) -> None:
    gate = Gate()
    model.will_say("Hello, ", Hold(gate), "Ada.")
    await page.goto(site.address)

    await say(page, "My name is Ada.")
    log = page.get_by_role("log")
    await expect(log).to_have_text("\n> My name is Ada.\nHello, ")
    gate.open()

    await expect(log).to_have_text("\n> My name is Ada.\nHello, Ada.")


async def test_a_second_tab_follows_live(page: Page, site: Site, model: ScriptedModel) -> None:
    gate = Gate()
    model.will_say("one ", Hold(gate), "two")
    await page.goto(site.address)
    await say(page, "hi")
    await expect(page.get_by_role("log")).to_have_text("\n> hi\none ")

    second = await page.context.new_page()
    await second.goto(site.address)
    await expect(second.get_by_role("log")).to_have_text("\n> hi\none ")
    gate.open()

    for each in (page, second):
        await expect(each.get_by_role("log")).to_have_text("\n> hi\none two")


async def test_a_reload_in_the_middle_shows_the_whole_answer(
    page: Page, site: Site, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("one ", Hold(gate), "two")
    await page.goto(site.address)
    await say(page, "hi")
    await expect(page.get_by_role("log")).to_have_text("\n> hi\none ")

    await page.reload()
    gate.open()

    await expect(page.get_by_role("log")).to_have_text("\n> hi\none two")
    await page.reload()
    await expect(page.get_by_role("log")).to_have_text("\n> hi\none two")


async def test_what_was_shown_goes_when_the_turn_is_begun_again(
    page: Page, site: Site, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("first try", Hold(gate))
    await page.goto(site.address)
    await say(page, "hi")
    await expect(page.get_by_role("log")).to_have_text("\n> hi\nfirst try")

    model.will_say("second try")
    (turn_id,) = site.service.engine.held
    await site.service.engine.stop(turn_id, 5)

    await expect(page.get_by_role("log")).to_have_text("\n> hi\nsecond try")


async def test_a_lost_network_loses_nothing_and_doubles_nothing(
    page: Page, site: Site, model: ScriptedModel
) -> None:
    gates = [Gate() for _ in range(4)]
    steps = [step for n, gate in enumerate(gates) for step in (f"{n} ", Hold(gate))]
    model.will_say(*steps, "end")
    await page.goto(site.address)
    await say(page, "hi")
    log = page.get_by_role("log")

    for number, gate in enumerate(gates):
        await gate.reached()
        await expect(log).to_have_text(
            f"\n> hi\n{''.join(f'{n} ' for n in range(number + 1))}", timeout=10_000
        )
        site.relay.cut()
        gate.open()

    await expect(log).to_have_text("\n> hi\n0 1 2 3 end", timeout=10_000)
