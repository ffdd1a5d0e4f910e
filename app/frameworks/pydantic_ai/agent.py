"""A step to an agent run: StepInput in, events out, a StepResult at the end, whatever happens."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai import Agent, RunContext, RunUsage, capture_run_messages
from pydantic_ai import exceptions as ex
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset

from app.errors import (
    LostOwnershipError,
    ModelError,
    ModelRateLimitedError,
    ModelTimeoutError,
    StepError,
)
from app.events.stream_event import StepEvent
from app.frameworks.pydantic_ai.clock import shifted, skew
from app.frameworks.pydantic_ai.journal import Journalled
from app.frameworks.pydantic_ai.messages import is_count, to_conversation, to_model
from app.frameworks.pydantic_ai.models import BuiltModel, Models
from app.frameworks.pydantic_ai.stream import EventMapper
from app.frameworks.pydantic_ai.toolsets import GuardedToolset
from app.messages.message import INTERRUPTED_RESULT, Role
from app.observability.logging import get_logger
from app.runs import IncompleteReason, TurnStatus, Usage
from app.steps import StepInput, StepOutput, StepResult

logger = get_logger()

BACKOFF = 0.2
LONGEST_WAIT = 2.0
LONGEST_RETRY_AFTER = 86_400
# A turn's consumer only has to note an event; a full buffer slows the model down, never loses.
BUFFER = 256

_TRANSIENT = (
    ex.ModelRateLimitError,
    ex.ModelServerError,
    ex.ModelUnavailableError,
    ex.ModelConnectionError,
)


@dataclass
class RetryBeforeFirstEvent(AbstractCapability[StepInput]):
    """Tries a failed request again, `more` times at most, and never after something was shown.

    A provider that asks for more than two seconds is not waited for: its wish is passed on.
    """

    more: int

    async def on_model_request_error(
        self,
        ctx: RunContext[StepInput],
        *,
        request_context: ModelRequestContext,
        error: Exception,
    ) -> ModelResponse:
        if not isinstance(error, _TRANSIENT) or request_context.attempt > self.more:
            raise error
        wait = error.retry_after
        if wait is None:
            wait = BACKOFF * 2 ** (request_context.attempt - 1)
        if wait > LONGEST_WAIT:
            raise error
        await asyncio.sleep(wait)
        raise ex.RetryModelRequest


class PydanticAIAgent:
    def __init__(self, models: Models, *, retries: int, tools: GuardedToolset | None) -> None:
        self._models = models
        self._tools = tools
        self._retries = retries

    async def stream(self, step: StepInput) -> AsyncGenerator[StepOutput]:
        """Yields events and, last, a StepResult. Cancelling the task yields a CANCELLED result."""
        try:
            built = await self._models.get(step.model)
        except ModelError as error:
            yield StepResult(status=TurnStatus.FAILED, error=error)
            return
        tools = [] if self._tools is None else [self._tools.only(step.tools)]
        run = _Run(built, step, tools, retries=self._retries)
        task = asyncio.create_task(run.execute(), name=f"agent {step.turn_id}")
        try:
            try:
                while (event := await run.events.get()) is not None:
                    yield event
            except asyncio.CancelledError:
                run.stopped = True
                await _stop(task)
            for event in run.left_over():
                yield event
            yield run.result()
        finally:
            await _stop(task)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class _Run:
    """One run of an agent of its own, which is bound to the step's journal. `events` ends with None."""

    def __init__(
        self,
        built: BuiltModel,
        step: StepInput,
        tools: Sequence[AbstractToolset[StepInput]],
        *,
        retries: int,
    ) -> None:
        self.events: asyncio.Queue[StepEvent | None] = asyncio.Queue(BUFFER)
        self._built = built
        self._step = step
        self._tools = tools
        self._retries = retries
        self._skew = skew(step.now)
        self._journalled = Journalled(step.journal, self._handle, self._skew)
        self._mapper = EventMapper(self._journalled.is_replayed)
        self._usage = RunUsage()
        self._messages: list[ModelMessage] = []
        self._failure: BaseException | None = None
        self.stopped = False

    async def execute(self) -> None:
        """Never raises, but when it is stopped: what went wrong is kept for `result`."""
        try:
            with capture_run_messages() as self._messages:
                await self._run_agent()
        except asyncio.CancelledError as error:
            self._failure = error
            if self.stopped:
                raise
        except (ex.AgentRunError, ex.UserError, ExceptionGroup, LostOwnershipError) as error:
            self._failure = error
        except Exception as error:
            # A provider may send anything, and its client may raise anything over it.
            logger.exception("agent_broke", turn_id=str(self._step.turn_id))
            self._failure = error
        await self.events.put(None)

    async def _run_agent(self) -> None:
        step = self._step
        await self._agent().run(
            step.prompt.content,
            deps=step,
            message_history=resumable(to_model(step.history)),
            instructions=step.instructions,
            event_stream_handler=None if self._tools else self._handle,
            model_settings=_settings(step),
            timeout=step.time_limit,
            usage=self._usage,
            run_id=self._run_id,
            conversation_id=str(step.conversation_id),
        )

    def _agent(self) -> Agent[StepInput, str | None]:
        """With tools there may be more than one request, and finished ones are journalled."""
        # None is allowed: an empty answer is judged here, not asked for again by the framework.
        output: Any = str | None
        retrying = RetryBeforeFirstEvent(self._retries)
        return Agent(
            self._built.model,
            deps_type=StepInput,
            output_type=output,
            retries={"output": 0, "tools": 1},
            toolsets=self._tools,
            capabilities=[retrying, self._journalled] if self._tools else [retrying],
        )

    def left_over(self) -> Sequence[StepEvent]:
        """What was still in the buffer when the run was stopped, and its last, cut-off message."""
        events: list[StepEvent] = []
        while not self.events.empty():
            event = self.events.get_nowait()
            if event is not None:
                events.append(event)
        lost = self._mapper.lost(self._new_messages())
        if lost is not None:
            self._messages.append(replace(lost, run_id=self._run_id))
        new = self._new_messages()
        events.extend(self._mapper.announce(new))
        events.extend(self._mapper.interrupted())
        events.extend(self._mapper.never_made(new))
        return events

    def result(self) -> StepResult:
        new = self._new_messages()
        responses = [message for message in new if isinstance(message, ModelResponse)]
        last = responses[-1] if responses else None
        result = StepResult(
            status=TurnStatus.COMPLETED,
            messages=to_conversation(new, self._mapper.assistant_ids),
            usage=self._counted(),
            model=last.model_name if last is not None else None,
            finish_reason=last.finish_reason if last is not None else None,
        )
        if self.stopped:
            return replace(result, status=TurnStatus.CANCELLED)
        if self._failure is not None:
            return _failed(result, self._failure)
        return _judged(result)

    async def _handle(
        self, ctx: RunContext[StepInput], stream: AsyncIterable[AgentStreamEvent]
    ) -> None:
        for event in self._mapper.announce(self._own(ctx.messages)):
            await self.events.put(event)
        async for framework_event in stream:
            for event in self._mapper.map(framework_event):
                await self.events.put(event)

    @property
    def _run_id(self) -> str:
        return f"{self._step.turn_id}/{self._step.attempt}"

    def _own(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        own = [message for message in messages if message.run_id == self._run_id]
        return [shifted(message, self._skew) for message in own]

    def _new_messages(self) -> list[ModelMessage]:
        """What this run added, but the prompt, which was stored before it began."""
        own = [
            replace(message, run_id=None, conversation_id=None)
            for message in self._own(self._messages)[1:]
        ]
        whole = [without_cut_off_calls(message) for message in own]
        return paired([m for m in whole if isinstance(m, ModelRequest) or m.parts])

    def _counted(self) -> Usage:
        usage = self._usage
        # What an earlier attempt was asked for and did not live to count is missing.
        estimated = self._failure is not None or self._step.attempt > 1
        if not self._built.counts_tokens or usage.total_tokens == 0:
            return Usage(estimated=estimated and usage.requests > 0)
        return Usage(
            input_tokens=_count(usage.input_tokens),
            output_tokens=_count(usage.output_tokens),
            cache_read_tokens=_count(usage.cache_read_tokens) or None,
            reasoning_tokens=_count(usage.output_reasoning_tokens) or None,
            cost=usage.cost,
            estimated=estimated,
        )


def _count(value: int) -> int | None:
    """Providers have sent fractions and worse: what is no count is not known."""
    return value if is_count(value) else None


def without_cut_off_calls(message: ModelMessage) -> ModelMessage:
    """A call whose arguments were cut off was never made."""
    if not isinstance(message, ModelResponse) or message.state == "complete":
        return message
    return replace(message, parts=[p for p in message.parts if not isinstance(p, ToolCallPart)])


def paired(messages: list[ModelMessage]) -> list[ModelMessage]:
    """With a result for each call: those that were still running were interrupted."""
    missing = [ToolReturnPart(*call, outcome="interrupted") for call in _unanswered(messages)]
    if not missing:
        return messages
    last = messages[-1]
    if isinstance(last, ModelRequest):
        return [*messages[:-1], replace(last, parts=[*last.parts, *missing])]
    return [*messages, ModelRequest(parts=missing, state="interrupted")]


def _unanswered(messages: Sequence[ModelMessage]) -> list[tuple[str, str, str]]:
    """Name, text of the result, and id."""
    answered = {
        part.tool_call_id
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
    calls = [c for m in messages if isinstance(m, ModelResponse) for c in m.tool_calls]
    return [
        (call.tool_name, INTERRUPTED_RESULT, call.tool_call_id)
        for call in calls
        if call.tool_call_id not in answered
    ]


def resumable(history: list[ModelMessage]) -> list[ModelMessage]:
    """A history that ends in unanswered tool calls is refused for ever, unless marked as cut off."""
    if not history:
        return history
    last = history[-1]
    if isinstance(last, ModelResponse) and last.tool_calls and last.state == "complete":
        return [*history[:-1], replace(last, state="interrupted")]
    return history


def _settings(step: StepInput) -> ModelSettings:
    extra: dict[str, Any] = {"max_retries": 0, "first_event_timeout": step.first_token_limit}
    return ModelSettings(timeout=step.time_limit, **extra)


def _judged(result: StepResult) -> StepResult:
    """A run that came to its end may still have been cut short, or have said nothing."""
    match result.finish_reason:
        case "length":
            return _incomplete(result, IncompleteReason.OUTPUT_LIMIT)
        case "content_filter":
            return _incomplete(result, IncompleteReason.CONTENT_FILTER)
        case _ if result.messages and result.messages[-1].role is Role.ASSISTANT and result.output:
            return result
        case _:
            error = ModelError("the model gave an empty answer")
            return replace(result, status=TurnStatus.FAILED, error=error)


def _failed(result: StepResult, failure: BaseException) -> StepResult:
    match failure:
        case ex.RunTimedOut():
            return _incomplete(result, IncompleteReason.TIME_LIMIT)
        case ex.UsageLimitExceeded():
            return _incomplete(result, IncompleteReason.REQUEST_LIMIT)
        case ex.ContentFilterError():
            return _incomplete(result, IncompleteReason.CONTENT_FILTER)
        case ex.OutputTokenLimitExceeded():
            return _incomplete(result, IncompleteReason.OUTPUT_LIMIT)
        case _:
            return replace(result, status=TurnStatus.FAILED, error=_error(failure))


def _seconds(wait: float) -> int:
    return int(min(max(0, round(wait)), LONGEST_RETRY_AFTER))


def _incomplete(result: StepResult, reason: IncompleteReason) -> StepResult:
    return replace(result, status=TurnStatus.INCOMPLETE, reason=reason)


def _error(failure: BaseException) -> StepError:
    """Our error for the framework's. Its text may hold what the provider said: it stays behind."""
    name = type(failure).__name__
    match failure:
        case ex.ModelRequestTimeout() | ex.ModelTimeoutError():
            return ModelTimeoutError(name)
        case ex.ModelRateLimitError() | ex.ModelQuotaExceededError():
            wait = failure.retry_after
            return ModelRateLimitedError(name, None if wait is None else _seconds(wait))
        case ex.ModelHTTPError():
            return ModelError(f"{name}, HTTP status {failure.status_code}")
        case _:
            return ModelError(name)
