"""Functions of a module to tools for a model. A tool that fails tells the model so, no more."""

import asyncio
import importlib
import inspect
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any, cast

from pydantic import PydanticUserError
from pydantic_ai import RunContext
from pydantic_ai.exceptions import (
    AgentRunError,
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    UserError,
)
from pydantic_ai.messages import MULTI_MODAL_CONTENT_TYPES, ToolReturn
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool
from pydantic_core import to_json

from app.errors import ConfigurationError
from app.frameworks.pydantic_ai.tool_context import with_tool_context
from app.messages.text_policy import storable_json
from app.observability.logging import get_logger
from app.steps import StepInput

logger = get_logger()

LARGEST_RESULT = 200_000
CUT = "\n[cut: {shown} of {whole} characters]"

_FILES = MULTI_MODAL_CONTENT_TYPES
_KINDS = {
    "tool-return",
    *(each.default for kind in _FILES for each in fields(kind) if each.name == "kind"),
}
_FOR_THE_FRAMEWORK = (ModelRetry, ToolFailed, CallDeferred, ApprovalRequired, AgentRunError)


def load_tools(modules: Sequence[str], *, timeout: float) -> "GuardedToolset":
    """Every public function that these modules define; `timeout` in seconds for each call.

    Raises ConfigurationError with one clear line.
    """
    functions = [function for module in modules for function in _functions_of(module)]
    try:
        return GuardedToolset(functions, seconds=timeout)
    except (UserError, PydanticUserError, ConfigurationError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"CHAT_TOOLS: {reason}") from error


def _functions_of(name: str) -> list[Callable[..., Any]]:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"CHAT_TOOLS: cannot import {name!r}: {error}") from error
    except Exception as error:
        # The operator's module may raise anything while it is imported.
        kind = type(error).__name__
        raise ConfigurationError(f"CHAT_TOOLS: {name!r} raises {kind} on import") from error
    members = inspect.getmembers(module, inspect.isfunction)
    own = [value for label, value in members if not label.startswith("_")]
    functions = [function for function in own if function.__module__ == module.__name__]
    if not functions:
        raise ConfigurationError(f"CHAT_TOOLS: {name!r} has no public function")
    return functions


class GuardedToolset(FunctionToolset[StepInput]):
    """A limit of `seconds` for each call; what a tool raises never ends the turn by itself.

    The guard lies inside the journal's operation: that a tool has failed is known to the next
    attempt too.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], *, seconds: float) -> None:
        super().__init__([with_tool_context(each) for each in functions], id="functions")
        self._seconds = seconds

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tools)

    def only(self, names: Collection[str] | None) -> AbstractToolset[StepInput]:
        """Those of these names; None: all."""
        if names is None:
            return self
        return self.filtered(lambda _, tool: tool.name in names)

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[StepInput],
        tool: ToolsetTool[StepInput],
    ) -> Any:
        try:
            async with asyncio.timeout(self._seconds):
                result = await super().call_tool(name, tool_args, ctx, tool)
            return _sendable(result)
        except _FOR_THE_FRAMEWORK:
            raise
        except TimeoutError:
            raise ToolFailed("The tool took too long.") from None
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # The tool has awaited something that was cancelled; nobody has stopped the tool.
            raise _failed(name, error) from None
        except (Exception, GeneratorExit, SystemExit) as error:  # noqa: BLE001 - a tool is the operator's code: any error is its own
            raise _failed(name, error) from None


def _failed(name: str, error: BaseException) -> ToolFailed:
    logger.warning("tool_failed", tool=name, error=type(error).__name__)
    return ToolFailed("The tool failed.")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _sendable(result: Any) -> Any:
    """Text, JSON or a file, as journal and model take it; raises PydanticSerializationError.

    A result of more than LARGEST_RESULT characters is cut there, and says so at its end. Of the
    framework's ToolReturn only the value counts: what it would add to the conversation beside it
    nobody was shown.
    """
    if isinstance(result, ToolReturn):
        return _sendable(cast("Any", result).return_value)
    sendable: Any = result
    if isinstance(result, str | dict | list | tuple):
        sendable = storable_json(cast("object", result))
    if _has_files(sendable):
        return sendable
    text = sendable
    if not isinstance(sendable, str):
        text = to_json(sendable, inf_nan_mode="null", bytes_mode="base64").decode()
        sendable = json.loads(text)
    if len(text) <= LARGEST_RESULT:
        return text if _is_taken_for_a_file(sendable) else sendable
    return text[:LARGEST_RESULT] + CUT.format(shown=LARGEST_RESULT, whole=len(text))


def _is_taken_for_a_file(value: object) -> bool:
    """Whether somewhere in it is an object that the framework would read back as one of its own."""
    match value:
        case dict():
            document = cast("dict[str, object]", value)
            return document.get("kind") in _KINDS or any(
                map(_is_taken_for_a_file, document.values())
            )
        case list():
            return any(map(_is_taken_for_a_file, cast("list[object]", value)))
        case _:
            return False


def _has_files(result: Any) -> bool:
    """Pictures and the like, which the framework knows how to send and to keep."""
    items = cast("Sequence[object]", result) if isinstance(result, list | tuple) else (result,)
    return any(isinstance(item, _FILES) for item in items)
