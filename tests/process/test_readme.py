"""The README's snippets and the examples, run as they stand."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from app.settings import Settings
from tests.process.conftest import Starter
from tests.process.service import RunningService, environment
from tests.relay import Relay
from tests.scripted_model import Gate, Hold, ScriptedModel

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
# Each block of commands, by its first words, and who runs it.
BLOCKS = {
    "make serve    #": "test_the_quick_start_s_service_starts",
    "H='Content-Type": "test_the_curl_commands",
    "CHAT_MODEL=openai-chat": "test_the_service_starts_with_each_kind_of_model",
    ".venv/bin/python examples/client.py": "test_the_client_remembers_and_survives_a_cut",
    "CHAT_CORS_ORIGINS": "tests/browser",
    "chat-workflow keys create": "test_the_commands_for_keys",
    'echo "POSTGRES_PASSWORD': "tests/containers",
}


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block(beginning: str) -> str:
    (found,) = [text for text in blocks() if text.startswith(beginning)]
    return found


def test_every_block_of_commands_is_run_by_a_test() -> None:
    assert [text for text in blocks() if not text.startswith(tuple(BLOCKS))] == []
    for beginning in BLOCKS:
        assert block(beginning)


def test_every_setting_stands_in_the_table_with_its_default() -> None:
    table = README[README.index("## Settings") : README.index("## How it compares")]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    named: dict[str, str] = {}
    for row in rows:
        names, defaults = row.split(" | ")[:2]
        named.update(dict.fromkeys(re.findall(r"`(\w+)`", names), defaults))

    assert {name.lower() for name in named} == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert f"{field.default:g}" in named[name.upper()].replace("4194304", "4.1943e+06"), (
                name
            )


def test_what_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


async def bash(line: str, **settings: object) -> tuple[Process, Mapping[str, str]]:
    own = dict(environment(**settings))
    own["PATH"] = f"{BIN}:{own['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", line),
        cwd=ROOT,
        env=own,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    return process, own


async def output_of(lines: str, **settings: object) -> str:
    process, _ = await bash(lines, **settings)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def serves(line: str, **settings: object) -> None:
    """The command starts a service that is ready, and ends when it is told to."""
    process, _ = await bash(line, **settings)
    running = await RunningService(process).serving()
    assert (await running.client.get("/health/ready")).status_code == 200
    await running.client.aclose()
    os.killpg(process.pid, signal.SIGTERM)
    async with asyncio.timeout(30):
        await process.wait()


@pytest.mark.parametrize("line", block("make serve    #").splitlines())
async def test_the_quick_start_s_service_starts(directory: Path, line: str) -> None:
    """The other command runs this test."""
    if line.startswith("make test"):
        await output_of(f"make --dry-run {line.removeprefix('make ')}")
    else:
        await serves(line, chat_data_dir=directory)


async def test_the_curl_commands(directory: Path) -> None:
    process, _ = await bash("make serve", chat_data_dir=directory)
    running = await RunningService(process).serving()
    address = str(running.client.base_url).removeprefix("http://").rstrip("/")

    said = await output_of(block("H='Content-Type").replace("localhost:8000", address))

    assert '"output":"Your name is Ada."' in said
    assert "event: turn.completed" in said
    assert '"title":"Names"' in said
    assert '"status":"closed"' in said
    await running.client.aclose()
    os.killpg(process.pid, signal.SIGTERM)
    await process.wait()


@pytest.mark.parametrize("line", block("CHAT_MODEL=openai-chat").splitlines())
async def test_the_service_starts_with_each_kind_of_model(directory: Path, line: str) -> None:
    await serves(line, chat_data_dir=directory)


async def test_the_commands_for_keys(directory: Path) -> None:
    create, listing, revoke, serve = block("chat-workflow keys create").splitlines()

    created = await output_of(create, chat_data_dir=directory)
    listed = await output_of(listing, chat_data_dir=directory)
    key_id = listed.split()[0]

    assert created.startswith("cw_")
    assert "ada" in listed
    assert "Revoked" in await output_of(revoke.replace("ID", key_id), chat_data_dir=directory)
    await serves(serve.replace("CHAT_HOST=0.0.0.0", "CHAT_HOST=127.0.0.1"), chat_data_dir=directory)


@pytest.fixture
async def relay(started: Starter) -> AsyncGenerator[Relay]:
    running = await started()
    async with Relay(
        running.client.base_url.host, running.client.base_url.port or 0
    ).running() as relay:
        yield relay


async def test_the_client_remembers_and_survives_a_cut(
    relay: Relay, model: ScriptedModel, tmp_path: Path
) -> None:
    first, second = block(".venv/bin/python examples/client.py").splitlines()
    settings = {"chat_url": relay.url, "chat_state": tmp_path / "state"}
    gates = [Gate(), Gate()]
    model.will_say("Hello, ", Hold(gates[0]), "Ada", Hold(gates[1]), "!")

    process, _ = await bash(first, **settings)
    for gate in gates:
        await gate.reached()
        await asyncio.sleep(0.3)
        relay.cut()
        gate.open()
        await asyncio.sleep(1.5)
    output, errors = await process.communicate()
    model.will_say("Your name is Ada.")
    said = await output_of(second, **settings)

    assert output.decode() == "Hello, Ada!\n", errors.decode()
    assert said == "Your name is Ada.\n"
    assert [message["content"] for message in model.requests[-1].messages] == [
        *("My name is Ada.", "Hello, Ada!", "What is my name?")
    ]
    assert relay.connections >= 4


async def test_the_client_sends_again_until_there_is_a_network(
    relay: Relay, model: ScriptedModel, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    model.will_say("there")
    settings = {"chat_url": relay.url, "chat_state": state}
    await output_of(f"{BIN}/python examples/client.py hi", **settings)
    relay.is_down = True
    relay.cut()
    model.will_say("back")
    process, _ = await bash(f"{BIN}/python examples/client.py again", **settings)
    await asyncio.sleep(2)
    relay.is_down = False

    output, errors = await process.communicate()

    assert output.decode() == "back\n", errors.decode()
    assert len(model.requests) == 2


async def test_the_client_tells_of_a_refusal_in_one_line(relay: Relay, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("nonsense")
    process, _ = await bash(
        f"{BIN}/python examples/client.py hi", chat_url=relay.url, chat_state=state
    )
    _, errors = await process.communicate()

    assert process.returncode == 1
    assert errors.decode() == "There is nothing here.\n"
