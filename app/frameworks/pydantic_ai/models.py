"""From a model's name to a model, built once and kept: each has one HTTP client of its own."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models import Model, create_async_httpx2_client, infer_model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from app.errors import ConfigurationError, ModelError

DEMO = "demo"
CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 600.0
# Decides which signed parts of a history go back to the server, so it must stay what it is.
OWN_SERVER = "chat-workflow"
NO_KEY = "no-key"

# A stream that ends without a finish reason was cut off: never a complete answer.
_STRICT = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)


@dataclass(frozen=True, slots=True)
class OwnServer:
    """An OpenAI-compatible server: vLLM, Ollama, a gateway."""

    base_url: str
    api_key: str | None


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """`counts_tokens` is False where the figures are made up, as the demo model's are."""

    model: Model
    counts_tokens: bool


class Models:
    """Every model that a conversation may name. The configured one is built at the start."""

    def __init__(self, configured: str, own_server: OwnServer | None, kept: AsyncExitStack) -> None:
        self.configured = configured
        self._own_server = own_server
        self._kept = kept
        self._built: dict[str, BuiltModel] = {DEMO: _demo()}

    async def get(self, name: str) -> BuiltModel:
        """Raises ModelError when there is no such model with this configuration."""
        if name not in self._built:
            model = self._build(name)
            self._built[name] = BuiltModel(model, counts_tokens=True)
            # Entered once for all runs: else the last of them would close the HTTP client.
            await self._kept.enter_async_context(model)
        return self._built[name]

    def _build(self, name: str) -> Model:
        own = self._own_server
        # A bare name was always meant for the own server, also when another is configured by now.
        if own is not None and (name == self.configured or ":" not in name):
            return self._on_own_server(name, own)
        try:
            model = infer_model(name)
        except (UserError, ImportError) as error:
            if own is not None:
                return self._on_own_server(name, own)
            raise ModelError(str(error)) from error
        if isinstance(model, OpenAIChatModel) and model.provider is not None:
            return type(model)(model.model_name, provider=model.provider, profile=_STRICT)
        return model

    def _on_own_server(self, name: str, server: OwnServer) -> Model:
        client = AsyncOpenAI(
            base_url=server.base_url,
            api_key=server.api_key or NO_KEY,
            http_client=create_async_httpx2_client(
                timeout=httpx2.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
            ),
            max_retries=0,
        )
        # The vendor's client takes these from OPENAI_… variables, which are not for this server.
        client.organization = client.project = None
        self._kept.push_async_callback(client.close)
        provider = OpenAICompatibleProvider(OWN_SERVER, openai_client=client)
        return OpenAIChatModel(name, provider=provider, profile=_STRICT)


@asynccontextmanager
async def opened_models(configured: str, own_server: OwnServer | None) -> AsyncGenerator[Models]:
    """Models whose connections are closed at the end of the block.

    Raises ConfigurationError when the configured model cannot be built.
    """
    async with AsyncExitStack() as kept:
        models = Models(configured, own_server, kept)
        try:
            await models.get(configured)
        except ModelError as error:
            raise ConfigurationError(f"CHAT_MODEL={configured!r}: {error}") from error
        yield models


# ── the model without a key ──────────────────────────────────────────────────────────────────────

_NAME = re.compile(r"\bmy name is (\w+)", re.IGNORECASE)


def _demo() -> BuiltModel:
    model = FunctionModel(stream_function=_demo_stream, model_name=DEMO)
    return BuiltModel(model, counts_tokens=False)


async def _demo_stream(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for word in re.findall(r"\S+\s*", demo_answer(_prompts(messages), _answers(messages))):
        yield word


def demo_answer(prompts: Sequence[str], answers: Sequence[str]) -> str:
    """What the demo model says: enough to see that a conversation remembers."""
    prompt, earlier = prompts[-1], prompts[:-1]
    question = prompt.lower()
    names = [name for text in prompts for name in _NAME.findall(text)]
    if "my name" in question and "?" in question:
        return f"Your name is {names[-1]}." if names else "You have not told me your name."
    if "repeat" in question or "what did i say" in question:
        if not earlier:
            return "You have not said anything before this."
        return f"You said: {earlier[-1]}"
    if "what did you say" in question:
        return f"I said: {answers[-1]}" if answers else "I have not said anything before this."
    told = f" You have said {len(earlier)} thing(s) before." if earlier else ""
    return f"You said: {prompt}{told} I am the built-in demo model; set CHAT_MODEL to talk to a real one."


def _prompts(messages: Sequence[ModelMessage]) -> list[str]:
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    parts = [part for request in requests for part in request.parts]
    prompts = [part.content for part in parts if isinstance(part, UserPromptPart)]
    return [prompt for prompt in prompts if isinstance(prompt, str)]


def _answers(messages: Sequence[ModelMessage]) -> list[str]:
    return [m.text for m in messages if isinstance(m, ModelResponse) and m.text]
