"""Tools that want to know for whom they work: a first parameter that is a ToolContext."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_args, get_type_hints

from pydantic_ai import RunContext

from app.errors import ConfigurationError
from app.frameworks.pydantic_ai.journal import current_entry
from app.steps import StepInput, ToolContext

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def with_tool_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """As the framework takes it. The model sees neither the parameter nor what it holds.

    Raises ConfigurationError where a ToolContext stands anywhere else: the model would be asked
    for it, and could say whom it likes.
    """
    hints = _hints(function)
    mentioning = [name for name, hint in hints.items() if name != "return" and _mentions(hint)]
    if not mentioning:
        return function
    first = next(iter(inspect.signature(function).parameters.values()))
    if mentioning != [first.name] or hints[first.name] is not ToolContext:
        raise _misplaced(function)
    if first.kind not in _POSITIONAL:
        raise _misplaced(function)
    return _adapted(function, first, hints)


def _misplaced(function: Callable[..., Any]) -> ConfigurationError:
    rule = "a ToolContext must be the first parameter, annotated as that and nothing else"
    return ConfigurationError(f"{function.__name__!r}: {rule}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Raises ConfigurationError when they cannot be told, e.g. names for type checkers only."""
    try:
        return get_type_hints(function)
    except Exception as error:
        # An annotation may be any expression.
        name, kind = function.__name__, type(error).__name__
        raise ConfigurationError(f"{name!r} has an annotation that raises {kind}") from error


def _mentions(hint: Any) -> bool:
    return hint is ToolContext or any(_mentions(each) for each in get_args(hint))


def _adapted(
    function: Callable[..., Any], first: inspect.Parameter, hints: dict[str, Any]
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def call_and_wait(ctx: RunContext[StepInput], *args: Any, **kwargs: Any) -> Any:
            return await function(_context(ctx), *args, **kwargs)

        adapted: Callable[..., Any] = call_and_wait
    else:

        @wraps(function)
        def call(ctx: RunContext[StepInput], *args: Any, **kwargs: Any) -> Any:
            return function(_context(ctx), *args, **kwargs)

        adapted = call
    # What the framework reads of a function: PEP 362's signature, and hints of its own.
    annotation = RunContext[StepInput]
    parameters = list(inspect.signature(function).parameters.values())[1:]
    ours = first.replace(annotation=annotation)
    seen = inspect.signature(function).replace(parameters=[ours, *parameters])
    vars(adapted).update(__signature__=seen)
    with_extras = get_type_hints(function, include_extras=True)
    adapted.__annotations__ = {**hints, **with_extras, first.name: annotation}
    del vars(adapted)["__wrapped__"]
    return adapted


def _context(ctx: RunContext[StepInput]) -> ToolContext:
    step = ctx.deps
    return ToolContext(
        conversation_id=step.conversation_id,
        turn_id=step.turn_id,
        user_id=step.user_id,
        call_id=ctx.tool_call_id or "",
        idempotency_key=f"{step.turn_id}/{current_entry()}",
        attempt=step.attempt,
    )
