"""Every environment variable, typed. Read only by cli and bootstrap."""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from platformdirs import user_data_path
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

PREFIX = "CHAT_"
OF_KUBERNETES = "CHAT_WORKFLOW_"
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")
DATABASE_URLS = ("DATABASE_URL", "DATABASE_DIRECT_URL")
SECRETS = ("database_url", "database_direct_url", "chat_model_api_key")


class SettingsError(ValueError):
    """A setting that the service cannot start with; the message is the one line shown."""


def default_data_directory() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/chat-workflow")
    return user_data_path("chat-workflow", appauthor=False)


Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Settings(BaseModel):
    """Field names are the variables' names in lower case; descriptions are shown by --help."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database_url: SecretStr | None = Field(
        default=None,
        description="PostgreSQL 15 or newer; unset: embedded PostgreSQL in CHAT_DATA_DIR",
    )
    database_direct_url: SecretStr | None = Field(
        default=None,
        description="the same database without a pooler: for LISTEN and migrations",
    )
    chat_db_pooler: Literal["none", "transaction"] = Field(
        default="none", description="transaction: DATABASE_URL leads to PgBouncer in that mode"
    )
    chat_db_pool: int = Field(
        default=10, ge=3, le=1000, description="database connections of a process"
    )
    chat_data_dir: Path = Field(
        default_factory=default_data_directory,
        description="where embedded PostgreSQL keeps its files",
    )
    chat_host: str = Field(default="127.0.0.1", description="address to listen on")
    chat_port: int = Field(
        default=8000, ge=0, le=65_535, description="port to listen on; 0: any free one"
    )
    chat_root_path: str = Field(default="", description="base path behind a proxy, such as /chat")
    chat_trusted_proxies: str | None = Field(
        default=None,
        description="comma-separated addresses or networks whose X-Forwarded headers are believed",
    )
    chat_cors_origins: str | None = Field(
        default=None,
        description="comma-separated origins whose pages may call; *: any (with authentication)",
    )
    chat_auto_migrate: bool | None = Field(
        default=None,
        description="bring the schema to head at the start (on with embedded PostgreSQL)",
    )
    chat_model: str = Field(
        default="demo",
        min_length=1,
        description="provider:model, or 'demo', the built-in one without a key",
    )
    chat_model_base_url: str | None = Field(
        default=None,
        description="an OpenAI-compatible server; CHAT_MODEL is then bare",
    )
    chat_model_api_key: SecretStr | None = Field(
        default=None, description="the key for that server"
    )
    chat_model_retries: int = Field(
        default=2, ge=0, le=10, description="more tries of a model request before its first token"
    )
    chat_instructions: str | None = Field(
        default=None, description="sent to the model on every turn"
    )
    chat_tools: str | None = Field(
        default=None, description="comma-separated modules whose public functions are tools"
    )
    chat_tool_timeout: Seconds = Field(default=60, description="seconds for one tool call")
    chat_max_context_turns: int = Field(
        default=20, ge=1, le=200, description="how many earlier turns the model sees"
    )
    chat_turn_timeout: Seconds = Field(default=600, description="seconds for a whole turn")
    chat_first_token_timeout: Seconds = Field(
        default=120, description="seconds until the first token"
    )
    chat_heartbeat: Seconds = Field(
        default=15, description="seconds of silence after which a stream says that it lives"
    )
    chat_send_timeout: Seconds = Field(
        default=30, description="seconds after which a reader that takes nothing is cut off"
    )
    chat_lease: Annotated[float, Field(ge=1, le=600)] = Field(
        default=15, description="seconds after which a silent process counts as dead"
    )
    chat_turn_attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=2, description="attempts of a turn whose process died; then it fails as worker_lost"
    )
    chat_shutdown_grace: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=20, description="seconds that running turns get after SIGTERM"
    )
    chat_event_retention: Annotated[float, Field(ge=0, le=31_536_000)] = Field(
        default=86_400, description="seconds that a finished turn can be replayed byte for byte"
    )
    chat_auth: Literal["none", "keys"] = Field(
        default="none", description="none: one local user, loopback only; keys: API keys"
    )
    chat_rate_limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="sends per minute of a caller, in this process; unset: any"
    )
    chat_request_limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="requests per second of a caller, in this process; unset: any"
    )
    chat_streams_per_caller: int = Field(
        default=100, ge=1, description="streams that a caller may have open, in this process"
    )
    chat_max_turns_per_process: int = Field(
        default=64, ge=1, description="turns that run here at once; more are refused at once"
    )
    chat_max_body: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="largest request body in bytes"
    )
    chat_log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe event that is logged"
    )
    chat_log_format: Literal["text", "json"] | None = Field(
        default=None, description="text on a terminal, else json"
    )

    @model_validator(mode="after")
    def _check_together(self) -> "Settings":
        if self.chat_model_api_key is not None and self.chat_model_base_url is None:
            raise ValueError("CHAT_MODEL_API_KEY needs CHAT_MODEL_BASE_URL")
        if self.chat_model_base_url is not None and self.chat_model == "demo":
            raise ValueError(
                "CHAT_MODEL_BASE_URL needs CHAT_MODEL, the model's name on that server"
            )
        if self.database_direct_url is not None and self.database_url is None:
            raise ValueError("DATABASE_DIRECT_URL needs DATABASE_URL")
        if self.chat_db_pooler != "none" and self.database_direct_url is None:
            raise ValueError(
                "CHAT_DB_POOLER needs DATABASE_DIRECT_URL: nobody can listen through a pooler"
            )
        if self.chat_auth == "none" and "*" in self.cors_origins:
            raise ValueError(
                "CHAT_CORS_ORIGINS='*' would let every web page in: set CHAT_AUTH=keys"
            )
        return self

    @field_validator("chat_model_base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is not None and not _is_http(value):
            raise ValueError("a base URL is like http://localhost:11434/v1")
        return value

    @field_validator("chat_root_path")
    @classmethod
    def _check_root_path(cls, value: str) -> str:
        if value and not _ROOT_PATH.fullmatch(value):
            raise ValueError("a base path is like /chat, without a slash at its end")
        return value

    @field_validator("chat_cors_origins")
    @classmethod
    def _check_origins(cls, value: str | None) -> str | None:
        origins = [origin for origin in _listed(value) if origin != "*"]
        if not all(_ORIGIN.fullmatch(origin) and _is_http(origin) for origin in origins):
            raise ValueError("an origin is like https://chat.example, without a path")
        return value

    @field_validator("chat_trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: str | None) -> str | None:
        for proxy in _listed(value):
            try:
                ip_network(proxy)
            except ValueError:
                raise ValueError("a proxy is an address or a network, like 10.0.0.0/8") from None
        return value

    @property
    def is_pooled(self) -> bool:
        return self.chat_db_pooler == "transaction"

    @property
    def cors_origins(self) -> list[str]:
        return _listed(self.chat_cors_origins)

    @property
    def trusted_proxies(self) -> list[str]:
        return _listed(self.chat_trusted_proxies)

    @property
    def auto_migrate(self) -> bool:
        if self.chat_auto_migrate is None:
            return self.database_url is None
        return self.chat_auto_migrate

    @property
    def tool_modules(self) -> list[str]:
        return _listed(self.chat_tools)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port != 0)
    except ValueError:
        return False


def _listed(value: str | None) -> list[str]:
    return [item.strip() for item in (value or "").split(",") if item.strip()]


def load_settings(overrides: Mapping[str, Any] | None = None) -> Settings:
    """From the environment, over a `.env` file in the working directory.

    Raises SettingsError with one clear line, without the bad value.
    """
    environment = {**_dotenv(), **os.environ}
    values: dict[str, Any] = {}
    for name, value in environment.items():
        if value is None or value == "" or not _is_ours(name):
            continue
        field, content = _field_of(name, value)
        if field in values:
            raise SettingsError(f"set {field.upper()} or {field.upper()}_FILE, not both")
        values[field] = content
    try:
        return Settings(**values, **(overrides or {}))
    except ValidationError as error:
        raise SettingsError(_one_line(error)) from None


def share_dotenv() -> None:
    """Lets the providers' clients see their keys in the `.env` file too. An empty key is none."""
    for name, value in _dotenv().items():
        if value is not None:
            os.environ.setdefault(name, value)
    for name in [
        name for name, value in os.environ.items() if name.endswith("_API_KEY") and not value
    ]:
        del os.environ[name]


