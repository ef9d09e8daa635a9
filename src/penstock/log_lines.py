"""Log lines of a service: one JSON object a line, or text for people.

`configure_logs` covers structlog and the standard library's logging, so that lines of dependencies have the
same form. Uncaught exceptions and warnings are log lines, too.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from types import TracebackType

    from structlog.typing import Processor


class LogFormat(StrEnum):
    JSON = "json"
    CONSOLE = "console"


_active: LogFormat | None = None


def active_format() -> LogFormat | None:
    """The format in force; None if this process runs no service."""
    return _active


def default_format() -> LogFormat:
    """Text on a terminal, else JSON."""
    return LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON


def configure_logs(form: LogFormat, level: int = logging.INFO) -> None:
    """Log to standard error from `level` up, in this process and in those that it forks."""
    global _active
    _active = form
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = structlog.processors.JSONRenderer(default=str)
    if form is LogFormat.CONSOLE:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    clean = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[clean, renderer])
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def announce(event: str) -> None:
    """Log what a service reports of itself: its addresses, that it drains."""
    structlog.get_logger("penstock").info(event)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    structlog.get_logger("penstock").critical("uncaught exception", exc_info=(kind, error, trace))
