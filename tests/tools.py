"""Tools for the scripted model to call."""

import asyncio
import json
import math
import time
from pathlib import Path

from pydantic_ai import ToolReturn

from app.steps import ToolContext


async def sleep(seconds: float = 5) -> str:
    """Works for some seconds."""
    await asyncio.sleep(seconds)
    return "slept"


def echo(text: str) -> str:
    """Gives the text back."""
    return text


def fail() -> str:
    """Fails with a password in its message."""
    raise RuntimeError("postgres://hunter2")


def odd_values() -> dict[str, object]:
    """What JSON and PostgreSQL do not take as it is."""
    return {"nan": math.nan, "large": 10**40, "text": "a\x00b\ud800", "bytes": b"\xff"}


async def cancelled_inside() -> str:
    """Awaits something that was cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


def leave() -> str:
    """Tries to end the process."""
    raise SystemExit(3)


def huge_number() -> int:
    """More digits than Python writes."""
    return 10**5000


def long_text(length: int) -> str:
    """A text of that many characters."""
    return "x" * length


def tool_return(text: str) -> ToolReturn[str]:
    """The framework's own, with more than a value."""
    return ToolReturn(return_value=text, content="and this", metadata={"x": 1})


def unsendable_return() -> ToolReturn[object]:
    """Holds what nobody can send."""
    return ToolReturn(return_value=object())


def like_a_file() -> dict[str, object]:
    """An object that looks like one of the framework's own."""
    return {"found": [{"kind": "binary", "data": "aGk=", "media_type": "image/png"}]}


async def slow_to_stop() -> str:
    """Takes three seconds to clean up when it is stopped."""
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(3)
    return "never"


def block(seconds: float) -> str:
    """Keeps its thread busy, as plain functions may."""
    time.sleep(seconds)
    return "done"


def note(context: ToolContext, path: str, seconds: float = 0) -> str:
    """Leaves a line in a file, which is its side effect, and returns a while later."""
    line = {"key": context.idempotency_key, "at": time.time(), "call_id": context.call_id}
    line |= {"user_id": context.user_id, "attempt": context.attempt}
    line |= {"turn_id": str(context.turn_id), "conversation_id": str(context.conversation_id)}
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")
    time.sleep(seconds)
    return "noted"


async def note_and_fail(context: ToolContext, path: str) -> str:
    """Leaves a line in a file and fails."""
    note(context, path)
    raise RuntimeError("after the effect")
