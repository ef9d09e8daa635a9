"""What Spark, Java and the disk say when something fails, as an error of ours.

The same fault comes in many forms: a full disk is an `OSError` to Python, a stack of causes from an
executor, a code from SQLite. Whoever runs a job needs one name for it.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.model.errors import PenstockError
from penstock.model.errors.olep import StoreFailed
from penstock.model.errors.pipeline import RoomMissing, SparkFailed
from penstock.pipeline.java import java_status

if TYPE_CHECKING:
    from collections.abc import Iterator

SPARK_ERRORS: Final = (PySparkException, Py4JError, ConnectionError)
LOG_CHARACTERS_MAX: Final = 2000
REASON_CHARACTERS_MAX: Final = 300
CAUSES_MAX: Final = 20  # of one error: Java lets a cause be its own
_CAUSE: Final = "Caused by:"
_TRACE: Final = "Traceback (most recent call last):"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# As the C library, Hadoop and SQLite put it.
_FULL_WORDS: Final = ("no space left on device", "disk quota exceeded", "sqlite_full", "disk is full")


def named(error: BaseException, what: str) -> PenstockError:
    """The error of ours for what befell `what`."""
    full = _full(error)
    if full is not None and (isinstance(error, StoreFailed) or not isinstance(error, PenstockError)):
        return RoomMissing(what=what, reason=_short(full))
    if isinstance(error, PenstockError):
        return error
    ended = java_status()
    reason = first_line(error) if ended is None else f"its Java process has ended, with status {ended}"
    return SparkFailed(what=what, reason=reason, log=str(error).strip()[-LOG_CHARACTERS_MAX:])


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Errors of Spark and of a full disk get their name; everything else passes as it is."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise named(error, what) from error
    except (OSError, StoreFailed) as error:
        if _full(error) is None:
            raise
        raise named(error, what) from error


def _full(error: BaseException) -> str | None:
    """What it says of a full disk, if that is what it is about."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return str(error)
    return next((line for line in told(error) if any(w in line.lower() for w in _FULL_WORDS)), None)


def told(error: BaseException) -> list[str]:
    """All lines of it, and of its causes in Java, which Python is not told unasked."""
    lines = str(error).splitlines()
    try:
        cause: Any = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        for _ in range(CAUSES_MAX):
            if cause is None:
                break
            lines += str(cause.toString()).splitlines()
            cause = cause.getCause()
    except SPARK_ERRORS:
        return lines  # Java itself is gone
    return lines


def first_line(error: BaseException) -> str:
    """What Spark, Java or a Python worker said, without its stack."""
    raised = _raised_by_worker(str(error))
    if raised is not None:
        return _short(raised)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if line.startswith(_CAUSE)), None)
    return _short(cause or (lines or [type(error).__name__])[0])


def _raised_by_worker(text: str) -> str | None:
    """The line after the stack that a Python worker sent: frames are indented, the error is not."""
    _, trace, frames = text.rpartition(_TRACE)
    if not trace:
        return None
    return next((line for line in frames.splitlines() if line and not line[0].isspace()), None)


def _short(line: str) -> str:
    return line.strip().removeprefix(_CAUSE).strip()[:REASON_CHARACTERS_MAX]
