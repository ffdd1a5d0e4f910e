"""The README's snippets and the examples, run as they stand."""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from app.api.schemas.message import LONGEST_CONTENT
from app.chat.metadata import LARGEST
from app.settings import Settings
from tests.process.conftest import Starter
from tests.process.service import RunningService, environment
from tests.relay import Relay
from tests.scripted_model import Gate, Hold, ScriptedModel

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
DOCUMENT = json.loads((ROOT / "openapi" / "openapi.json").read_text())
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
# Each block of commands, by its first words, and who runs it.
BLOCKS = {
    "make serve    #": "test_the_quick_start_s_service_starts",
    "H='Content-Type": "test_the_curl_commands",
    "CHAT_MODEL=openai-chat": "test_the_service_starts_with_each_kind_of_model",
    ".venv/bin/python examples/client.py": "test_the_client_remembers_and_survives_a_cut",
    "CHAT_CORS_ORIGINS": "test_the_service_lets_the_page_in, tests/browser",
    ".venv/bin/chat-workflow keys create": "test_the_commands_for_keys",
    "curl -sw '\\n' localhost:8000/v1/conversations -H": "test_the_commands_for_keys",
    "grep -qs POSTGRES_PASSWORD": "tests/containers",
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


def cells(heading: str, until: str) -> list[list[str]]:
    """The rows of the table in that part, without its head."""
    part = README[README.index(heading) : README.index(until)]
    rows = [line.strip("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows[2:]]


# What a setting's default is for a reader, where it is more than its value.
DEFAULTS = {
    "chat_data_dir": "the user's data directory; as root `/var/lib/chat-workflow`",
    "chat_auto_migrate": "on with embedded PostgreSQL, else off",
    "chat_log_format": "`text` on a terminal, else `json`",
}


def default_of(name: str) -> str:
    default = Settings.model_fields[name].default
    if name in DEFAULTS:
        return DEFAULTS[name]
    if default in (None, ""):
        return "–"  # noqa: RUF001 - the table says nothing so
    is_word = isinstance(default, str) and default.isalpha()
    return f"`{default}`" if is_word else str(default)


def test_every_setting_stands_in_the_table_with_its_default() -> None:
    named: dict[str, str] = {}
    for names, defaults, _ in cells("## Settings", "## How it compares"):
        fields = [name.lower() for name in re.findall(r"`(\w+)`", names)]
        separated = (
            defaults.split("; ") if fields[-1] == "chat_log_format" else defaults.split(", ")
        )
        if fields[0] in DEFAULTS:
            separated = [defaults]
        told = separated if len(separated) == len(fields) else separated * len(fields)
        named.update(zip(fields, told, strict=True))

    assert named == {name: default_of(name) for name in Settings.model_fields}


def test_every_limit_stands_in_the_table() -> None:
    told = " ".join(" ".join(row[:2]) for row in cells("### Limits", "### Tools"))
    default = {name: field.default for name, field in Settings.model_fields.items()}

    assert f"(`CHAT_STREAMS_PER_CALLER`) {default['chat_streams_per_caller']} " in f"{told} "
    assert f"(`CHAT_MAX_TURNS_PER_PROCESS`) {default['chat_max_turns_per_process']} " in told
    body, content = default["chat_max_body"] // 2**20, f"{LONGEST_CONTENT:,}"
    assert f"{body} MiB, {content} characters, {LARGEST // 1024} KiB" in told
    pages = {
        parameter["schema"]["maximum"]: parameter["schema"]["default"]
        for path in ("/v1/conversations", "/v1/conversations/{conversation_id}/messages")
        for parameter in DOCUMENT["paths"][path]["get"]["parameters"]
        if parameter["name"] == "limit"
    }
    assert pages == {100: 20, 200: 20}
    assert "20; at most 100, history 200 turns" in told


def test_the_table_of_routes_is_the_api() -> None:
    told: set[tuple[str, str]] = set()
    for routes, _ in cells("## The API", "### Streams"):
        method, base = "", ""
        for span in re.findall(r"`([^`]+)`", routes):
            first, _, path = span.partition(" ")
            if first.isupper() and not path:
                told.add((first, "/v1/conversations/{id}"))
                continue
            method, path = (first, path) if first.isupper() else (method, first)
            if path.startswith("…"):
                path = (base or "/v1/conversations/{id}") + path.removeprefix("…")
            base = "/v1/conversations/{id}" if "{id}" in path else ""
            told.add((method, path))

    described = {
        (method.upper(), path.replace("{conversation_id}", "{id}"))
        for path, operations in DOCUMENT["paths"].items()
        for method in operations
    }
    assert told == described


def test_the_examples_look_where_the_service_is() -> None:
    place = f"http://localhost:{Settings.model_fields['chat_port'].default}"

    for name in ("client.py", "browser.html"):
        assert f'"{place}"' in (ROOT / "examples" / name).read_text()


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

    commands = block("H='Content-Type").replace("localhost:8000", address)
    commands = commands.replace("curl -s", "curl --fail-with-body -s")

    said = await output_of(commands + "echo $ID\n")

    lines = said.strip().split("\n")
    first, second, *streamed, history, patched, closed, _, conversation = lines
    assert json.loads(first)["messages"][0]["content"] == "My name is Ada."
    assert json.loads(second)["output"] == "Your name is Ada."
    assert streamed[-3] == "event: turn.completed"
    assert [m["role"] for m in json.loads(history)["data"]] == ["user", "assistant"] * 3
    assert json.loads(patched)["title"] == "Names"
    assert json.loads(closed)["status"] == "closed"
    gone = await running.client.get(f"/v1/conversations/{conversation}")
    assert gone.status_code == 404
    await running.client.aclose()
    os.killpg(process.pid, signal.SIGTERM)
    await process.wait()


@pytest.mark.parametrize("line", block("CHAT_MODEL=openai-chat").splitlines())
async def test_the_service_starts_with_each_kind_of_model(directory: Path, line: str) -> None:
    await serves(line, chat_data_dir=directory)


async def test_the_service_lets_the_page_in(directory: Path) -> None:
    line, page = block("CHAT_CORS_ORIGINS").splitlines()

    await serves(line, chat_data_dir=directory)
    origin = re.findall(r"CHAT_CORS_ORIGINS=(\S+)", line)
    assert re.findall(r"open (http://localhost:\d+)/browser.html", page) == origin
    assert re.findall(r"http\.server (\d+)", page) == [origin[0].rpartition(":")[2]]


async def test_the_commands_for_keys(directory: Path, tmp_path: Path) -> None:
    create, listing, revoke, serve = block(".venv/bin/chat-workflow keys create").splitlines()
    created = await output_of(create, chat_data_dir=directory)
    listed = await output_of(listing, chat_data_dir=directory)
    key = created.split()[0]
    # Nothing but this machine is let in by a test.
    line = serve.replace("CHAT_HOST=0.0.0.0", "CHAT_HOST=127.0.0.1")
    process, _ = await bash(line, chat_data_dir=directory)
    running = await RunningService(process).serving()
    address = str(running.client.base_url).removeprefix("http://").rstrip("/")
    use = block("curl -sw '\\n' localhost:8000/v1/conversations -H")
    use = use.replace("localhost:8000", address).replace("curl -s", "curl --fail-with-body -s")
    settings = {"service_url": f"http://{address}", "service_state": tmp_path / "state"}

    used = await output_of(use, key=key, **settings)
    revoked = await output_of(revoke.replace("ID", listed.split()[0]), chat_data_dir=directory)
    refused, _ = await bash(use, key=key, **settings)

    assert "ada" in listed
    assert used.startswith('{"object":"list"')
    assert "Ada" in used
    assert "Revoked" in revoked
    assert await refused.wait() != 0
    await running.client.aclose()
    os.killpg(process.pid, signal.SIGTERM)
    await process.wait()


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
    settings = {"service_url": relay.url, "service_state": tmp_path / "state"}
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
    settings = {"service_url": relay.url, "service_state": state}
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
        f"{BIN}/python examples/client.py hi", service_url=relay.url, service_state=state
    )
    _, errors = await process.communicate()

    assert process.returncode == 1
    assert errors.decode().splitlines() == [
        "There is nothing here.",
        f"The conversation is gone; remove {state} to begin a new one.",
    ]
