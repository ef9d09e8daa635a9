"""A query ends with its caller, who gets the error that ended it."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError, StreamingQueryException

from penstock.model.errors.pipeline import JobBusy, SparkFailed
from penstock.pipeline.spark.failure import translate_errors
from penstock.pipeline.spark.query import STARTS_MAX, WORKER_START_TIMED_OUT, run_to_end, stopping


class Query:
    """A Spark query that runs until it is stopped, if it can be."""

    def __init__(self, *, refusal: Exception | None = None, java: bool = True) -> None:
        self.refusal, self.java = refusal, java
        self.running = True

    @property
    def isActive(self) -> bool:
        if not self.java:
            raise Py4JNetworkError("Answer from Java side is empty")
        return self.running

    def stop(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.running = False


STUBBORN = StreamingQueryException("stopping took more than 20000 ms")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), JobBusy(job="orders", directory="d")])
@pytest.mark.parametrize("query", [Query(), Query(refusal=STUBBORN), Query(java=False)])
def test_the_caller_s_error_wins_even_if_the_query_cannot_be_stopped(
    error: BaseException, query: Query
) -> None:
    with pytest.raises(type(error)) as raised, translate_errors("orders"), stopping(query):
        raise error

    assert raised.value is error


def test_a_running_query_is_stopped_on_leaving_the_block() -> None:
    query = Query()

    with stopping(query):
        assert query.running

    assert not query.running


def test_a_query_that_cannot_be_stopped_is_reported() -> None:
    with (
        pytest.raises(SparkFailed, match="20000 ms"),
        translate_errors("orders"),
        stopping(Query(refusal=STUBBORN)),
    ):
        pass


def test_without_a_jvm_there_is_no_query_to_stop() -> None:
    with stopping(Query(java=False)):
        pass


class EndingQuery(Query):
    """A query that ends by itself, or fails with this message."""

    def __init__(self, words: str | None) -> None:
        super().__init__()
        self.words = words

    def awaitTermination(self) -> None:
        self.running = False
        if self.words is not None:
            raise StreamingQueryException(self.words)


def test_a_query_whose_worker_started_too_late_is_restarted() -> None:
    queries = iter(
        [
            EndingQuery(f"failed: {WORKER_START_TIMED_OUT}."),
            EndingQuery(f"failed: {WORKER_START_TIMED_OUT}."),
            EndingQuery(None),
            EndingQuery(None),
        ]
    )

    run_to_end(lambda: next(queries), [])

    assert len(list(queries)) == 1


@pytest.mark.parametrize(("words", "starts"), [("of mine", 1), (WORKER_START_TIMED_OUT, STARTS_MAX)])
def test_a_query_that_fails_otherwise_or_every_time_is_reported(words: str, starts: int) -> None:
    started: list[EndingQuery] = []

    def start() -> EndingQuery:
        started.append(EndingQuery(words))
        return started[-1]

    with pytest.raises(StreamingQueryException, match=words):
        run_to_end(start, [])

    assert len(started) == starts


@pytest.mark.parametrize(
    ("raised", "expected"),
    [([WORKER_START_TIMED_OUT, None], "of mine"), ([WORKER_START_TIMED_OUT, "in a batch"], "in a batch")],
)
def test_only_a_batch_error_of_the_last_start_is_reported(raised: list[str | None], expected: str) -> None:
    failure: list[PySparkException] = []
    queries = iter(
        zip([EndingQuery(f"failed: {WORKER_START_TIMED_OUT}."), EndingQuery("of mine")], raised, strict=True)
    )

    def start() -> EndingQuery:
        query, words = next(queries)
        if words is not None:
            failure.append(PySparkRuntimeError(words))
        return query

    with pytest.raises(PySparkException, match=expected):
        run_to_end(start, failure)
