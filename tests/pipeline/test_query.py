"""A query ends with whoever started it, and what broke that off is what is told."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException, PySparkRuntimeError, StreamingQueryException

from penstock.model.errors.pipeline import JobBusy, SparkFailed
from penstock.pipeline.failure import naming
from penstock.pipeline.query import STARTS_MAX, WORKER_LATE, carry_through, ending


class Query:
    """A query of Spark's that runs until it is stopped, where it can be."""

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


@pytest.mark.parametrize("told", [KeyboardInterrupt(), SystemExit(1), JobBusy(job="orders", directory="d")])
@pytest.mark.parametrize("query", [Query(), Query(refusal=STUBBORN), Query(java=False)])
def test_an_interrupt_stays_one_even_if_the_query_cannot_be_ended(told: BaseException, query: Query) -> None:
    with pytest.raises(type(told)) as raised, naming("orders"), ending(query):
        raise told

    assert raised.value is told


def test_a_query_that_runs_is_stopped_when_its_time_is_over() -> None:
    query = Query()

    with ending(query):
        assert query.running

    assert not query.running


def test_a_query_that_cannot_be_stopped_is_told_if_nothing_else_went_wrong() -> None:
    with pytest.raises(SparkFailed, match="20000 ms"), naming("orders"), ending(Query(refusal=STUBBORN)):
        pass


def test_java_that_is_gone_takes_its_query_with_it() -> None:
    with ending(Query(java=False)):
        pass


class Late(Query):
    """One that ends by itself, or fails with these words."""

    def __init__(self, words: str | None) -> None:
        super().__init__()
        self.words = words

    def awaitTermination(self) -> None:
        self.running = False
        if self.words is not None:
            raise StreamingQueryException(self.words)


def test_a_query_whose_worker_was_late_is_started_again() -> None:
    queries = iter([Late(f"failed: {WORKER_LATE}."), Late(f"failed: {WORKER_LATE}."), Late(None), Late(None)])

    carry_through(lambda: next(queries), [])

    assert len(list(queries)) == 1


@pytest.mark.parametrize(("words", "starts"), [("of mine", 1), (WORKER_LATE, STARTS_MAX)])
def test_a_query_that_fails_otherwise_or_always_is_told(words: str, starts: int) -> None:
    started: list[Late] = []

    with pytest.raises(StreamingQueryException, match=words):
        carry_through(lambda: started.append(Late(words)) or started[-1], [])

    assert len(started) == starts


@pytest.mark.parametrize(
    ("raised", "told"), [([WORKER_LATE, None], "of mine"), ([WORKER_LATE, "in a batch"], "in a batch")]
)
def test_what_a_batch_raised_is_told_for_the_start_that_it_was_in(
    raised: list[str | None], told: str
) -> None:
    failure: list[PySparkException] = []
    queries = iter(zip([Late(f"failed: {WORKER_LATE}."), Late("of mine")], raised, strict=True))

    def start() -> Late:
        query, words = next(queries)
        if words is not None:
            failure.append(PySparkRuntimeError(words))
        return query

    with pytest.raises(PySparkException, match=told):
        carry_through(start, failure)