def _dotenv() -> Mapping[str, str | None]:
    try:
        if Path(".env").is_file():
            _require_understood(Path(".env"))
        return dotenv_values(".env")
    except UnicodeDecodeError:
        raise SettingsError("the .env file is not UTF-8 text") from None


def _require_understood(path: Path) -> None:
    """What the library cannot read it leaves out: another database might be used then."""
    with path.open(encoding="utf-8") as file:
        for binding in parse_stream(file):
            if binding.error:
                line = binding.original.line
                raise SettingsError(f"the .env file cannot be understood at line {line}")


def _is_ours(name: str) -> bool:
    """Kubernetes tells every pod of a service named chat-workflow in variables that begin like ours."""
    if name.startswith(OF_KUBERNETES):
        return False
    return name.startswith(PREFIX) or name.removesuffix("_FILE") in DATABASE_URLS


def _field_of(name: str, value: str) -> tuple[str, str]:
    field = name.lower() if name.isupper() else ""
    if field in Settings.model_fields:
        return field, value
    secret = field.removesuffix("_file")
    if secret not in SECRETS:
        raise SettingsError(f"unknown setting {name}; 'chat-workflow serve --help' lists all")
    try:
        return secret, Path(value).read_text().strip()
    except OSError as error:
        raise SettingsError(f"{name}: cannot read the file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name}: the file is not UTF-8 text") from None


def _one_line(error: ValidationError) -> str:
    faults = error.errors(include_input=False, include_url=False)
    return "; ".join(_fault(cast("dict[str, Any]", fault)) for fault in faults)


def _fault(fault: dict[str, Any]) -> str:
    message = fault["msg"].removeprefix("Value error, ")
    name = "".join(str(step).upper() for step in fault["loc"][:1])
    return f"{name}: {message}" if name else message
