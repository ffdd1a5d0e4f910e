"""The checked-in description of the API is the one that the code gives."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import jsonschema_rs
import pytest

from app.api.application import described
from app.bootstrap import Service
from app.cli import dump_openapi
from tests.api.test_conversations import create
from tests.api.test_follow import follow
from tests.api.test_restarts import interrupted
from tests.api.test_streams import stream
from tests.scripted_model import CallTool, Reply, ScriptedModel, Think

CHECKED_IN = Path(__file__).parents[2] / "openapi" / "openapi.json"
PROBLEMS = CHECKED_IN.with_name("problems.md")
DOCUMENT = json.loads(CHECKED_IN.read_text())


def validator(schema: object) -> jsonschema_rs.Draft202012Validator:
    """With the components that the schema refers to."""
    whole = {**cast("dict[str, Any]", schema), "components": DOCUMENT["components"]}
    return jsonschema_rs.Draft202012Validator(whole)


def schema(name: str) -> object:
    return {"$ref": f"#/components/schemas/{name}"}


def test_the_description_is_up_to_date() -> None:
    generated = dump_openapi(described())

    assert CHECKED_IN.read_text() == generated + "\n", "run 'make openapi' and look at the diff"


def examples(schema_of: str, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each example of the document with its schema."""
    if isinstance(value, dict):
        node = cast("dict[str, Any]", value)
        schema = node.get("schema", node)
        if "example" in node:
            yield schema_of, schema, node["example"]
        for name, item in node.items():
            if name == "examples" and isinstance(item, dict) and "schema" in node:
                for named in cast("dict[str, Any]", item).values():
                    yield schema_of, schema, named["value"]
            elif name == "examples" and isinstance(item, list):
                for each in cast("list[Any]", item):
                    yield schema_of, schema, each
            else:
                yield from examples(f"{schema_of}/{name}", item)


def test_every_example_is_what_it_is_an_example_of() -> None:
    found = list(examples("", DOCUMENT))

    assert len(found) > 50
    for place, schema, example in found:
        assert list(validator(schema).iter_errors(example)) == [], place


def test_every_route_has_an_example_for_its_body_and_its_answer() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                if "$ref" not in answer:
                    for content in answer.get("content", {}).values():
                        assert "example" in content, f"{method} {path} {status}"


def test_every_problem_of_the_document_is_documented() -> None:
    documented = set(re.findall(r"^## (\w+)$", PROBLEMS.read_text(), re.MULTILINE))
    named = {code for name in DOCUMENT["components"]["responses"] for code in name.split(".")}

    assert named <= documented
    assert documented - named == {"method_not_allowed"}


@pytest.mark.parametrize("after", [None, "1-3"])
async def test_every_event_of_a_stream_is_as_it_is_described(
    live: httpx.AsyncClient, service: Service, model: ScriptedModel, after: str | None
) -> None:
    event, block = validator(schema("Event")), validator(schema("ServerSentEvent"))
    conversation = await create(live, config={"reasoning": "shown"})
    model.will(
        Reply([Think("Hm."), "Let me look.", CallTool("c1", "echo", '{"text": "x"}')]),
        Reply(["Here it is."]),
        Reply(["too lo"], finish="length"),
        Reply(status=500),
    )
    found = [*await stream(live, conversation), *await stream(live, conversation)]
    found += await stream(live, conversation)
    _, restarted = await interrupted(live, service, model, ["half"])
    found += await restarted
    following = follow(live, conversation, after or found[0].id)
    await asyncio.sleep(0.2)
    await live.patch(f"/v1/conversations/{conversation}", json={"title": "changed"})
    await asyncio.sleep(0.2)
    await live.delete(f"/v1/conversations/{conversation}")
    found += await following

    assert {each.type for each in found} == {
        *("turn.started", "reasoning.delta", "text.delta", "message.completed"),
        *("tool_call.started", "tool_call.completed", "turn.completed", "turn.incomplete"),
        *("turn.failed", "turn.restarted", "conversation.updated", "stream.closing"),
    }
    for each in found:
        assert list(event.iter_errors(each.data)) == [], each.type
        fields = {**each.fields, **({"retry": 2000} if "retry" in each.fields else {})}
        assert list(block.iter_errors(fields)) == [], each.type


def test_it_is_openapi_3_1_with_a_summary_for_every_route() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    for path, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], f"{method} {path}"
