"""The connection pool and the two ways to use it: one statement by itself, or a transaction."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from copy import copy
from typing import Any, TypeAlias

import asyncpg
from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DisconnectionError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from app.errors import (
    ConfigurationError,
    DatabaseRefusedError,
    DatabaseUnavailableError,
    KeyTakenError,
    LostOwnershipError,
    StatementDeclinedError,
)
from app.messages.codec import dump_json

# asyncpg ships no types. A driver is its Connection, a row its Record.
Driver: TypeAlias = Any
Row: TypeAlias = Mapping[str, Any]

IDEMPOTENCY_KEY = "idempotency_keys_pkey"
TURN = "turns_pkey"
LockTimeoutError: type[Exception] = asyncpg.LockNotAvailableError

CONNECT_TIMEOUT = 5
POOL_TIMEOUT = 10
# Of any one statement; an answer of the service takes no longer when the server is frozen.
COMMAND_TIMEOUT = 10
LOCK_TIMEOUT = "5s"
_SERVER_SETTINGS = {
    "application_name": "chat-workflow",
    "timezone": "UTC",
}
# Those that PgBouncer does not take from a client: behind one, its `connect_query` sets them.
_TIMEOUTS = {
    "lock_timeout": LOCK_TIMEOUT,
    # Of a process that is frozen, or whose host is lost, in the middle of a transaction: its locks
    # would hold up everyone else. Our transactions never wait for anything but the database.
    "idle_in_transaction_session_timeout": "5s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

_UNPOOLED = {"server_settings": {**_SERVER_SETTINGS, **_TIMEOUTS}}
# A statement that was prepared in one session is not known in the next; the first is the driver's
# own cache, the second that of SQLAlchemy.
_POOLED = {
    "server_settings": _SERVER_SETTINGS,
    "statement_cache_size": 0,
    "prepared_statement_cache_size": 0,
}

_REFUSED = (
    asyncpg.InvalidPasswordError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
)
# The server has answered: of such a statement nothing was stored.
_DECLINED = (
    asyncpg.LockNotAvailableError,
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
)
_UNAVAILABLE = (
    OSError,
    PoolTimeoutError,
    OperationalError,
    InterfaceError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    *_DECLINED,
    # The schema is not there yet; `health.py` says so too.
    asyncpg.UndefinedTableError,
    *_REFUSED,
)


class Database:
    """A pool of at most `pool_size` connections to one PostgreSQL."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int,
        command_timeout: float | None = COMMAND_TIMEOUT,
        pooled: bool = False,
    ) -> None:
        """`command_timeout` in seconds, for one statement; None: no limit, as migrations need.

        `pooled`: a pooler stands before the server and may give each transaction another session.
        """
        self.url = async_url(url)
        self.engine: AsyncEngine = create_async_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT,
            # What people wrote stands in parameters: it has no business in an error's text.
            hide_parameters=True,
            json_serializer=dump_json,
            json_deserializer=json.loads,
            connect_args={
                "timeout": CONNECT_TIMEOUT,
                "command_timeout": command_timeout,
                **(_POOLED if pooled else _UNPOOLED),
            },
        )
        event.listen(self.engine.sync_engine, "checkout", _refuse_dead)
        self._gate: asyncio.Semaphore | None = None

    def of_which(self, places: int) -> "Database":
        """The same pool, but whoever uses it through this has `places` of its connections at most."""
        part = copy(self)
        part._gate = asyncio.Semaphore(places)
        return part

    @asynccontextmanager
    async def _place(self) -> AsyncGenerator[None]:
        """Raises TimeoutError after as long as one waits for the pool itself."""
        if self._gate is None:
            yield
            return
        async with asyncio.timeout(POOL_TIMEOUT):
            await self._gate.acquire()
        try:
            yield
        finally:
            self._gate.release()

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[AsyncConnection]:
        """A connection on which each statement commits by itself."""
        async with database_errors(), self._place(), self.engine.connect() as connection:
            yield await connection.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction: committed at the end of the block, rolled back by an exception."""
        async with database_errors(), self._place(), self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def statement(self) -> AsyncGenerator[Driver]:
        """The driver's own connection, for one hand-written statement that commits by itself.

        For the few statements of a turn, where building them anew would cost more than they do.
        """
        async with database_errors(), self._place(), self.engine.connect() as connection:
            raw = await connection.get_raw_connection()
            driver: Driver = raw.driver_connection
            try:
                yield driver
            except BaseException:
                # SQLAlchemy did not see this failure: keep a broken connection out of the pool.
                if driver.is_closed():
                    await connection.invalidate()
                raise

    @asynccontextmanager
    async def locked(self, key: int) -> AsyncGenerator[Driver | None]:
        """The driver in a transaction that holds this advisory lock; None when another has it."""
        async with self.statement() as driver, driver.transaction():
            mine = await driver.fetchval("SELECT pg_try_advisory_xact_lock($1)", key)
            yield driver if mine else None

    async def is_the_same_as(self, other: "Database") -> bool:
        """Whether both lead to one database: a lock of the one is then seen by the other."""
        key = secrets.randbits(62)
        async with self.locked(key), other.locked(key) as free:
            return free is None

    async def lacks_timeouts(self) -> bool:
        """Whether a statement would wait for a lock, or a dead client hold one, without end."""
        async with self.statement() as driver:
            return await driver.fetchval(
                "SELECT '0' IN (current_setting('lock_timeout'), "
                "current_setting('idle_in_transaction_session_timeout'))"
            )

    @property
    def checked_out(self) -> int:
        """How many connections are in use now."""
        pool = self.engine.pool
        return pool.checkedout() if isinstance(pool, QueuePool) else 0


@asynccontextmanager
async def opened_database(
    url: str,
    *,
    pool_size: int,
    command_timeout: float | None = COMMAND_TIMEOUT,
    pooled: bool = False,
) -> AsyncGenerator[Database]:
    """A database whose connections are closed at the end of the block."""
    database = Database(url, pool_size=pool_size, command_timeout=command_timeout, pooled=pooled)
    try:
        yield database
    finally:
        await database.engine.dispose()


def data_errors() -> tuple[type[Exception], ...]:
    """What the server refuses for its content: it would refuse it again."""
    return (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


@asynccontextmanager
async def database_errors() -> AsyncGenerator[None]:
    """Gives the errors of driver and pool our own names, where we have one for them."""
    try:
        yield
    except (TimeoutError, SQLAlchemyError, asyncpg.PostgresError, *_UNAVAILABLE) as error:
        ours = _ours(error)
        if ours is None:
            raise
        raise ours from error


def _ours(error: BaseException) -> Exception | None:
    """SQLAlchemy wraps the driver's error, and its own adapter's around that."""
    wrapped = getattr(error, "orig", None)
    causes = [each for each in (error, wrapped, getattr(wrapped, "__cause__", None)) if each]
    violated = {getattr(each, "constraint_name", None) for each in causes}
    if IDEMPOTENCY_KEY in violated:
        return KeyTakenError()
    if TURN in violated:
        return LostOwnershipError()
    if getattr(error, "connection_invalidated", False):
        return _unavailable(causes[-1])
    if any(isinstance(each, (*_UNAVAILABLE, TimeoutError)) for each in causes):
        return _unavailable(causes[-1])
    return None


def _unavailable(cause: BaseException) -> DatabaseUnavailableError:
    # PgBouncer's own words, under a code that it has for much else.
    if isinstance(cause, asyncpg.ProtocolViolationError) and "startup parameter" in str(cause):
        return DatabaseRefusedError(
            "the database takes no settings from a client, as PgBouncer: set CHAT_DB_POOLER="
            "transaction, and DATABASE_DIRECT_URL to lead past it"
        )
    if isinstance(cause, _REFUSED):
        return DatabaseRefusedError(f"the database lets nobody in ({type(cause).__name__})")
    if isinstance(cause, _DECLINED):
        return StatementDeclinedError(f"the database declined ({type(cause).__name__})")
    return DatabaseUnavailableError(f"the database cannot be reached ({type(cause).__name__})")


def _refuse_dead(connection: Any, _record: object, _proxy: object) -> None:
    """The driver notices when the server closes a connection, so that no question is needed."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError


