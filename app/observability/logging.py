"""Logs: an event's name and fields, one line each, JSON unless a person is looking."""

import logging
import sys

import structlog


def get_logger() -> structlog.stdlib.BoundLogger:
    return structlog.stdlib.get_logger()


def configure_logging(*, level: str, as_json: bool) -> None:
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
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
    # Each request of a provider's client at info would be a line for every turn that says nothing.
    for noisy in ("httpx", "httpx2", "httpcore", "httpcore2", "openai", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
