"""Mistakes of users, handlers and brokers: each has a clear error, and nothing is left half-done."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.consume import Output, ParallelConsumer, Record, Retry, Workers, client_proxy, orchestrator
from penstock.consume.testing import MemoryKafka, MemoryMessage, MemoryProducer
from penstock.model.backoff import Backoff
from penstock.model.errors import consume as errors
from tests.consume.test_consumer import QUICK, consumed, consumer_of, until


@pytest.fixture
def kafka() -> MemoryKafka:
    cluster = MemoryKafka()
    cluster.create("orders")
    cluster.write("orders", "1", key="k")
    return cluster


async def ended(consumer: ParallelConsumer) -> BaseException:
    """The error that ends the consumer."""
    await consumer.start()
    with pytest.raises(errors.ConsumeError) as caught:
        await asyncio.wait_for(consumer.wait(), 60)
    return caught.value


async def first_failure(consumer: ParallelConsumer) -> str:
    """The error that restarts the consumer."""
    async with consumer:
        await until(lambda: consumer.inspect().last_failure)
        return consumer.inspect().last_failure or ""


def committed_nothing(kafka: MemoryKafka) -> bool:
    return (kafka.committed("g", "orders", 0) or (0, "")) == (0, "")


def test_an_unknown_option_is_named_with_similar_ones() -> None:
    with pytest.raises(errors.OptionUnknown, match="concurency") as caught:
        ParallelConsumer({"group.id": "g"}, topics=["t"], concurency=3)
    assert "`concurrency`" in caught.value.advice


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", 0), ("concurrency", 1.5), ("concurrency", True), ("order", "backwards"),
        ("commit_seconds", -1), ("buffer_records", 50), ("revoke_seconds", "soon"), ("retry", 3),
        ("handler_seconds_max", 0), ("filter", "not callable"), ("producer", []), ("workers", "elves"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(option: str, value: object) -> None:
    with pytest.raises(errors.OptionInvalid, match=option):
        ParallelConsumer({"group.id": "g"}, topics=["t"], **{option: value})


@pytest.mark.parametrize("topics", ["orders", [], [""], [3], None])
def test_topics_must_be_a_list_of_names(topics: Any) -> None:
    with pytest.raises(errors.OptionInvalid, match="topics"):
        ParallelConsumer({"group.id": "g"}, topics=topics)


@pytest.mark.parametrize("properties", [{}, {"group.id": ""}, {"group.id": 7}])
def test_a_group_id_is_required(properties: dict[str, Any]) -> None:
    with pytest.raises(errors.GroupMissing):
        ParallelConsumer(properties, topics=["t"])


def test_auto_commit_is_rejected() -> None:
    with pytest.raises(errors.OptionInvalid, match=r"enable\.auto\.commit"):
        ParallelConsumer({"group.id": "g", "enable.auto.commit": True}, topics=["t"])


async def test_a_property_unknown_to_the_client_is_named() -> None:
    consumer = ParallelConsumer({"group.id": "g", "bootstap.servers": "x"}, topics=["t"])
    consumer.handler(lambda record: None)
    error = await ended(consumer)
    assert isinstance(error, errors.ClientRefused)
    assert "bootstap.servers" in str(error)


async def test_a_group_that_kafka_refuses_ends_the_consumer(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka)
    hold = asyncio.Event()

    @consumer.handler
    async def handle(record: Record) -> None:
        kafka.break_client(KafkaError.INCONSISTENT_GROUP_PROTOCOL)
        await hold.wait()

    assert isinstance(await ended(consumer), errors.GroupRefused)


async def test_a_topic_that_may_not_be_read_ends_the_consumer(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka)

    @consumer.handler
    async def handle(record: Record) -> None:
        kafka.break_client(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    assert isinstance(await ended(consumer), errors.AccessDenied)


async def test_a_consumer_without_handler_does_not_start(kafka: MemoryKafka) -> None:
    with pytest.raises(errors.HandlerMissing, match="orders"):
        await consumer_of(kafka).start()


@pytest.mark.parametrize("handler", [None, 5, lambda: None, lambda one, two: None])
def test_a_handler_must_accept_one_record(kafka: MemoryKafka, handler: Any) -> None:
    consumer = consumer_of(kafka)
    with pytest.raises(errors.HandlerUnusable):
        consumer.batch_handler(2)(handler)


async def test_a_closure_cannot_run_in_processes(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, workers=Workers.PROCESSES)
    consumer.handler(lambda record: None)
    with pytest.raises(errors.HandlerUnusable, match="module level"):
        await consumer.start()


@pytest.mark.parametrize("garbage", [5, "text", [1, 2], object()])
async def test_an_invalid_result_is_never_committed(kafka: MemoryKafka, garbage: object) -> None:
    consumer = consumer_of(kafka)

    @consumer.handler
    async def handle(record: Record) -> object:
        return garbage

    assert isinstance(await ended(consumer), errors.ResultInvalid)
    assert committed_nothing(kafka)


async def test_an_invalid_result_is_dead_lettered(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, dead_letter_topic="dead")

    @consumer.handler
    async def handle(record: Record) -> object:
        return 5

    await consumed(kafka, consumer)
    assert kafka.values("dead") == [b"1"]


async def test_an_invalid_batch_result_is_isolated_record_by_record(kafka: MemoryKafka) -> None:
    kafka.write("orders", "2", key="k")
    consumer = consumer_of(kafka, dead_letter_topic="dead")

    @consumer.batch_handler(records=10)
    async def handle(batch: list[Record]) -> object:
        return "garbage" if any(record.value == b"2" for record in batch) else None

    await consumed(kafka, consumer)
    assert kafka.values("dead") == [b"2"]


async def test_a_transaction_is_aborted_when_the_loop_does_not_reply_to_a_rebalance(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_proxy, "REPLY_SLACK_SECONDS", 0.05)
    consumer = consumer_of(kafka, transactional_id="t", revoke_seconds=0.05)

    @consumer.handler
    async def handle(record: Record) -> Output:
        if consumer.counts.restarts == 0:
            kafka.revoke("orders", 0)
            deadline = time.monotonic() + 60
            while _client_runs() and time.monotonic() < deadline:
                time.sleep(0.01)  # noqa: ASYNC251  the loop cannot reply until the client has timed out
        return Output("copies", record.value)

    async with consumer:
        await until(lambda: consumer.counts.restarts == 1)
        await kafka.until_committed("g", "orders")
    assert kafka.values("copies") == [b"1"]


def _client_runs() -> bool:
    return any(thread.name == "penstock-consume-client" for thread in threading.enumerate())


async def test_a_handler_that_never_returns_is_cancelled_at_its_time_limit(kafka: MemoryKafka) -> None:
    consumer = consumer_of(
        kafka, handler_seconds_max=0.05, dead_letter_topic="dead", retry=Retry(2, Backoff(0.001))
    )

    @consumer.handler
    async def handle(record: Record) -> None:
        await asyncio.Event().wait()

    await consumed(kafka, consumer)
    (letter,) = kafka.messages("dead")
    assert dict(letter.headers() or ())["penstock.cause"] == b"penstock.model.errors.consume.HandlerTimedOut"
    assert consumer.counts.failed == 2


async def test_a_handler_that_never_returns_is_reported_without_a_time_limit(
    kafka: MemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = consumer_of(kafka, stuck_seconds=0.05)
    hold = asyncio.Event()

    @consumer.handler
    async def handle(record: Record) -> None:
        await hold.wait()

    async with consumer:
        await until(lambda: errors.HandlerStuck.code in caplog.text)
        (running,) = consumer.inspect().running
        assert (running.topic, running.offset, running.attempt) == ("orders", 0, 1)
        hold.set()
        await kafka.until_committed("g", "orders")


async def test_a_handler_that_ignores_its_cancellation_ends_the_consumer(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrator, "UNSTOPPABLE_SECONDS", 0.1)
    consumer = consumer_of(kafka, handler_seconds_max=0.05)
    hold = asyncio.Event()

    @consumer.handler
    async def handle(record: Record) -> None:
        while not hold.is_set():
            try:
                await hold.wait()
            except asyncio.CancelledError:
                continue

    error = await ended(consumer)
    hold.set()
    assert isinstance(error, errors.HandlerUnstoppable)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_a_base_exception_stops_the_consumer_and_commits_nothing(
    kafka: MemoryKafka, kind: type[BaseException]
) -> None:
    consumer = consumer_of(kafka)

    @consumer.handler
    async def handle(record: Record) -> None:
        raise kind

    error = await ended(consumer)
    assert isinstance(error, errors.HandlerAborted)
    assert isinstance(error.__cause__, kind)
    assert committed_nothing(kafka)


async def test_a_base_exception_on_a_thread_stops_the_consumer(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka)

    @consumer.handler
    def handle(record: Record) -> None:
        raise SystemExit

    assert isinstance(await ended(consumer), errors.HandlerAborted)


async def test_a_handler_that_cancels_itself_has_failed(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, retry=Retry(attempts=1), dead_letter_topic="dead")

    @consumer.handler
    async def handle(record: Record) -> None:
        raise asyncio.CancelledError

    await consumed(kafka, consumer)
    assert kafka.values("dead") == [b"1"]


async def test_a_handler_that_blocks_the_loop_is_named_with_its_stack(
    kafka: MemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = consumer_of(kafka, blocked_seconds=0.1)

    @consumer.handler
    async def blocking_handler(record: Record) -> None:
        deadline = time.monotonic() + 20
        while errors.LoopBlocked.code not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251  this test blocks the loop on purpose

    with caplog.at_level(logging.ERROR):
        await consumed(kafka, consumer)
    assert "orders[0]@0" in caplog.text
    assert "blocking_handler" in caplog.text


async def test_an_unreadable_payload_is_named_without_a_dead_letter_topic(kafka: MemoryKafka) -> None:
    def refuse(raw: bytes) -> None:
        raise ValueError(raw)

    consumer = consumer_of(kafka, value_deserializer=refuse)

    @consumer.handler
    async def handle(record: Record) -> None: ...

    assert isinstance(await ended(consumer), errors.PayloadUnreadable)


async def test_a_record_that_keeps_failing_restarts_the_consumer_and_is_named(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, retry=Retry(attempts=2, backoff=Backoff(0.001)))

    @consumer.handler
    async def handle(record: Record) -> None:
        raise ValueError("always")

    failure = await first_failure(consumer)
    assert failure.startswith("HandlerFailed: orders[0]@0 failed after 2 attempts: ValueError('always')")


async def test_a_dead_letter_that_cannot_be_written_is_never_dropped(kafka: MemoryKafka) -> None:
    class Refusing(MemoryProducer):
        def produce(self, topic: str, on_delivery: Any = None, **facts: Any) -> None:
            error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
            self._reports.append(
                (lambda _, message: on_delivery(error, message), MemoryMessage((topic, 0), 0))
            )

    clients = kafka.clients | {"producer_client": lambda properties: Refusing(kafka, properties)}
    consumer = ParallelConsumer(
        kafka.properties("g"),
        topics=["orders"],
        **(QUICK | clients),
        retry=Retry(attempts=1),
        dead_letter_topic="d",
    )

    @consumer.handler
    async def handle(record: Record) -> None:
        raise ValueError

    assert (await first_failure(consumer)).startswith("OutputUndelivered")
    assert committed_nothing(kafka)


async def test_a_fatal_client_error_and_a_failed_transaction_are_named(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, transactional_id="t")

    @consumer.handler
    async def handle(record: Record) -> Output | None:
        if consumer.counts.restarts == 0:
            kafka.refuse_commits(KafkaError.PRODUCER_FENCED)
        return Output("copies", record.value)

    assert (await first_failure(consumer)).startswith("TransactionFailed")

    other = consumer_of(kafka)

    @other.handler
    async def never(record: Record) -> None: ...

    async with other:
        await until(lambda: kafka.members and kafka.members[-1].positions)
        kafka.break_client(KafkaError._FATAL, fatal=True)
        await until(lambda: other.inspect().last_failure)
        assert (other.inspect().last_failure or "").startswith("ClientFailed")


def test_a_dead_worker_is_reported_with_its_exit_code() -> None:
    error = errors.WorkerDied(pid=7, exit_code_seen=-9, record="orders[0]@1")
    assert str(error).startswith("worker process 7 ended with exit code -9")