# What asyncpg takes in a URL, by libpq's names or its own.
_PARAMETERS = {
    **{name: name for name in ("host", "port", "user", "password", "passfile", "ssl")},
    "sslmode": "ssl",
    "target_session_attrs": "target_session_attrs",
}
# Of no use to this driver, or given by ourselves.
_IGNORED = {"application_name", "connect_timeout", "channel_binding", "gssencmode"}


def async_url(url: str, *, name: str = "DATABASE_URL") -> URL:
    """Any PostgreSQL URL, made one for asyncpg. Raises ConfigurationError without the URL in it."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"{name} is not a URL") from None
    if parsed.drivername.partition("+")[0] not in ("postgres", "postgresql"):
        raise ConfigurationError(f"{name} is not a postgresql:// URL")
    unknown = set(parsed.query) - set(_PARAMETERS) - _IGNORED
    if unknown:
        raise ConfigurationError(f"{name} has an unknown parameter {min(unknown)!r}")
    port = parsed.query.get("port", "0")
    if not (isinstance(port, str) and port.isdigit() and int(port) <= 65_535):
        raise ConfigurationError(f"{name} has a port that is none")
    query = {
        _PARAMETERS[name]: value for name, value in parsed.query.items() if name in _PARAMETERS
    }
    return parsed.set(drivername="postgresql+asyncpg", query=query)
