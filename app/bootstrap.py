"""The composition root: from settings to a service that can be served."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.api.application import Front, create_application
from app.api.connections import Connections
from app.api.limits import Limits, OpenStreams, RateLimit
from app.api.state import ApiState
from app.chat.cancelling import Cancelling
from app.chat.config import ChatWorkflowConfig
from app.chat.runner import ChatWorkflowRunner
from app.chat.turn import ChatTurn
from app.engine.forced_end import ForcedEnd
from app.engine.lease import Lease
from app.engine.local import STOP_LIMIT, LocalEngine
from app.engine.recovery import Recovery
from app.engine.takeover import Takeover
from app.engine.watch import Watch
from app.errors import (
    ConfigurationError,
    DatabaseRefusedError,
    DatabaseUnavailableError,
    SchemaError,
)
from app.executors.direct import DirectExecutor
from app.frameworks.pydantic_ai.agent import PydanticAIAgent
from app.frameworks.pydantic_ai.models import Models, OwnServer, opened_models
from app.frameworks.pydantic_ai.toolsets import GuardedToolset, load_tools
from app.health import Health
from app.identity.authenticator import Authenticator
from app.identity.keys import Keys
from app.identity.loopback import Loopback
from app.ids import TurnId
from app.observability.logging import get_logger
from app.privacy.erasure import Erasure
from app.settings import Settings
from app.storage.database import Database, async_url, opened_database
from app.storage.erasure_store import ErasureStore
from app.storage.event_log import EventLog
from app.storage.idempotency_store import IdempotencyStore
from app.storage.journal import Journal
from app.storage.key_store import KeyStore
from app.storage.listener import Listener
from app.storage.notices import CHANGES, EVENTS, RELEASES
from app.storage.run_state_store import RunStateStore
from app.storage.schema import SchemaState, migrate, require_usable_schema
from app.storage.transcript_store import TranscriptStore
from app.storage.worker_store import WorkerStore
from app.streaming.conversation_subscription import ConversationSubscriptions
from app.streaming.conversation_watch import ConversationWatch
from app.streaming.followers import Closing, Followers
from app.streaming.foreign_turns import ForeignTurns
from app.streaming.hints import Hints
from app.streaming.pruning import Pruning
from app.streaming.recorder import Recorder
from app.streaming.subscription import Subscriptions
from app.wire.paths import Paths

logger = get_logger()

# Connections that a burst of requests leaves to the turns that run: for their log, the lease, what
# other processes say of them, and their begin and end.
RESERVED = 4
# Seconds that an erasure waits for its running turn to stop; it is shut out already.
ERASURE_PATIENCE = 1.0
# Seconds between two tries to begin, when the database was away at the start.
BEGIN_PAUSE = 1.0
# Seconds that a shutdown waits for the log of the turns that it hands over.
SETTLE_LIMIT = 1.0
# Seconds that a shutdown waits for the database to know that nothing runs here any more.
RELEASE_LIMIT = 1.0
# Seconds that turns have to stop when nobody waits for them any more.
LAST_LIMIT = 0.5


@dataclass(frozen=True, slots=True)
class Service:
    """The application, its runner for programs that embed it, and what has to be told of the end."""

    app: Front
    runner: ChatWorkflowRunner
    database: Database
    engine: LocalEngine
    lease: Lease
    recorder: Recorder
    connections: Connections
    followers: Followers
    conversation_watch: ConversationWatch
    pruning: Pruning
    keys: Keys

    async def drain(self, grace: float, *, stop_limit: float = STOP_LIMIT) -> None:
        """Takes no more sends, and lets turns end for `grace` seconds. Those that have not are
        handed over: whoever sweeps next goes on with them. Then every stream is closed."""
        if not self.engine.is_closed:
            await self.engine.drain(grace, stop_limit=stop_limit)
            await self.recorder.settle(SETTLE_LIMIT)
        # A database that is away is not waited for: the lease runs out by itself.
        await asyncio.wait([asyncio.ensure_future(self.lease.release())], timeout=RELEASE_LIMIT)
        self.followers.shut_down()
        self.conversation_watch.ring_all()


@dataclass(frozen=True, slots=True)
class Background:
    """What runs beside the requests for as long as the service does."""

    recovery: Recovery
    watch: Watch
    erasure: Erasure
    foreign_turns: ForeignTurns
    listener: Listener

    async def run(self, service: Service) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(service.lease.keep(service.engine.stop_all))
            group.create_task(service.recorder.keep_flushing())
            group.create_task(self.watch.keep_looking())
            group.create_task(self.recovery.keep_sweeping())
            group.create_task(self.erasure.keep_purging())
            group.create_task(service.conversation_watch.keep_looking())
            group.create_task(self.foreign_turns.keep_reading())
            group.create_task(self.listener.keep_listening())
            group.create_task(service.pruning.keep_pruning())


@asynccontextmanager
async def running_service(settings: Settings, database_url: str) -> AsyncGenerator[Service]:
    """A service whose background work runs until the block ends. Raises ConfigurationError.

    When the database is away it is there all the same, answers 503, and begins when it is back.
    """
    direct_url = direct_url_of(settings, database_url)
    async with (
        opened_models(settings.chat_model, _own_server(settings)) as models,
        opened_database(
            database_url, pool_size=settings.chat_db_pool, pooled=settings.is_pooled
        ) as database,
        opened_database(direct_url, pool_size=1) as direct,
    ):
        service, background = _assemble(settings, database, direct, models)

        async def begin() -> None:
            await prepare_schema(settings, database_url)
            await _check_ways(database, direct)
            # Last: what fails is tried again, and this can be done once only.
            await service.lease.register()

        has_begun = await _begins_at_once(begin)
        async with asyncio.TaskGroup() as group:
            work = group.create_task(_work(service, background, None if has_begun else begin))
            try:
                yield service
            finally:
                await service.drain(0, stop_limit=LAST_LIMIT)
                work.cancel()


async def _begins_at_once(begin: Callable[[], Awaitable[None]]) -> bool:
    """Raises what waiting will not mend: a refusal, or a schema that is behind."""
    try:
        await begin()
    except DatabaseRefusedError:
        raise
    except UnicodeError:
        raise ConfigurationError("DATABASE_URL has a host that is none") from None
    except DatabaseUnavailableError as error:
        logger.warning("database_away_at_start", reason=str(error))
        return False
    return True


async def _work(
    service: Service, background: Background, begin: Callable[[], Awaitable[None]] | None
) -> None:
    while begin is not None:
        await asyncio.sleep(BEGIN_PAUSE)
        try:
            await begin()
        except (DatabaseUnavailableError, SchemaError, ConfigurationError) as error:
            logger.warning("not_begun", reason=str(error), retry_in_s=BEGIN_PAUSE)
        else:
            logger.info("begun_late")
            break
    await background.run(service)


def direct_url_of(settings: Settings, database_url: str) -> str:
    """The server's own, where `database_url` may lead to a pooler. Raises ConfigurationError."""
    if settings.database_direct_url is None:
        return database_url
    url = settings.database_direct_url.get_secret_value()
    async_url(url, name="DATABASE_DIRECT_URL")
    return url


