"""The framework's durable operations over our journal: what has finished is not done again.

Its public interface for engines of durable execution: https://pydantic.dev/docs/ai, "Durable
execution", "Backends". Only steps with tools run so: without, the one answer of the model ends the
turn, and its end is committed at once.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
)

from app.steps import StepJournal

_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,100}")

_entry: ContextVar[str] = ContextVar("entry")


def current_entry() -> str:
    """The name, within its turn, of the tool call that is being made."""
    return _entry.get()


class Journalled(BaseDurabilityCapability[Any]):
    """For one run of an agent. `handler` sees the model's events as they come.

    `skew` is how far this machine's clock is behind the database's: times in the journal are the
    database's, those of the framework this machine's.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="chat-workflow",
        durable_unit_noun="journal entry",
        durable_unit_plural="journal entries",
        durable_container_noun="turn",
        codec=JSON_CODEC,
    )

    def __init__(
        self, journal: StepJournal, handler: EventStreamHandler[Any], skew: timedelta
    ) -> None:
        super().__init__(event_stream_handler=handler, name="step")
        self._backend = _Backend(journal, skew)

    @property
    def in_durable_context(self) -> bool:
        return True

    def get_durable_operation_backend(self) -> "_Backend":
        return self._backend

    def is_replayed(self, call_id: str) -> bool:
        """Whether the result of the latest tool call of this id came out of the journal."""
        return call_id in self._backend.replayed


class _Backend(JournalCallableOperationBackend[None]):
    """Entries are named by what they are, not by their order: tools run side by side.

    `request/2` is the second request that was answered; `tool/2/call_a/1` the first call that this
    answer made under that id.
    """

    def __init__(self, journal: StepJournal, skew: timedelta) -> None:
        nothing = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        super().__init__(agent_name="step", config=nothing)
        self._journal = journal
        self._skew = skew
        self._requests = 0
        self._calls: Counter[str] = Counter()
        self.replayed: set[str] = set()

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        match operation_id:
            case ModelRequestId():
                return await self._request(body)
            case ToolsetCallToolId():
                return await self._call(_call_id(cache_key), body)
            case _:
                # Events are told anew, and what is asked of tools beside calls has no effects.
                return await body()

    async def _request(self, body: Callable[[], Awaitable[object]]) -> object:
        """One that fails is no entry, and the next try takes its place."""
        name = f"request/{self._requests + 1}"
        found = self._found(name)
        if found is not None:
            self._requests += 1
            return _moved(found, -self._skew)
        result = cast("dict[str, Any]", await body())
        if _goes_on(result):
            await self._journal.record(name, _dumped(_moved(result, self._skew)))
        self._requests += 1
        return result

    async def _call(self, call_id: str, body: Callable[[], Awaitable[object]]) -> object:
        call = f"tool/{self._requests}/{_plain(call_id)}"
        self._calls[call] += 1
        name = f"{call}/{self._calls[call]}"
        result = self._found(name)
        if result is not None:
            self.replayed.add(call_id)
            return result
        await self._journal.require_ours()
        self.replayed.discard(call_id)
        token = _entry.set(name)
        try:
            result = await body()
        finally:
            _entry.reset(token)
        await self._journal.record(name, _dumped(result))
        return result

    def _found(self, name: str) -> dict[str, Any] | None:
        """Never null: a response and a call's result are objects."""
        text = self._journal.find(name)
        return None if text is None else json.loads(text)


def _call_id(cache_key: tuple[object, ...]) -> str:
    """What identifies a call holds the context that it is made in."""
    contexts = [cast("RunContext[Any]", each) for each in cache_key if isinstance(each, RunContext)]
    return contexts[0].tool_call_id or ""


def _plain(call_id: str) -> str:
    """A model may give its calls any name; in ours it stands for itself only if it is a plain one."""
    if _PLAIN.fullmatch(call_id):
        return call_id
    return "sha256:" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()


def _goes_on(response: dict[str, Any]) -> bool:
    """Whether more follows on this response, so that it must not be asked for again."""
    calls = any(part["part_kind"] == "tool-call" for part in response["parts"])
    return calls or response["state"] == "suspended"


def _moved(response: dict[str, Any], by: timedelta) -> dict[str, Any]:
    """The same response, at that much later a time."""
    moment = datetime.fromisoformat(response["timestamp"]) + by
    return {**response, "timestamp": moment.isoformat()}


def _dumped(result: object) -> str:
    """Plain ASCII: what PostgreSQL does not take as text is escaped."""
    return json.dumps(result, separators=(",", ":"))
