"""The JVM that Spark runs in: its classes, its exit status, and silencing py4j once it is gone.

Once the JVM has exited, every call into it fails in a different way and py4j prints a stack trace for
each. Our error reports the exit in one line, so those traces are suppressed.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import py4j
from py4j.protocol import Py4JError
from pyspark import SparkContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_SECONDS_MAX: Final = 10.0
_PY4J: Final = str(Path(py4j.__file__).parent)


def java_class(session: SparkSession, name: str) -> Any:
    """A Java class by its full name. `jvm.org.apache…` would search every jar for each part of the name."""
    return getattr(session._jvm, name)


def java_exit_status() -> int | None:
    """The exit status of this process's JVM; None while it runs, or if there is none."""
    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    if process.poll() is None and not _responds():
        # Its connections close a moment before the process can be reaped.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS_MAX)
    status: int | None = process.poll()
    return status


def _responds() -> bool:
    try:
        system: Any = getattr(SparkContext._jvm, "java.lang.System")
        return bool(system.currentTimeMillis())
    except (Py4JError, ConnectionError, TypeError):
        return False  # TypeError: without a JVM, py4j takes the class for a package


def silence_py4j(session: SparkSession) -> None:
    """Suppresses stack traces of lost connections; the errors are still raised."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)  # some of its lines go to the root logger
    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None  # its client, the JVM, is gone


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return not record.pathname.startswith(_PY4J)
