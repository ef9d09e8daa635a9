"""The Java process that Spark runs in, and its end.

When it is gone, every call into it fails in its own way and libraries print a stack for each. Whoever
runs a job needs one line: an error of ours says it, and they are kept quiet.
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

END_SECONDS_MAX: Final = 10.0
_PY4J: Final = str(Path(py4j.__file__).parent)


def java_status() -> int | None:
    """With what the Java process of this one's Spark has ended; None while it runs, or if there is none."""
    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    if process.poll() is None and not _answers():
        # Its connections are closed a moment before it can be waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS_MAX)
    status: int | None = process.poll()
    return status


def _answers() -> bool:
    try:
        jvm: Any = SparkContext._jvm
        return bool(jvm.java.lang.System.currentTimeMillis())
    except (Py4JError, ConnectionError, TypeError):  # a package of which nothing is known cannot be called
        return False


def hush(session: SparkSession) -> None:
    """Stacks of lost connections are printed no more: errors are raised all the same."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)  # some of its lines name no logger
    server: Any = getattr(session.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None  # of a server in a thread, whose client is Java


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return not record.pathname.startswith(_PY4J)
