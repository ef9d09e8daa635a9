"""Translates failures of Spark, Java and the disk into Penstock errors.

One fault takes many forms: a full disk is an `OSError` in Python, a chain of causes from an executor, a
SQLite error code. The operator gets one error code for it.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.model.errors import PenstockError
from penstock.model.errors.olep import StoreFailed
from penstock.model.errors.pipeline import DiskFull, SparkFailed
from penstock.pipeline.spark.java import java_exit_status

if TYPE_CHECKING:
    from collections.abc import Iterator

SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionError)
LOG_CHARACTERS_MAX: Final = 2000
REASON_CHARACTERS_MAX: Final = 300
CAUSES_MAX: Final = 20  # Java allows an exception to be its own cause
_CAUSE: Final = "Caused by:"
_TRACE: Final = "Traceback (most recent call last):"
_FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
# The messages of the C library, Hadoop and SQLite.
_FULL_WORDS: Final = ("no space left on device", "disk quota exceeded", "sqlite_full", "disk is full")


def translate_error(error: BaseException, what: str) -> PenstockError:
    """The Penstock error for a failure of `what`."""
    full = _disk_full_line(error)
    if full is not None and (isinstance(error, StoreFailed) or not isinstance(error, PenstockError)):
        return DiskFull(what=what, reason=_short(full))
    if isinstance(error, PenstockError):
        return error
    exit_status = java_exit_status()
    reason = (
        first_line(error) if exit_status is None else f"its Java process exited with status {exit_status}"
    )
    return SparkFailed(what=what, reason=reason, log=str(error).strip()[-LOG_CHARACTERS_MAX:])


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Translates errors of Spark and of a full disk; all others pass unchanged."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise translate_error(error, what) from error
    except (OSError, StoreFailed) as error:
        if _disk_full_line(error) is None:
            raise
        raise translate_error(error, what) from error


def _disk_full_line(error: BaseException) -> str | None:
    """The line that reports a full disk, or None."""
    if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
        return str(error)
    return next((line for line in error_lines(error) if any(w in line.lower() for w in _FULL_WORDS)), None)


def error_lines(error: BaseException) -> list[str]:
    """The lines of an error and of its Java causes, which its Python text does not include."""
    lines = str(error).splitlines()
    try:
        cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        for _ in range(CAUSES_MAX):
            if cause is None:
                break
            lines += str(cause.toString()).splitlines()
            cause = cause.getCause()
    except SPARK_ERRORS:
        return lines  # the JVM itself is gone
    return lines


def first_line(error: BaseException) -> str:
    """The message of Spark, Java or a Python worker, without its stack trace."""
    raised = _raised_by_worker(str(error))
    if raised is not None:
        return _short(raised)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if line.startswith(_CAUSE)), None)
    return _short(cause or (lines or [type(error).__name__])[0])


def _raised_by_worker(text: str) -> str | None:
    """The error line after a Python worker's stack trace: frames are indented, the error is not."""
    _, trace, frames = text.rpartition(_TRACE)
    if not trace:
        return None
    return next((line for line in frames.splitlines() if line and not line[0].isspace()), None)


def _short(line: str) -> str:
    return line.strip().removeprefix(_CAUSE).strip()[:REASON_CHARACTERS_MAX]
