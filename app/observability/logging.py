"""Logs: an event's name and fields, one line each, JSON unless a person is looking.

An exception is logged as its type and where it came from. Its message, and the values of local
variables, may hold what a person wrote, so they are never logged.
"""

import logging
import sys
import traceback
import warnings
from types import TracebackType
from typing import Any, cast

import structlog


def get_logger() -> structlog.stdlib.BoundLogger:
    return structlog.stdlib.get_logger()


def configure_logging(*, level: str, as_json: bool) -> None:
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        without_exception_text,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # sse_starlette would log every chunk, that is what people read, at debug; each request of a provider's client at info would be a line for every turn that says nothing.
    for noisy in ("httpx", "httpx2", "httpcore", "httpcore2", "openai", "alembic", "sse_starlette"):
        logging.getLogger(noisy).setLevel(logging.WARNING)

    # We log a request that broke ourselves, with its id; the server would log it once more.
    logging.getLogger("uvicorn.error").addFilter(_is_not_an_application_error)
    warnings.showwarning = _log_warning


def _is_not_an_application_error(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Exception in ASGI application")


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object
) -> None:
    """Without its text, which may hold what a provider has sent."""
    get_logger().warning("warning", category=category.__name__, where=f"{filename}:{lineno}")


def without_exception_text(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Replaces `exc_info` by the chain of exception types, each with its frames."""
    info = event.pop("exc_info", None)
    error = info if isinstance(info, BaseException) else _current(info)
    if error is not None:
        event["exception"] = "\n".join(_described(error))
    return event


def _current(info: Any) -> BaseException | None:
    if isinstance(info, tuple):
        return cast("tuple[Any, BaseException | None, Any]", info)[1]
    return sys.exc_info()[1] if info else None


def _described(error: BaseException) -> list[str]:
    cause = error.__cause__ or error.__context__
    lines = _described(cause) if cause is not None else []
    return [*lines, *_frames(error.__traceback__), _name(error)]


def _frames(trace: TracebackType | None) -> list[str]:
    return [f"  {f.filename}:{f.lineno} in {f.name}" for f in traceback.extract_tb(trace)]


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"
