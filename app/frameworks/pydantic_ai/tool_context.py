"""Tools that want to know for whom they work: a first parameter that is a ToolContext."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

from pydantic_ai import RunContext

from app.frameworks.pydantic_ai.journal import current_entry
from app.steps import StepInput, ToolContext


def with_tool_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """As the framework takes it. The model sees neither the parameter nor what it holds."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is None or _hints(function).get(first.name) is not ToolContext:
        return function
    return _adapted(function, first)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        # An annotation that only a type checker can resolve; the framework says so itself.
        return {}


def _adapted(function: Callable[..., Any], first: inspect.Parameter) -> Callable[..., Any]:
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
    adapted.__annotations__ = {**_hints(function), first.name: annotation}
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
