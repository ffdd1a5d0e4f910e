"""The command line: serve, migrate, keys, openapi. Errors are one line, the status then 1."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer
import uvloop
from pydantic.fields import FieldInfo

from app.api.application import described
from app.bootstrap import direct_url_of, prepare_schema
from app.errors import ChatWorkflowError, DatabaseRefusedError, DatabaseUnavailableError
from app.identity.keys import SCOPES, Keys
from app.ids import KeyId
from app.observability.logging import configure_logging
from app.server import listen
from app.server import serve as serve_until_told
from app.settings import SECRETS, Settings, SettingsError, load_settings, share_dotenv
from app.storage import embedded
from app.storage.database import opened_database
from app.storage.key_store import KeyStore
from app.storage.schema import migrate as migrate_schema
from app.supervised import Supervised
from app.supervisor import Supervisor, require_connections
from app.wire.moment import rfc3339

T = TypeVar("T")

LONGEST_USER = 200
# Seconds that `migrate` waits for a database that is not there yet.
MIGRATE_PATIENCE = 30.0


app = typer.Typer(
    name="chat-workflow",
    help="Multi-turn conversations with language-model agents, as durable workflow runs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(help="Keys of the API, for CHAT_AUTH=keys.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")


def main() -> None:
    try:
        app()
    except (ChatWorkflowError, SettingsError) as error:
        print(f"chat-workflow: {error}", file=sys.stderr)
        sys.exit(1)


def _describe(name: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    shown = "" if default is None else f" (default: {default})"
    return f"{name.upper()}{shown}\n\n    {field.description or name}"


def _describe_settings() -> str:
    described = [_describe(name, field) for name, field in Settings.model_fields.items()]
    note = f"{_names(SECRETS)} may also be given as …_FILE. A .env file is read."
    return "\n\n".join(["Settings, from the environment:", *described, note])


def _names(fields: Sequence[str]) -> str:
    *first, last = [name.upper() for name in fields]
    return f"{', '.join(first)} and {last}"


@app.command(epilog=_describe_settings())
def serve(
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, help="Processes on the one port; one that dies is replaced."),
    ] = 1,
    listener: Annotated[int | None, typer.Option(hidden=True)] = None,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start the service; with no configuration at all it is complete."""
    settings = _configured()
    if workers > 1:
        sys.exit(_supervise(settings, workers))
    supervised = None
    if listener is not None and lifeline is not None:
        supervised = Supervised(listener, lifeline)
    with _database(settings) as postgres:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        runner.run(serve_until_told(settings, postgres.url, postgres.ensure_running, supervised))
    # All is released and handed over. Closing the loop, or leaving as usual, would wait for tools
    # that do not stop, and a plain function in its thread cannot be stopped.
    os._exit(0)


def _supervise(settings: Settings, workers: int) -> int:
    """Holds the embedded server too, so that it does not come and go with the workers."""
    if settings.database_url is None:
        require_connections(workers, settings.chat_db_pool, embedded.CONNECTIONS)
    shared = listen(settings)
    shared.set_inheritable(True)
    with _database(settings):
        return asyncio.run(Supervisor(shared, workers, grace=settings.chat_shutdown_grace).run())


@app.command()
def migrate() -> None:
    """Bring the database schema to this release's own revision."""
    settings = _configured()
    with _database(settings) as postgres:
        asyncio.run(_migrate_when_there(direct_url_of(settings, postgres.url)))
    print("The schema is up to date.")


@app.command()
def openapi() -> None:
    """Print the OpenAPI description of the API."""
    print(dump_openapi(described()))


@keys_app.command("create")
def keys_create(
    user: Annotated[str, typer.Option(help="Whose data the key opens.")],
    scope: Annotated[
        list[str] | None, typer.Option(help=f"Beyond the user's own data: {', '.join(SCOPES)}.")
    ] = None,
) -> None:
    """Create a key and show it, this once."""
    if not user.strip() or not user.isprintable() or len(user) > LONGEST_USER:
        raise typer.BadParameter(f"a user is 1 to {LONGEST_USER} printable characters")
    unknown = sorted(set(scope or ()) - set(SCOPES))
    if unknown:
        raise typer.BadParameter(f"unknown scope {unknown[0]!r}; known: {', '.join(SCOPES)}")
    key_id, token = _with_keys(lambda keys: keys.create(user, scope or ()))
    print(f"{token}\n\nThis is key {key_id} of {user!r}. It is not shown again.")


@keys_app.command("list")
def keys_list() -> None:
    """List all keys."""
    for key in _with_keys(lambda keys: keys.list()):
        used = "never used" if key.last_used_at is None else f"used {rfc3339(key.last_used_at)}"
        state = "revoked" if key.revoked_at is not None else used
        print(f"{key.id}  {key.user_id}  {' '.join(key.scopes) or '-'}  {state}")


@keys_app.command("revoke")
def keys_revoke(key: Annotated[UUID, typer.Argument(help="The key's id, not its token.")]) -> None:
    """Make a key useless, at once and for ever."""
    if not _with_keys(lambda keys: keys.revoke(KeyId(key))):
        raise typer.BadParameter(f"there is no such key, or it was revoked before: {key}")
    print("Revoked.")


def dump_openapi(document: dict[str, Any]) -> str:
    """As it is checked in: stable, and readable in a diff."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def _configured() -> Settings:
    settings = load_settings()
    share_dotenv()
    as_json = (settings.chat_log_format or _format_for_this_terminal()) == "json"
    configure_logging(level=settings.chat_log_level, as_json=as_json)
    return settings


def _format_for_this_terminal() -> str:
    return "text" if sys.stderr.isatty() else "json"


@dataclass(frozen=True, slots=True)
class _Server:
    """Somebody's own server, which is not ours to look after."""

    url: str

    def ensure_running(self) -> None:
        """It is the operator's."""


@contextmanager
def _database(settings: Settings) -> Generator[_Server | embedded.EmbeddedPostgres]:
    """The configured server, or the embedded one for as long as the block lasts."""
    if settings.database_url is not None:
        yield _Server(settings.database_url.get_secret_value())
        return
    # SIGTERM shall unwind this block, as SIGINT does, and not end the process on the spot.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    postgres = embedded.start(settings.chat_data_dir)
    try:
        yield postgres
    finally:
        postgres.release()


async def _migrate_when_there(url: str) -> None:
    """A database that is just starting is waited for; one that lets nobody in is not."""
    deadline = time.monotonic() + MIGRATE_PATIENCE
    while True:
        try:
            return await _migrate(url)
        except DatabaseRefusedError:
            raise
        except DatabaseUnavailableError as error:
            if time.monotonic() >= deadline:
                raise
            print(f"chat-workflow: {error}; waiting", file=sys.stderr)
        await asyncio.sleep(1)


async def _migrate(url: str) -> None:
    async with opened_database(url, pool_size=1, command_timeout=None) as database:
        await migrate_schema(database)


def _with_keys(work: Callable[[Keys], Awaitable[T]]) -> T:
    settings = _configured()
    with _database(settings) as postgres:
        return asyncio.run(_on_keys(settings, postgres.url, work))


async def _on_keys(settings: Settings, url: str, work: Callable[[Keys], Awaitable[T]]) -> T:
    await prepare_schema(settings, url)
    async with opened_database(url, pool_size=1, pooled=settings.is_pooled) as database:
        return await work(Keys(database, KeyStore()))
