"""Runs a streaming query to its end, and stops it when its caller leaves."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException

from penstock.pipeline.spark.failure import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.errors import PySparkException

STARTS_MAX: Final = 10
# Spark's error for a Python worker that took longer than ten seconds to start: a hard-coded limit, too short
# on a busy machine.
WORKER_START_TIMED_OUT: Final = "Python worker failed to connect back"


def run_to_end(start: Callable[[], Any], failure: list[PySparkException]) -> None:
    """Runs a query to its end; restarts it from its checkpoint if a Python worker started too late.

    The query's batches append their errors to `failure`, because Spark only reports that a batch failed."""
    for starts_left in reversed(range(STARTS_MAX)):
        failure.clear()  # of the previous start, which this one repeats
        query = start()
        try:
            with stopping(query):
                query.awaitTermination()
        except StreamingQueryException as error:
            if WORKER_START_TIMED_OUT not in str(error) or not starts_left:
                raise (failure[-1] if failure else error) from None
        else:
            return


@contextmanager
def stopping(query: Any) -> Iterator[None]:
    """Stops the query on leaving the block, however it is left.

    If the block raised, the caller gets that error, even if the query cannot be stopped because the JVM
    is gone or does not respond in time."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            _stop(query)
        raise
    _stop(query)


def _stop(query: Any) -> None:
    """Stops an active query; without a JVM there is none."""
    try:
        active = query.isActive
    except SPARK_ERRORS:
        return
    if active:
        query.stop()
