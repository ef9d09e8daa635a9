"""A streaming query, and that it does not outlive whoever started it."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException

from penstock.pipeline.failure import SPARK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.errors import PySparkException

STARTS_MAX: Final = 10
# What Spark says of a Python process that took longer than ten seconds to start: a limit in its code, and
# too short for a machine that is busy.
WORKER_LATE: Final = "Python worker failed to connect back"


def carry_through(start: Callable[[], Any], failure: list[PySparkException]) -> None:
    """Starts a query and waits for its end; one whose worker was late goes on from its checkpoint.

    `failure` is filled by the query's batches: Spark itself tells no more than that there was one.
    """
    for left in reversed(range(STARTS_MAX)):
        failure.clear()  # of the start before, which is made good
        query = start()
        try:
            with ending(query):
                query.awaitTermination()
        except StreamingQueryException as error:
            if WORKER_LATE not in str(error) or not left:
                raise (failure[-1] if failure else error) from None
        else:
            return


@contextmanager
def ending(query: Any) -> Iterator[None]:
    """The query runs no longer once this is left, however it is left.

    Whatever broke off the work within is what the caller gets: that the query could not be ended
    either, since Java is gone or does not answer in time, is the lesser news.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            _end(query)
        raise
    _end(query)


def _end(query: Any) -> None:
    """Stops a query that runs; one whose Java is gone does not."""
    try:
        active = query.isActive
    except SPARK_ERRORS:
        return
    if active:
        query.stop()