async def prepare_schema(settings: Settings, database_url: str) -> None:
    """Raises SchemaError when the schema is behind and may not be migrated here."""
    if settings.auto_migrate:
        direct_url = direct_url_of(settings, database_url)
        async with opened_database(direct_url, pool_size=1, command_timeout=None) as database:
            await migrate(database)
        return
    async with opened_database(
        database_url, pool_size=1, command_timeout=None, pooled=settings.is_pooled
    ) as database:
        if await require_usable_schema(database) is SchemaState.AHEAD:
            logger.warning("schema_is_newer")


async def _check_ways(database: Database, direct: Database) -> None:
    """Raises ConfigurationError. The direct way may be away: it only makes things come sooner."""
    if await database.lacks_timeouts():
        logger.warning("no_lock_timeout", hint="PgBouncer: see deploy/pgbouncer.ini")
    try:
        is_the_same = await database.is_the_same_as(direct)
    except DatabaseRefusedError:
        raise
    except DatabaseUnavailableError as error:
        logger.warning("direct_database_away", reason=str(error))
        return
    if not is_the_same:
        raise ConfigurationError("DATABASE_DIRECT_URL leads to another database than DATABASE_URL")


def _own_server(settings: Settings) -> OwnServer | None:
    if settings.chat_model_base_url is None:
        return None
    key = settings.chat_model_api_key
    return OwnServer(settings.chat_model_base_url, None if key is None else key.get_secret_value())


