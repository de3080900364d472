"""Structured logs: one event a line, an event name and fields, JSON or for the eye."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "console"]


def configure_logging(
    *,
    service: str,
    level: Level = "info",
    format: Format = "json",
    stream: TextIO | None = None,
) -> None:
    """Sets up this process's logs, ours and the libraries', on ``stream`` (standard error).

    Every line carries ``service``. What libraries log through ``logging`` takes the same form.
    Call once, at the start of a process; a second call replaces the first.
    """
    target = sys.stderr if stream is None else stream

    def name_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        name_service,
    ]
    ending: list[Processor]
    if format == "json":
        ending = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ]
    else:
        # Plain: rich's traceback would print local variables, prompts and keys among them.
        plain = structlog.dev.plain_traceback
        ending = [structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=plain)]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=shared + ending,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_library],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)


def get_logger(name: str | None = None) -> FilteringBoundLogger:
    """A logger; ``log.info("request.finished", id=…, tokens=…)``. Cheap, and safe at import."""
    if name is None:
        return cast(FilteringBoundLogger, structlog.get_logger())
    return cast(FilteringBoundLogger, structlog.get_logger(module=name))


def _name_library(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Puts the name of a library's logger where ours stands."""
    event["module"] = event["_record"].name
    return event


def _to_json(event: EventDict, **_options: Any) -> str:
    return json.dumps(event, default=str, ensure_ascii=False, separators=(",", ":"))
