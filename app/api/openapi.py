"""The description of the API (OpenAPI 3.1): the framework's, with what it cannot know."""

import re
from typing import Any, cast, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from app.api import examples
from app.wire.event_document import EventDocument
from app.wire.problem import MEDIA_TYPE, ProblemDocument

_PAGE = re.compile(r"Page[_\[](\w+)Document[_\]]")
_OWN_NAMES = {"RunStatus": "ConversationStatus", "DescriptionDocument": "ConversationDescription"}

REF = "#/components/schemas/{model}"
DESCRIPTION = """\
Conversations with language-model agents as durable workflow runs. A message is committed before the
model is called, every event before anyone sees it.

With `CHAT_AUTH=keys` every route but `/health/*` needs `Authorization: Bearer <key>`; with
`CHAT_AUTH=none` only this machine may call, and the header is ignored. Unknown fields of a request
are refused; clients have to ignore unknown fields and events of answers. HEAD works wherever GET
does. Every error is an RFC 9457 problem (but for `/health/ready`, which says what is amiss, and a
browser's preflight that is refused); `openapi/problems.md` has the cause and the remedy of each.
"""
TAGS = [
    {"name": "conversations", "description": "Create, read, change, follow, close and erase."},
    {"name": "messages", "description": "Send, with or without a stream, and read the history."},
    {"name": "turns", "description": "What became of each message that was sent."},
    {"name": "health", "description": "For whoever keeps the process alive."},
]


def describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=app.openapi_version,
        summary=app.summary,
        description=DESCRIPTION,
        license_info=app.license_info,
        tags=TAGS,
        servers=[
            {"url": "/", "description": "The service itself, or CHAT_ROOT_PATH below a proxy"}
        ],
        routes=app.routes,
    )
    components = document["components"]
    components["schemas"].update(_schemas())
    components["headers"] = _HEADERS
    components["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "A key of `chat-workflow keys create`; not needed with CHAT_AUTH=none.",
        }
    }
    document["security"] = [{"key": []}]
    components["responses"] = {}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _mend(path, operation)
            _share(operation["responses"], components["responses"])
    for name in ("HTTPValidationError", "ValidationError"):
        del components["schemas"][name]
    components["schemas"] = {
        _name(name): {**schema, "title": _name(name)}
        for name, schema in sorted(components["schemas"].items())
    }
    return _completed(document)


def _mend(path: str, operation: dict[str, Any]) -> None:
    """The framework describes its own answer to a bad parameter, and JSON where there is a stream."""
    if path.startswith("/health/"):
        operation["security"] = []
    if "HTTPValidationError" in str(operation["responses"].get("422")):
        del operation["responses"]["422"]
    for response in operation["responses"].values():
        if "text/event-stream" in response.get("content", {}):
            del response["content"]["application/json"]


def _share(responses: dict[str, Any], shared: dict[str, Any]) -> None:
    """Problems stand once, under their codes: many routes have the same."""
    for status, response in responses.items():
        codes = response.get("content", {}).get(MEDIA_TYPE, {}).get("examples")
        if codes:
            name = ".".join(codes)
            shared[name] = response
            responses[status] = {"$ref": f"#/components/responses/{name}"}


def _completed(value: Any) -> Any:
    """With the examples in their places, and schemas under the names that clients know."""
    match value:
        case {"$ref": str(reference)}:
            place, _, name = reference.rpartition("/")
            return {**value, "$ref": f"{place}/{_name(name)}"}
        case dict():
            items = cast("dict[str, Any]", value).items()
            return {name: _completed_item(name, item) for name, item in items}
        case list():
            return [_completed(item) for item in cast("list[Any]", value)]
        case str() if value.startswith(examples.PREFIX):
            return examples.NAMED[value.removeprefix(examples.PREFIX)]
        case _:
            return value


def _completed_item(name: str, item: Any) -> Any:
    if name == "title" and isinstance(item, str):
        return _name(item)
    if name == "mapping":
        return {kind: _completed({"$ref": item[kind]})["$ref"] for kind in item}
    return _completed(item)