def _assemble(
    settings: Settings, database: Database, direct: Database, models: Models
) -> tuple[Service, Background]:
    runs, transcripts, workers = RunStateStore(), TranscriptStore(), WorkerStore()
    event_log, followers, paths = EventLog(), Followers(), Paths(settings.chat_root_path)
    recorder = Recorder(database, event_log, followers, paths)
    request_keys = IdempotencyStore()
    tools = _tools(settings)
    executor = DirectExecutor(
        PydanticAIAgent(models, retries=settings.chat_model_retries, tools=tools)
    )
    lease = Lease(database, workers, length=settings.chat_lease)
    turn = ChatTurn(
        database,
        runs,
        transcripts,
        request_keys,
        Journal(),
        executor,
        recorder,
        may_run=lease.is_current,
    )
    forced_end = ForcedEnd(database, runs, transcripts, event_log, paths)

    def read_elsewhere(turn_id: TurnId) -> None:
        followers.close(turn_id, Closing.LOST)

    engine = LocalEngine(
        turn,
        lease,
        forced_end,
        max_turns=settings.chat_max_turns_per_process,
        on_end=read_elsewhere,
    )
    recovery = Recovery(
        database,
        runs,
        workers,
        engine,
        Takeover(database, runs, transcripts, event_log),
        forced_end,
        lease=lease,
        lease_length=settings.chat_lease,
        attempts=settings.chat_turn_attempts,
    )
    watch = Watch(
        database,
        runs,
        claims=lambda: engine.claims,
        interrupt=engine.interrupt,
        on_lost=read_elsewhere,
    )

    async def stop_erased(turn_id: TurnId) -> None:
        followers.close(turn_id, Closing.DELETED)
        await engine.stop(turn_id, ERASURE_PATIENCE)

    erasure = Erasure(database, ErasureStore(), stop_turn=stop_erased)
    asked = database.of_which(max(1, settings.chat_db_pool - RESERVED))
    subscriptions = Subscriptions(asked, event_log, transcripts, followers, paths)
    conversation_watch = ConversationWatch(database, runs)
    runner = ChatWorkflowRunner(
        asked,
        runs,
        transcripts,
        request_keys,
        turn,
        engine,
        subscriptions,
        ConversationSubscriptions(asked, runs, transcripts, subscriptions, conversation_watch),
        Cancelling(database, runs, transcripts, engine, forced_end, followers),
        config=_default_config(settings, () if tools is None else tools.names),
        erase=erasure.erase_conversation,
    )
    keys = Keys(asked, KeyStore())
    authenticator: Authenticator = (
        keys if settings.chat_auth == "keys" else Loopback(settings.cors_origins)
    )
    health = Health(
        database,
        model=settings.chat_model,
        is_draining=lambda: engine.is_draining,
        may_run_turns=lambda: lease.is_held,
    )
    connections = Connections()
    state = ApiState(
        runner=runner,
        paths=paths,
        authenticator=authenticator,
        health=health,
        limits=_limits(settings),
        max_body=settings.chat_max_body,
        heartbeat=settings.chat_heartbeat,
        send_timeout=settings.chat_send_timeout,
        abort_connection=connections.abort,
    )
    pruning = Pruning(
        database, event_log, request_keys, event_retention=settings.chat_event_retention
    )
    front = Front(
        create_application(state),
        base_path=settings.chat_root_path,
        cors_origins=settings.cors_origins,
        trusted_proxies=settings.trusted_proxies,
    )
    service = Service(
        app=front,
        runner=runner,
        database=database,
        engine=engine,
        lease=lease,
        recorder=recorder,
        connections=connections,
        followers=followers,
        conversation_watch=conversation_watch,
        pruning=pruning,
        keys=keys,
    )
    hints = Hints(
        followers,
        conversation_watch,
        held=lambda: {claim.run_id for claim in engine.claims},
        look_after_turns=watch.bell.ring,
        sweep=recovery.bell.ring,
    )
    heard = {EVENTS: hints.events, CHANGES: hints.changes, RELEASES: hints.releases}
    background = Background(
        recovery,
        watch,
        erasure,
        ForeignTurns(database, event_log, followers),
        Listener(direct, heard),
    )
    return service, background


def _limits(settings: Settings) -> Limits:
    return Limits(
        requests=RateLimit("requests", limit=settings.chat_request_limit, window=1),
        sends=RateLimit("sends", limit=settings.chat_rate_limit, window=60),
        streams=OpenStreams(settings.chat_streams_per_caller),
    )


def _tools(settings: Settings) -> GuardedToolset | None:
    modules = settings.tool_modules
    return load_tools(modules, timeout=settings.chat_tool_timeout) if modules else None


def _default_config(settings: Settings, tools: tuple[str, ...]) -> ChatWorkflowConfig:
    return ChatWorkflowConfig(
        model=settings.chat_model,
        instructions=settings.chat_instructions,
        max_context_turns=settings.chat_max_context_turns,
        turn_timeout=settings.chat_turn_timeout,
        first_token_timeout=settings.chat_first_token_timeout,
        tools=tools,
    )
