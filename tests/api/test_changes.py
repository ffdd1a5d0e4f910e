"""Changing a conversation, and asking cheaply whether it has changed."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.api.test_conversations import create
from tests.api.test_messages import history, send
from tests.scripted_model import Gate, Hold, ScriptedModel


def path_of(conversation: str) -> str:
    return f"/v1/conversations/{conversation}"


async def patch(
    client: httpx.AsyncClient, conversation: str, document: object, **headers: str
) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.patch(path_of(conversation), json=document, headers=named)


async def test_a_patch_changes_what_it_names_and_nothing_else(client: httpx.AsyncClient) -> None:
    conversation = await create(client, title="Oslo", metadata={"a": 1})
    before = (await client.get(path_of(conversation))).json()

    answer = await patch(client, conversation, {"title": "Bergen"})

    assert answer.status_code == 200
    assert answer.json() == {**before, "title": "Bergen"}
    assert (await client.get(path_of(conversation))).json() == answer.json()


# RFC 7396, appendix A: those of its examples whose target and result are objects.
@pytest.mark.parametrize(
    ("metadata", "change", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": 1}, {"a": True}, {"a": True}),
        ({"a": 1}, None, {}),
    ],
)
async def test_metadata_is_merged_as_rfc_7396_says(
    client: httpx.AsyncClient, metadata: Any, change: Any, result: Any
) -> None:
    conversation = await create(client, metadata=metadata)

    answer = await patch(client, conversation, {"metadata": change})

    assert repr(answer.json()["metadata"]) == repr(result)


async def test_a_title_that_was_removed_comes_from_the_next_message(
    client: httpx.AsyncClient,
) -> None:
    conversation = await create(client, title="Oslo")

    assert (await patch(client, conversation, {"title": None})).json()["title"] is None
    await send(client, conversation, "Where to go?")

    assert (await client.get(path_of(conversation))).json()["title"] == "Where to go?"


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"title": ""}, "/title"),
        ({"title": " "}, "/title"),
        ({"title": "x" * 201}, "/title"),
        ({"title": "a\x00b"}, "/title"),
        ({"metadata": {"a": "\ud800"}}, "/metadata"),
        ({"metadata": [1]}, "/metadata"),
        ({"metadata": {"b": "x" * 9_000}}, "/metadata"),
        ({"metadata": {"b": "x" * 20_000}}, "/metadata"),
        ({"status": "open"}, "/status"),
        ({"user_id": "eve"}, "/user_id"),
    ],
)
async def test_a_patch_that_cannot_be_stored_changes_nothing(
    client: httpx.AsyncClient, change: dict[str, object], pointer: str
) -> None:
    conversation = await create(client, metadata={"a": "x" * 9_000})
    before = (await client.get(path_of(conversation))).json()

    answer = await client.patch(path_of(conversation), content=_escaped(change), headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
    assert (await client.get(path_of(conversation))).json() == before


JSON = {"Content-Type": "application/merge-patch+json"}


def _escaped(document: object) -> bytes:
    """As a client writes it that escapes everything: a lone surrogate has no bytes of its own."""

    return json.dumps(document).encode()


async def test_a_patch_may_name_more_than_may_be_kept(client: httpx.AsyncClient) -> None:
    conversation = await create(client, metadata={str(n): 0 for n in range(1_500)})

    answer = await patch(client, conversation, {"metadata": {str(n): None for n in range(1_500)}})

    assert answer.json()["metadata"] == {}


async def test_a_title_that_was_removed_later_stays_away(client: httpx.AsyncClient) -> None:
    conversation = await create(client)
    await send(client, conversation, "the first")
    await patch(client, conversation, {"title": None})

    await send(client, conversation, "the second")

    assert (await client.get(path_of(conversation))).json()["title"] is None


async def test_a_patch_does_not_move_a_conversation_up_the_list(client: httpx.AsyncClient) -> None:
    first, second = await create(client), await create(client)

    await patch(client, first, {"title": "changed"})

    listed = (await client.get("/v1/conversations")).json()["data"]
    assert [item["id"] for item in listed] == [second, first]


async def test_a_patch_while_a_turn_runs_is_fine(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a", Hold(gate), "b")
    conversation = await create(client)
    sending = asyncio.ensure_future(send(client, conversation, "hi"))
    await gate.reached()

    answer = await patch(client, conversation, {"metadata": {"seen": True}})
    gate.open()

    assert answer.json()["active_turn"]["number"] == 1
    assert (await sending).json()["output"] == "ab"
    assert (await client.get(path_of(conversation))).json()["metadata"] == {"seen": True}


async def test_of_two_changes_at_the_same_version_one_is_refused(
    client: httpx.AsyncClient,
) -> None:
    conversation = await create(client)
    etag = (await client.get(path_of(conversation))).headers["etag"]

    answers = await asyncio.gather(
        *(patch(client, conversation, {"title": f"t{n}"}, If_Match=etag) for n in range(10))
    )

    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200] + [412] * 9
    (won,) = [answer for answer in answers if answer.status_code == 200]
    refused = next(answer for answer in answers if answer.status_code == 412)
    assert refused.json()["code"] == "precondition_failed"
    assert (await client.get(path_of(conversation))).json() == won.json()
    assert won.headers["etag"] != etag


@pytest.mark.parametrize(
    ("tag", "status"),
    [("*", 200), ('"x", {}', 200), ("{}", 200), ("W/{}", 412), ('"x"', 412), ("nonsense", 412)],
)
async def test_if_match_is_compared_strongly(
    client: httpx.AsyncClient, tag: str, status: int
) -> None:
    conversation = await create(client)
    etag = (await client.get(path_of(conversation))).headers["etag"]

    answer = await patch(client, conversation, {"title": "x"}, If_Match=tag.format(etag))

    assert answer.status_code == status


async def test_a_change_that_changes_nothing_is_no_new_version(client: httpx.AsyncClient) -> None:
    conversation = await create(client, title="Oslo", metadata={"a": 1})
    etag = (await client.get(path_of(conversation))).headers["etag"]

    for change in ({}, {"title": "Oslo"}, {"metadata": {"a": 1}}, {"metadata": {"z": None}}):
        assert (await patch(client, conversation, change)).headers["etag"] == etag


@pytest.mark.parametrize("suffix", ["", "/messages"])
async def test_what_has_not_changed_is_not_sent_again(
    client: httpx.AsyncClient, suffix: str
) -> None:
    conversation = await create(client)
    await send(client, conversation, "hi")
    path = path_of(conversation) + suffix
    etag = (await client.get(path)).headers["etag"]

    for tag in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        same = await client.get(path, headers={"If-None-Match": tag})
        assert (same.status_code, same.content) == (304, b"")
        assert same.headers["etag"] == etag
    await send(client, conversation, "again")
    changed = await client.get(path, headers={"If-None-Match": etag})

    assert changed.status_code == 200
    assert changed.headers["etag"] != etag


async def test_the_tag_changes_with_everything_that_can_be_seen(
    client: httpx.AsyncClient, model: ScriptedModel
) -> None:
    gate = Gate()
    model.will_say("a", Hold(gate))
    conversation = await create(client)
    tags = [(await client.get(path_of(conversation))).headers["etag"]]
    sending = asyncio.ensure_future(send(client, conversation, "hi"))
    await gate.reached()
    tags.append((await client.get(path_of(conversation))).headers["etag"])
    await client.post(f"{path_of(conversation)}/cancel")
    await sending
    tags.append((await client.get(path_of(conversation))).headers["etag"])
    tags.append((await patch(client, conversation, {"title": "x"})).headers["etag"])
    tags.append((await client.post(f"{path_of(conversation)}/close")).headers["etag"])

    assert len(set(tags)) == len(tags)
    assert len(await history(client, conversation)) == 2
