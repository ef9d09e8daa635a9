"""Routes by topic, middleware, batch linger, delayed retries, pause and resume, batches in processes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from typing import Any

import pytest

from penstock.consume import DelayedRetry, Output, ParallelConsumer, Record, Retry, Workers
from penstock.consume.testing import MemoryKafka
from penstock.model.dead_letter import failure_headers
from penstock.model.errors import consume as errors
from tests.consume.test_consumer import QUICK, consumed, consumer_of, fill, until


@pytest.fixture
def kafka() -> MemoryKafka:
    cluster = MemoryKafka()
    cluster.create("orders", partitions=2)
    cluster.create("refunds", partitions=2)
    return cluster


def consumer_of_both(kafka: MemoryKafka, **options: Any) -> ParallelConsumer:
    options = QUICK | kafka.clients | options
    return ParallelConsumer(kafka.properties("g"), topics=["orders", "refunds"], **options)


async def both_consumed(kafka: MemoryKafka, consumer: ParallelConsumer) -> None:
    async with consumer:
        await kafka.until_committed("g", "orders")
        await kafka.until_committed("g", "refunds")


# Routes


async def test_each_topic_goes_to_its_handler_and_the_others_to_the_default(kafka: MemoryKafka) -> None:
    kafka.write("orders", "o")
    kafka.write("refunds", "r")
    consumer = consumer_of_both(kafka)
    seen: list[tuple[str, bytes]] = []

    @consumer.handler(topic="refunds")
    async def refund(record: Record) -> None:
        seen.append(("refund", record.value))

    @consumer.handler
    async def other(record: Record) -> None:
        seen.append(("other", record.value))

    await both_consumed(kafka, consumer)
    assert sorted(seen) == [("other", b"o"), ("refund", b"r")]


async def test_a_pattern_selects_the_handler(kafka: MemoryKafka) -> None:
    kafka.write("orders", "o")
    kafka.write("refunds", "r")
    consumer = consumer_of_both(kafka)
    seen: list[tuple[str, bytes]] = []
    consumer.handler(topic="^ord.*")(lambda record: seen.append(("orders", record.value)))
    consumer.handler(topic="^ref.*")(lambda record: seen.append(("refunds", record.value)))
    await both_consumed(kafka, consumer)
    assert sorted(seen) == [("orders", b"o"), ("refunds", b"r")]


async def test_a_batch_is_split_by_topic_and_its_outputs_are_joined(kafka: MemoryKafka) -> None:
    for number in range(6):
        kafka.write("orders", f"o{number}")
        kafka.write("refunds", f"r{number}")
    consumer = consumer_of_both(kafka)

    @consumer.batch_handler(records=20, topic="orders")
    async def orders(batch: list[Record]) -> list[Output]:
        assert {record.topic for record in batch} == {"orders"}
        return [Output("copies", record.value) for record in batch]

    @consumer.batch_handler(records=20, topic="refunds")
    async def refunds(batch: list[Record]) -> Output:
        return Output("copies", b"%d refunds" % len(batch))

    await both_consumed(kafka, consumer)
    copies = Counter(value or b"" for value in kafka.values("copies"))
    assert sum(int(value.split()[0]) * n for value, n in copies.items() if b"refunds" in value) == 6
    assert all(copies[b"o%d" % number] == 1 for number in range(6))


async def test_a_topic_without_a_handler_is_named(kafka: MemoryKafka) -> None:
    consumer = consumer_of_both(kafka)
    consumer.handler(topic="orders")(lambda record: None)
    with pytest.raises(errors.HandlerMissing, match="refunds"):
        await consumer.start()


async def _coroutine(record: Record) -> None: ...


@pytest.mark.parametrize(("topic", "function"), [("orders", lambda record: None), ("refunds", _coroutine)])
def test_a_second_handler_of_a_topic_or_of_another_kind_is_rejected(
    kafka: MemoryKafka, topic: str, function: Any
) -> None:
    consumer = consumer_of_both(kafka)
    consumer.handler(topic="orders")(lambda record: None)
    with pytest.raises(errors.HandlerUnusable):
        consumer.handler(topic=topic)(function)


# Middleware


async def test_middleware_wraps_the_handler_from_the_first_to_the_last(kafka: MemoryKafka) -> None:
    kafka.write("orders", "5")
    calls: list[str] = []

    async def outer(record: Record, call_next: Any) -> Any:
        calls.append(f"outer {record.value}")
        result = await call_next(record)
        calls.append("outer ends")
        return result

    async def inner(record: Record, call_next: Any) -> Any:
        calls.append("inner")
        result: Output = await call_next(record)
        return Output(result.topic, f"<{result.value!r}>")

    consumer = consumer_of(kafka, middleware=[outer, inner], value_deserializer=int)

    @consumer.handler
    async def handle(record: Record) -> Output:
        calls.append("handler")
        return Output("copies", str(record.value))

    await consumed(kafka, consumer)
    assert calls == ["outer 5", "inner", "handler", "outer ends"]
    assert kafka.values("copies") == [b"<'5'>"]


async def test_a_failure_in_middleware_is_a_failure_of_the_record(kafka: MemoryKafka) -> None:
    kafka.write("orders", "x")

    def refuse(record: Record, call_next: Any) -> Any:
        raise PermissionError("no")

    consumer = consumer_of(kafka, middleware=[refuse], retry=Retry(attempts=1), dead_letter_topic="dead")
    consumer.handler(lambda record: None)
    await consumed(kafka, consumer)
    assert kafka.values("dead") == [b"x"]


async def test_middleware_of_another_kind_than_the_handler_is_rejected(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, middleware=[lambda record, call_next: call_next(record)])
    consumer.handler(_coroutine)
    with pytest.raises(errors.HandlerUnusable, match="middleware"):
        await consumer.start()


@pytest.mark.parametrize("topic", ["orders", "dead", "retry"])
def test_delayed_retry_topics_differ_from_all_others(kafka: MemoryKafka, topic: str) -> None:
    delays = [DelayedRetry("retry", 1.0), DelayedRetry(topic, 1.0)]
    with pytest.raises(errors.OptionInvalid, match="delayed_retries"):
        consumer_of(kafka, delayed_retries=delays, dead_letter_topic="dead")


async def test_middleware_without_call_next_is_rejected(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, middleware=[lambda record: None])
    consumer.handler(lambda record: None)
    with pytest.raises(errors.HandlerUnusable, match="call_next"):
        await consumer.start()


# Batches


@pytest.mark.parametrize("on_threads", [False, True])
async def test_a_batch_waits_until_it_is_full_or_has_lingered(kafka: MemoryKafka, on_threads: bool) -> None:
    consumer = consumer_of(kafka, null_keys="together")
    sizes: list[int] = []

    async def handle(batch: list[Record]) -> None:
        sizes.append(len(batch))

    def call(batch: list[Record]) -> None:
        sizes.append(len(batch))

    consumer.batch_handler(records=10, linger_seconds=600.0)(call if on_threads else handle)
    await consumer.start()
    for number in range(9):
        kafka.write("orders", str(number), key=f"k{number % 3}", partition=0)
        await until(lambda number=number: consumer.counts.received == number + 1)
    assert sizes == []  # one record at a time arrived, and none was started
    kafka.write("orders", "9", key="k0", partition=0)
    await until(lambda: sizes == [10])
    consumer.stop()
    await consumer.wait()


async def test_a_batch_that_does_not_fill_starts_after_its_linger(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka)
    sizes: list[int] = []

    @consumer.batch_handler(records=10, linger_seconds=0.1)
    async def handle(batch: list[Record]) -> None:
        sizes.append(len(batch))

    fill(kafka, 3, keys=1)
    await consumed(kafka, consumer)
    assert sum(sizes) == 3


def note_process(batch: list[Record]) -> list[Output]:
    if any(record.value == b"13" for record in batch):
        raise ValueError("thirteen")
    return [Output("copies", record.value, headers={"pid": str(os.getpid())}) for record in batch]


async def test_batches_run_in_processes_and_a_bad_record_is_isolated(kafka: MemoryKafka) -> None:
    fill(kafka, 60, keys=5)
    consumer = consumer_of(
        kafka, workers=Workers.PROCESSES, processes=2, retry=Retry(attempts=1), dead_letter_topic="dead",
        filter=lambda record: int(record.value) % 10,
    )  # fmt: skip
    consumer.batch_handler(records=8)(note_process)
    await consumed(kafka, consumer)
    expected = [number for number in range(60) if number % 10 and number != 13]
    assert sorted(int(value or b"") for value in kafka.values("copies")) == expected
    assert kafka.values("dead") == [b"13"]
    pids = {dict(each.headers() or ())["pid"] for each in kafka.messages("copies")}
    assert str(os.getpid()).encode() not in pids


# Delayed retries


async def test_a_failed_record_waits_in_its_delayed_retry_topics_and_blocks_no_other(
    kafka: MemoryKafka,
) -> None:
    kafka.create("retry.1")
    kafka.create("retry.2")
    for number in range(4):
        kafka.write("orders", str(number), key="k", headers=[("trace", b"t")])
    consumer = consumer_of(
        kafka, retry=Retry(attempts=1), dead_letter_topic="dead",
        delayed_retries=[DelayedRetry("retry.1", 0.2), DelayedRetry("retry.2", 0.1)],
    )  # fmt: skip
    runs: list[tuple[str, bytes]] = []
    times: dict[str, float] = {}

    @consumer.handler(topic="orders")
    async def handle(record: Record) -> None:
        runs.append((record.topic, record.value))
        times.setdefault(record.topic, time.time())
        if record.value == b"1" or (record.value == b"2" and record.topic == "orders"):
            raise ConnectionError("down")

    async with consumer:
        await until(lambda: kafka.values("dead") == [b"1"])
        for topic in ("orders", "retry.1", "retry.2"):
            await kafka.until_committed("g", topic)
    assert [value for topic, value in runs if topic == "orders"] == [b"0", b"1", b"2", b"3"]
    assert [value for topic, value in runs if topic == "retry.1"] == [b"1", b"2"]
    assert [value for topic, value in runs if topic == "retry.2"] == [b"1"]
    (letter,) = kafka.messages("dead")
    failure = failure_headers(letter.headers() or [])
    assert (failure["topic"], failure["offset"], failure["attempts"]) == ("orders", "1", "3")
    assert dict(letter.headers() or ())["trace"] == b"t"
    assert (consumer.counts.delayed, consumer.counts.dead_lettered) == (3, 1)
    written = kafka.messages("retry.1")[0].timestamp()[1] / 1000
    assert times["retry.1"] >= written + 0.2


async def test_a_delay_that_has_not_passed_is_shown_and_survives_a_restart(kafka: MemoryKafka) -> None:
    kafka.create("retry")
    kafka.write("retry", "later", key="k")
    options = {"delayed_retries": [DelayedRetry("retry", 600.0)]}
    for _ in range(2):
        consumer = consumer_of(kafka, **options)
        consumer.handler(lambda record: None)
        async with consumer:
            await until(lambda: any(each.waiting_for_map for each in consumer.inspect().partitions))  # noqa: B023
            await until(
                lambda: "delayed retry" in str([each.paused for each in consumer.inspect().partitions])  # noqa: B023
            )
        assert consumer.counts.finished == 0
    assert (kafka.committed("g", "retry") or (0, ""))[0] == 0


# Pause, resume, stop


async def test_a_paused_consumer_keeps_its_partitions_and_starts_nothing(kafka: MemoryKafka) -> None:
    fill(kafka, 10)
    consumer = consumer_of(kafka)
    seen: list[bytes] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        seen.append(record.value)

    consumer.pause()
    async with consumer:
        await until(lambda: consumer.counts.received == 10)
        assert (seen, consumer.inspect().state) == ([], "paused")
        consumer.resume()
        await kafka.until_committed("g", "orders")
        consumer.pause()
        await until(lambda: consumer.inspect().state == "paused")
        fill(kafka, 10)
        await until(lambda: consumer.counts.received == 20)
        assert len(seen) == 10
        assert len(kafka.members[0].positions) == 2
        await asyncio.to_thread(consumer.resume)
        await kafka.until_committed("g", "orders")
    assert len(seen) == 20


async def test_stop_may_be_called_from_any_thread(kafka: MemoryKafka) -> None:
    fill(kafka, 100)
    consumer = consumer_of(kafka)

    @consumer.handler
    def handle(record: Record) -> None:
        if record.value == b"5":
            consumer.stop()

    await consumer.start()
    await asyncio.wait_for(consumer.wait(), 60)
    assert consumer.inspect().state == "stopped"


def test_stop_ends_a_consumer_that_runs_on_another_thread(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka)
    handled = threading.Event()
    consumer.handler(lambda record: handled.set())
    kafka.write("orders", "x")
    thread = threading.Thread(target=consumer.run)
    thread.start()
    assert handled.wait(60)
    consumer.stop()
    thread.join(60)
    assert not thread.is_alive()
