"""A tool may ask for whom it works; the model can neither see nor say it."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

from app.errors import ConfigurationError
from app.frameworks.pydantic_ai.tool_context import with_tool_context
from app.frameworks.pydantic_ai.toolsets import GuardedToolset, load_tools
from app.steps import ToolContext

if TYPE_CHECKING:
    from decimal import Decimal


def first(context: ToolContext, text: str) -> str:
    return text


async def awaited(context: "ToolContext", text: str = "x") -> str:
    return text


def annotated(context: Annotated[ToolContext, "who"], text: str) -> str:
    return text


def only(context: ToolContext, /) -> str:
    return "x"


def without(text: str) -> str:
    return text


@pytest.mark.parametrize("function", [first, awaited, annotated, only, without])
def test_the_model_does_not_see_it(function: Callable[..., Any]) -> None:
    (tool,) = GuardedToolset([function], seconds=1).tools.values()

    schema = tool.function_schema.json_schema
    assert set(schema.get("properties", {})) <= {"text"}
    assert "ToolContext" not in str(schema)
    assert tool.takes_ctx == (function is not without)


def second(text: str, context: ToolContext) -> str:
    return text


def optional(context: Optional[ToolContext] = None) -> str:  # noqa: UP045 - as operators may write it
    return "x"


def union(context: ToolContext | None = None) -> str:
    return "x"


def keyword(*, context: ToolContext) -> str:
    return "x"


def several(context: ToolContext, contexts: list[ToolContext]) -> str:
    return "x"


def unknown(price: "Decimal") -> str:
    return "x"


def nonsense(price: Any) -> str:
    return "x"


nonsense.__annotations__["price"] = "no such (thing"


@pytest.mark.parametrize("function", [second, optional, union, keyword, several])
def test_where_the_model_would_be_asked_for_it_the_start_is_refused(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(ConfigurationError, match="must be the first parameter"):
        with_tool_context(function)


@pytest.mark.parametrize("function", [unknown, nonsense])
def test_an_annotation_that_cannot_be_read_is_one_line(function: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="has an annotation that raises"):
        with_tool_context(function)


def test_a_type_that_no_model_can_give_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        pass

    def start(engine: Engine) -> str:
        return "x"

    module = ModuleType("strange_tools")
    start.__module__ = module.__name__
    start.__annotations__["engine"] = Engine
    vars(module)["start"] = start
    monkeypatch.setitem(sys.modules, module.__name__, module)

    with pytest.raises(ConfigurationError, match=r"^CHAT_TOOLS: Unable to generate.*$") as refused:
        load_tools([module.__name__], timeout=1)
    assert "\n" not in str(refused.value)