def _name(name: str) -> str:
    """`TurnDocument` is a `Turn` for clients, and what we call a run is a conversation."""
    page = _PAGE.fullmatch(name)
    if page is not None:
        return f"{page.group(1)}Page"
    return _OWN_NAMES.get(name, name.removesuffix("Document"))


def _schemas() -> dict[str, Any]:
    kinds = [*get_args(EventDocument), ProblemDocument]
    inputs = [(kind, "serialization", TypeAdapter[Any](kind)) for kind in kinds]
    _, shared = TypeAdapter.json_schemas(inputs, ref_template=REF)  # pyright: ignore[reportArgumentType] - the mode is a literal
    schemas: dict[str, Any] = dict(shared["$defs"])
    names = [kind.__name__ for kind in get_args(EventDocument)]
    types = {name: schemas[name]["properties"]["type"]["const"] for name in names}
    references = [{"$ref": REF.format(model=name)} for name in names]
    mapping = {types[name]: REF.format(model=name) for name in names}
    schemas["Event"] = {
        "description": (
            "What stands in an event's `data`. Kinds and fields may be added in any release: ignore "
            "those you do not know, and let no generated client refuse them."
        ),
        "oneOf": references,
        "discriminator": {"propertyName": "type", "mapping": mapping},
    }
    schemas["Json"] = _JSON
    schemas["ServerSentEvent"] = _server_sent_event(sorted(types.values()))
    return schemas


def _server_sent_event(types: list[str]) -> dict[str, Any]:
    return {
        "description": (
            "One event of a stream (HTML standard, section 9.2). Resume after it with its `id` as "
            "`Last-Event-ID`. Comments keep the connection alive. Every turn ends with exactly one "
            "terminal event: turn.completed, turn.incomplete, turn.cancelled or turn.failed. On the "
            f"wire, without what is cut out here:\n\n{examples.STREAM}"
        ),
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "event": {
                "type": "string",
                "examples": types,
                "description": "The event's `type`; there may be more kinds than these one day.",
            },
            "id": {
                "type": "string",
                "pattern": "^[1-9][0-9]*-[1-9][0-9]*$",
                "description": "`<turn number>-<seq>`; events without one cannot be resumed after.",
            },
            "retry": {"type": "integer", "description": "Milliseconds; with the first event only."},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"$ref": "#/components/schemas/Event"},
            },
        },
    }


def _header(description: str, *, required: bool = False, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "required": required, "schema": {"type": kind}}


_TEXT = {"type": "string", "pattern": r"^[^\u0000]*$"}
_JSON = {
    "description": "Any JSON value without NUL.",
    "anyOf": [
        {"type": ["null", "boolean", "number"]},
        _TEXT,
        {"type": "array", "items": {"$ref": "#/components/schemas/Json"}},
        {
            "type": "object",
            "propertyNames": _TEXT,
            "additionalProperties": {"$ref": "#/components/schemas/Json"},
        },
    ],
}
_HEADERS = {
    "X-Request-ID": _header(
        "The client's own, if it is a sane token, or a new one.", required=True
    ),
    "X-Turn-ID": _header("The turn that this answer is about.", required=True),
    "X-Turn-ID-Of-A-Problem": _header("The turn that this request began, where it began one."),
    "X-Should-Retry": _header("`false`: a client shall not repeat this by itself."),
    "ETag": _header("For `If-None-Match` and `If-Match`.", required=True),
    "Location": _header("The path of what was made.", required=True),
    "Link": _header('The next page, `rel="next"` (RFC 8288), where there is one.'),
    "Retry-After": _header("Seconds.", kind="integer"),
    "RateLimit-Policy": _header("What the caller may do, where a limit is set."),
    "RateLimit": _header("What is left of it."),
    "Idempotency-Replayed": _header("`true`: the outcome of an earlier request with this key."),
    "Preference-Applied": _header("What of `Prefer` was honoured.", required=True),
    "WWW-Authenticate": _header("How to authenticate.", required=True),
}
