"""Settings from the environment: typed, complete, and refused with one clear line."""

import os
from pathlib import Path

import pytest

from app.settings import Settings, SettingsError, load_settings


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):  # noqa: TID251 - empties it
        if name.startswith("CHAT_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_without_any_setting_there_is_a_complete_service() -> None:
    settings = load_settings()

    assert settings.database_url is None
    assert settings.auto_migrate
    assert settings.chat_model == "demo"
    assert (settings.chat_host, settings.chat_port) == ("127.0.0.1", 8000)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("CHAT_MODLE", "x", "unknown setting CHAT_MODLE"),
        ("CHAT_PORT", "SECRET", "CHAT_PORT: Input should be a valid integer"),
        ("CHAT_PORT", "70000", "CHAT_PORT: Input should be less than or equal to 65535"),
        ("CHAT_AUTH", "SECRET", "CHAT_AUTH: Input should be 'none' or 'keys'"),
        ("CHAT_LEASE", "0", "CHAT_LEASE: "),
        ("CHAT_MODEL_BASE_URL", "SECRET", "CHAT_MODEL_BASE_URL: "),
        ("CHAT_MODEL_BASE_URL", "http://", "CHAT_MODEL_BASE_URL: a base URL is like"),
        ("CHAT_MODEL_BASE_URL", "http://[::1", "CHAT_MODEL_BASE_URL: a base URL is like"),
        ("CHAT_MODEL_BASE_URL", "http://h:99999", "CHAT_MODEL_BASE_URL: a base URL is like"),
        ("CHAT_CORS_ORIGINS", "https://a:99999", "CHAT_CORS_ORIGINS: an origin is like"),
        ("CHAT_port", "9", "unknown setting CHAT_port"),
        ("CHAT_MODEL_BASE_URL", "http://h/v1", "CHAT_MODEL_BASE_URL needs CHAT_MODEL"),
        ("CHAT_MODEL_API_KEY", "SECRET", "CHAT_MODEL_API_KEY needs CHAT_MODEL_BASE_URL"),
        ("CHAT_ROOT_PATH", "SECRET", "CHAT_ROOT_PATH: a base path is like /chat"),
        ("CHAT_ROOT_PATH", "/chat/", "CHAT_ROOT_PATH: a base path is like /chat"),
        ("CHAT_CORS_ORIGINS", "https://ok, SECRET", "CHAT_CORS_ORIGINS: an origin is like"),
        ("CHAT_CORS_ORIGINS", "https://ok/SECRET", "CHAT_CORS_ORIGINS: an origin is like"),
        ("CHAT_CORS_ORIGINS", "*", "CHAT_CORS_ORIGINS='*' would let every web page in"),
        ("CHAT_TRUSTED_PROXIES", "SECRET", "CHAT_TRUSTED_PROXIES: a proxy is an address"),
        ("CHAT_RATE_LIMIT", "0", "CHAT_RATE_LIMIT: "),
        ("CHAT_REQUEST_LIMIT", "-1", "CHAT_REQUEST_LIMIT: "),
        ("CHAT_STREAMS_PER_CALLER", "0", "CHAT_STREAMS_PER_CALLER: "),
        ("CHAT_MAX_TURNS_PER_PROCESS", "0", "CHAT_MAX_TURNS_PER_PROCESS: "),
        ("DATABASE_URL_FILE", "/nonexistent", "DATABASE_URL_FILE: cannot read the file"),
        ("CHAT_PORT_FILE", "/nonexistent", "unknown setting CHAT_PORT_FILE"),
    ],
)
def test_a_bad_setting_is_one_clear_line_without_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError) as error:
        load_settings()

    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)
    assert "SECRET" not in str(error.value)


def test_a_secret_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://h/d\n")
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "url"))

    settings = load_settings()

    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == "postgresql://h/d"
    assert not settings.auto_migrate
    assert "postgresql" not in repr(settings)


def test_a_setting_given_twice_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("x")
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")

    with pytest.raises(SettingsError, match="not both"):
        load_settings()


def test_the_environment_wins_over_a_dotenv_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("CHAT_PORT=1234\nCHAT_MODEL=a:b\nOTHER=x\n")
    monkeypatch.setenv("CHAT_PORT", "4321")

    settings = load_settings()

    assert settings.chat_port == 4321
    assert settings.chat_model == "a:b"


@pytest.mark.parametrize("line", ['DATABASE_URL="postgresql://h/d', "CHAT_AUTH='keys", "a b"])
def test_a_line_of_a_dotenv_file_that_cannot_be_read_stops_the_start(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / ".env").write_text(f"CHAT_PORT=1\n{line}\n")

    with pytest.raises(SettingsError) as error:
        load_settings()

    assert str(error.value) == "the .env file cannot be understood at line 2"


def test_what_kubernetes_says_of_a_service_of_our_name_is_no_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHAT_WORKFLOW_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("CHAT_WORKFLOW_PORT", "tcp://10.0.0.1:80")

    assert load_settings().chat_port == 8000


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_CORS_ORIGINS", "https://a.example, http://localhost:3000,")
    monkeypatch.setenv("CHAT_TRUSTED_PROXIES", "10.0.0.0/8,::1")
    monkeypatch.setenv("CHAT_TOOLS", "one , two.three")

    settings = load_settings()

    assert settings.cors_origins == ["https://a.example", "http://localhost:3000"]
    assert settings.trusted_proxies == ["10.0.0.0/8", "::1"]
    assert settings.tool_modules == ["one", "two.three"]


def test_every_setting_is_described() -> None:
    undescribed = [name for name, f in Settings.model_fields.items() if not f.description]

    assert undescribed == []
