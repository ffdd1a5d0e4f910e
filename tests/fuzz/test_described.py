"""schemathesis tries the real service against its own description, with all checks on."""

# The library's types are partial.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false

import asyncio
import json
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis import Case, GenerationMode

from tests.postmasters import send_to_postmasters
from tests.process.service import COMMAND, environment, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

AnyCase = Case[Any]
DOCUMENT = json.loads((Path(__file__).parents[2] / "openapi" / "openapi.json").read_text())
ANY_SPEED = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
EXAMPLES = 60
SEQUENCES, STEPS = 40, 10
# Each is done to a conversation of its own: what was erased or closed is no good for others.
FINAL = ("delete_conversation", "close_conversation")
# Cursors and tags of ours: any text is one for the schema, few are.
GIVEN = {"after", "cursor", "last-event-id", "if-match"}
CASES: Counter[str] = Counter()

schema = schemathesis.openapi.from_dict(
    DOCUMENT,
    config=schemathesis.Config.from_dict(
        {
            "seed": 1,
            "generation": {
                "max-examples": EXAMPLES,
                "deterministic": True,
                "database": "none",
                "mode": "all",
                "with-security-parameters": False,
            },
            "checks": {"enabled": True},
            "request-timeout": 5,
            "max-stream-events": 20,
        }
    ),
)


class Target:
    """A service with keys, and a conversation of the caller's to try things on."""

    def __init__(self, url: str, token: str) -> None:
        self.headers = {"Authorization": f"Bearer {token}"}
        self.url = url
        self._client = httpx.Client(base_url=url, headers=self.headers, timeout=20)
        self.conversation = self.fresh()
        sent = self._client.post(
            f"/v1/conversations/{self.conversation}/messages", json={"content": "hi"}
        )
        self.turn = sent.json()["id"]

    def fresh(self) -> str:
        return self._client.post("/v1/conversations").json()["id"]

    def named(self, case: AnyCase) -> None:
        """Every second case is about something that exists."""
        given = case.path_parameters
        if not given or sum(map(len, map(str, given.values()))) % 2:
            return
        name = case.operation.definition.raw["operationId"]
        if "conversation_id" in given:
            given["conversation_id"] = self.fresh() if name in FINAL else self.conversation
        if "turn_id" in given:
            given["turn_id"] = self.turn

    def meant(self, case: AnyCase) -> None:
        """What the schema cannot say: a key is used once, and some things name what there is.

        Bad ones are for the cases that are bad on purpose.
        """
        if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
            return
        for name in GIVEN:
            case.headers.pop(name, None)
            case.query.pop(name, None)
        body: Any = case.body
        if isinstance(body, dict) and isinstance(body.get("config"), dict):
            body["config"].pop("tools", None)
        if "idempotency-key" in case.headers:
            case.headers["idempotency-key"] = str(uuid4())


@pytest.fixture(scope="module")
def target() -> Generator[Target]:
    with tempfile.TemporaryDirectory(prefix="cw-fuzz-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        settings = {"chat_data_dir": folder / "data"}
        _, output, _ = asyncio.run(run("keys", "create", "--user", "ada", **settings))
        log = folder / "log"
        with log.open("w") as errors:
            serving = subprocess.Popen(  # noqa: S603 - our own command
                [COMMAND, "serve"],
                env=environment(chat_auth="keys", chat_streams_per_caller=1000, **settings),
                stderr=errors,
            )
        yield Target(_url_in(log), output.split()[0])
        serving.terminate()
        serving.wait(30)
        send_to_postmasters(folder, signal.SIGKILL)
        faults = [line for line in log.read_text().splitlines() if '"request_broke"' in line]
        assert faults == []


def _url_in(log: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if '"serving"' in line:
                return json.loads(line)["url"]
        time.sleep(0.1)
    raise AssertionError(log.read_text())


# Of HTTP itself and for browsers; everything else that is sent has to be described.
STANDARD = {
    *("cache-control", "connection", "content-length", "content-security-policy", "content-type"),
    *("date", "referrer-policy", "transfer-encoding", "x-accel-buffering"),
    *("x-content-type-options", "x-frame-options"),
}


def described_headers(case: AnyCase, status: int) -> set[str]:
    responses = case.operation.definition.raw["responses"]
    response = responses.get(str(status), {})
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    return {name.lower() for name in response.get("headers", {})}


@schema.parametrize()
def test_every_answer_is_as_it_is_described(case: AnyCase, target: Target) -> None:
    target.named(case)
    target.meant(case)
    response = case.call(base_url=target.url, headers=target.headers)
    CASES[case.operation.label] += 1
    sent = {name.lower() for name in response.headers}
    if response.status_code != 405:
        assert sent - STANDARD <= described_headers(case, response.status_code)
    case.validate_response(
        response,
        headers=target.headers,
        transport_kwargs={"headers": target.headers, "base_url": target.url},
    )


class Sequences(schema.as_state_machine()):
    """Requests that build on each other: what was made is read, changed, used and erased."""

    target: ClassVar[Target]

    def get_call_kwargs(self, case: AnyCase) -> dict[str, Any]:
        self.target.meant(case)
        CASES[case.operation.label] += 1
        return {"headers": self.target.headers, "base_url": self.target.url}


def test_every_answer_in_a_sequence_is_as_it_is_described(target: Target) -> None:
    Sequences.target = target
    Sequences.run(
        settings=hypothesis.settings(
            max_examples=SEQUENCES,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=ANY_SPEED,
        )
    )


def test_the_number_of_cases_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\nschemathesis: {CASES.total()} cases over {len(CASES)} operations")  # noqa: T201 - the figure
    assert len(CASES) == sum(len(operations) for operations in DOCUMENT["paths"].values())
