"""The composition root: from settings to a service that can be served."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI

from app.api.application import create_application
from app.api.services import Services
from app.chat.config import ChatWorkflowConfig
from app.chat.runner import ChatWorkflowRunner
from app.chat.turn import ChatTurn
from app.engine.lease import Lease
from app.engine.local import LocalEngine
from app.engine.recovery import Recovery
from app.executors.direct import DirectExecutor
from app.frameworks.pydantic_ai.agent import PydanticAIAgent
from app.frameworks.pydantic_ai.models import Models, OwnServer, opened_models
from app.frameworks.pydantic_ai.toolsets import load_tools
from app.health import Health
from app.identity.authenticator import Authenticator
from app.identity.keys import Keys
from app.identity.loopback import Loopback
from app.observability.logging import get_logger
from app.privacy.erasure import Erasure
from app.settings import Settings
from app.storage.database import Database, opened_database
from app.storage.erasure_store import ErasureStore
from app.storage.key_store import KeyStore
from app.storage.run_state_store import RunStateStore
from app.storage.schema import SchemaState, migrate, require_usable_schema
from app.storage.transcript_store import TranscriptStore
from app.storage.worker_store import WorkerStore

logger = get_logger()


@dataclass(frozen=True, slots=True)
class Service:
    app: FastAPI
    database: Database
    engine: LocalEngine
    lease: Lease
    recovery: Recovery
    keys: Keys


@asynccontextmanager
async def running_service(settings: Settings, database_url: str) -> AsyncGenerator[Service]:
    """A service whose background work runs until the block ends. Raises ConfigurationError."""
    async with (
        opened_models(settings.chat_model, _own_server(settings)) as models,
        opened_database(database_url, pool_size=settings.chat_db_pool) as database,
    ):
        await prepare_schema(database, auto_migrate=settings.auto_migrate)
        service, erasure = _assemble(settings, database, models)
        await service.lease.register()
        async with asyncio.TaskGroup() as group:
            work = [
                group.create_task(service.lease.keep(service.engine.stop_all)),
                group.create_task(service.recovery.keep_sweeping()),
                group.create_task(erasure.keep_purging()),
            ]
            try:
                yield service
            finally:
                await service.engine.drain(0)
                for task in work:
                    task.cancel()
        await service.lease.release()


async def prepare_schema(database: Database, *, auto_migrate: bool) -> None:
    """Raises SchemaError when the schema is behind and may not be migrated here."""
    if auto_migrate:
        await migrate(database)
        return
    if await require_usable_schema(database) is SchemaState.AHEAD:
        logger.warning("schema_is_newer")


def _own_server(settings: Settings) -> OwnServer | None:
    if settings.chat_model_base_url is None:
        return None
    key = settings.chat_model_api_key
    return OwnServer(settings.chat_model_base_url, None if key is None else key.get_secret_value())


def _assemble(settings: Settings, database: Database, models: Models) -> tuple[Service, Erasure]:
    runs, transcripts, workers = RunStateStore(), TranscriptStore(), WorkerStore()
    turn = ChatTurn(database, runs, transcripts, _executor(settings, models))
    lease = Lease(database, workers, length=settings.chat_lease)
    engine = LocalEngine(turn, lease)
    recovery = Recovery(
        database,
        runs,
        workers,
        lease=lease,
        lease_length=settings.chat_lease,
        held=lambda: engine.held,
    )
    erasure = Erasure(database, ErasureStore(), stop_turn=engine.stop)
    runner = ChatWorkflowRunner(
        database,
        runs,
        transcripts,
        turn,
        engine,
        config=_default_config(settings),
        erase=erasure.erase_conversation,
    )
    keys = Keys(database, KeyStore())
    authenticator: Authenticator = keys if settings.chat_auth == "keys" else Loopback()
    health = Health(database, model=settings.chat_model, is_draining=lambda: engine.is_draining)
    services = Services(
        runner=runner,
        authenticator=authenticator,
        health=health,
        max_body=settings.chat_max_body,
    )
    return Service(create_application(services), database, engine, lease, recovery, keys), erasure


def _executor(settings: Settings, models: Models) -> DirectExecutor:
    modules = settings.tool_modules
    tools = load_tools(modules, timeout=settings.chat_tool_timeout) if modules else None
    agent = PydanticAIAgent(models, retries=settings.chat_model_retries, tools=tools)
    return DirectExecutor(agent)


def _default_config(settings: Settings) -> ChatWorkflowConfig:
    return ChatWorkflowConfig(
        model=settings.chat_model,
        instructions=settings.chat_instructions,
        max_context_turns=settings.chat_max_context_turns,
        turn_timeout=settings.chat_turn_timeout,
        first_token_timeout=settings.chat_first_token_timeout,
    )
