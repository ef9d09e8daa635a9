"""What goes wrong between handler, workers and producer, and that the consumer continues after it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from penstock.consume import Output, Record, Retry, Workers
from penstock.consume.client_proxy import BUSY_SECONDS
from penstock.consume.testing import MemoryClient, MemoryKafka, MemoryProducer
from penstock.model.errors import consume as errors
from tests.consume.test_bad_input import ended
from tests.consume.test_consumer import AT_ONCE, consumed, consumer_of, fill, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def kafka() -> MemoryKafka:
    cluster = MemoryKafka()
    cluster.create("orders")
    return cluster


def dead_causes(kafka: MemoryKafka) -> dict[bytes | None, str]:
    """The class of the failure, by value of the dead letter."""
    return {
        each.value(): (dict(each.headers() or ())["penstock.cause"] or b"").decode().rpartition(".")[2]
        for each in kafka.messages("dead")
    }


# Results and exceptions that fail themselves


async def test_a_generator_that_raises_is_a_failure_of_its_record_and_blocks_no_other(
    kafka: MemoryKafka,
) -> None:
    """Its code runs when the result is read, after the handler returned."""
    fill(kafka, 6, keys=2)
    consumer = consumer_of(kafka, retry=AT_ONCE, dead_letter_topic="dead")
    kafka.create("copies")
    kafka.create("dead")

    @consumer.handler
    async def handle(record: Record) -> Any:
        def outputs() -> Iterator[Output]:
            if record.value == b"3":
                raise LookupError("three")
            yield Output("copies", record.value)

        return outputs()

    await consumed(kafka, consumer)
    assert dead_causes(kafka) == {b"3": "LookupError"}
    assert sorted(each.value() or b"" for each in kafka.messages("copies")) == [b"0", b"1", b"2", b"4", b"5"]


def yielding(record: Record) -> Iterator[Output]:
    yield Output("copies", f"{os.getpid()} {threading.get_ident()}")


@pytest.mark.parametrize("workers", [Workers.THREADS, Workers.PROCESSES])
async def test_a_generator_runs_where_its_handler_runs(kafka: MemoryKafka, workers: Workers) -> None:
    fill(kafka, 2)
    kafka.create("copies")
    consumer = consumer_of(kafka, workers=workers, processes=1)
    consumer.handler(yielding)

    await consumed(kafka, consumer)
    here = f"{os.getpid()} {threading.get_ident()}".encode()
    assert [each.value() != here for each in kafka.messages("copies")] == [True, True]


class Unspeakable(Exception):
    """Cannot be described."""

    def __str__(self) -> str:
        raise RuntimeError("never")

    __repr__ = __str__


async def test_an_exception_that_cannot_be_described_is_dead_lettered(kafka: MemoryKafka) -> None:
    fill(kafka, 3)
    kafka.create("dead")
    consumer = consumer_of(kafka, retry=AT_ONCE, dead_letter_topic="dead")

    @consumer.handler
    async def handle(record: Record) -> None:
        if record.value == b"1":
            raise Unspeakable

    await consumed(kafka, consumer)
    assert dead_causes(kafka) == {b"1": "Unspeakable"}


async def test_a_header_that_only_looks_like_one_of_a_dead_letter_blocks_nothing(kafka: MemoryKafka) -> None:
    kafka.write("orders", "1", headers=[("penstock.attempts", b"many")])
    kafka.create("dead")
    consumer = consumer_of(kafka, retry=AT_ONCE, dead_letter_topic="dead")

    @consumer.handler
    async def handle(record: Record) -> None:
        raise LookupError

    await consumed(kafka, consumer)
    assert dead_causes(kafka) == {b"1": "LookupError"}


async def test_a_defect_while_a_failure_is_handled_restarts_the_consumer(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy of the application that raises once; without the restart the record would never end."""
    fill(kafka, 3)
    consumer = consumer_of(kafka, retry=AT_ONCE)
    faults = iter([KeyError("policy")])
    pause_seconds = Retry.pause_seconds

    def faulty(self: Retry, *arguments: Any) -> float | None:
        for fault in faults:
            raise fault
        return pause_seconds(self, *arguments)

    monkeypatch.setattr(Retry, "pause_seconds", faulty)
    attempts: Counter[bytes] = Counter()

    @consumer.handler
    async def handle(record: Record) -> None:
        attempts[record.value] += 1
        if record.value == b"1" and attempts[b"1"] < 3:
            raise LookupError

    await consumed(kafka, consumer)
    assert (consumer.counts.restarts, attempts[b"1"]) == (1, 3)


# Worker processes


def keep(record: Record) -> None: ...


def lock_for_odd(record: Record) -> Any:
    if int(record.value) % 2:
        return [threading.Lock()]
    return Output("copies", record.value)


class Explosive:
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("never")


async def test_values_that_cannot_be_pickled_are_dead_lettered_and_others_are_handled(
    kafka: MemoryKafka,
) -> None:
    fill(kafka, 20, keys=20)
    consumer = consumer_of(
        kafka, workers=Workers.PROCESSES, processes=1, dead_letter_topic="dead",
        value_deserializer=lambda raw: Explosive() if int(raw) % 5 == 0 else raw,
    )  # fmt: skip
    consumer.handler(keep)
    await consumed(kafka, consumer)
    assert dead_causes(kafka) == dict.fromkeys([b"0", b"5", b"10", b"15"], "PayloadUnsendable")
    assert consumer.counts.finished == 20


async def test_a_result_that_cannot_be_pickled_fails_its_record_alone(kafka: MemoryKafka) -> None:
    fill(kafka, 20, keys=20)
    consumer = consumer_of(
        kafka, workers=Workers.PROCESSES, processes=1, dead_letter_topic="dead", retry=Retry(attempts=1)
    )
    consumer.handler(lock_for_odd)
    await consumed(kafka, consumer)
    assert sorted(int(value or b"") for value in kafka.values("copies")) == list(range(0, 20, 2))
    assert sorted(int(value or b"") for value in dead_causes(kafka)) == list(range(1, 20, 2))


# Outputs that Kafka does not accept


@pytest.mark.parametrize("transactional_id", [None, "t"])
@pytest.mark.parametrize("bad", [b"x" * 1_000_001, {"not": "bytes"}, 5])
@pytest.mark.parametrize("batches", [False, True])
async def test_an_output_that_cannot_be_written_is_dead_lettered_and_the_rest_continues(
    kafka: MemoryKafka, transactional_id: str | None, bad: Any, batches: bool
) -> None:
    fill(kafka, 10, keys=3)
    consumer = consumer_of(
        kafka, transactional_id=transactional_id, transaction_seconds=0.01, dead_letter_topic="dead"
    )

    def output(record: Record) -> Output:
        return Output("copies", bad if record.value == b"4" else record.value)

    async def handle(record: Record) -> Output:
        return output(record)

    async def handle_batch(batch: list[Record]) -> list[Output]:
        return [output(record) for record in batch]

    if batches:
        consumer.batch_handler(records=5)(handle_batch)
    else:
        consumer.handler(handle)
    await consumed(kafka, consumer)
    assert dead_causes(kafka) == {b"4": "OutputRefused"}
    if transactional_id is None and batches:  # a batch that fails is written again, record by record
        assert set(kafka.values("copies")) == {str(number).encode() for number in range(10) if number != 4}
    else:
        assert Counter(kafka.values("copies")) == Counter(str(n).encode() for n in range(10) if n != 4)
    assert consumer.counts.restarts <= (2 if transactional_id else 0)


@pytest.mark.parametrize("transactional_id", [None, "t"])
async def test_an_output_that_cannot_be_written_ends_the_consumer_without_a_dead_letter_topic(
    kafka: MemoryKafka, transactional_id: str | None
) -> None:
    fill(kafka, 3)
    consumer = consumer_of(kafka, transactional_id=transactional_id)

    @consumer.handler
    async def handle(record: Record) -> Output:
        return Output("copies", b"x" * 1_000_001)

    assert isinstance(await ended(consumer), errors.OutputRefused)
    assert kafka.values("copies") == []


async def test_an_output_that_the_broker_refuses_is_dead_lettered_in_a_transaction(
    kafka: MemoryKafka,
) -> None:
    class Refusing(MemoryProducer):
        """The delivery report refuses one value, as for a topic with a small max.message.bytes."""

        refused = False

        def produce(self, topic: str, on_delivery: Any = None, **arguments: Any) -> None:
            super().produce(topic, on_delivery, **arguments)
            if topic == "copies" and arguments["value"] == b"4":
                self.refused = True
                on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), kafka.messages("orders")[0])

        def commit_transaction(self, timeout: float = 0) -> None:
            assert not self.refused, "Kafka commits no transaction with a refused record"
            super().commit_transaction(timeout)

    fill(kafka, 10)
    consumer = consumer_of(
        kafka, transactional_id="t", transaction_seconds=0.01, dead_letter_topic="dead",
        producer_client=lambda properties: Refusing(kafka, properties),
    )  # fmt: skip

    @consumer.handler
    async def handle(record: Record) -> Output:
        return Output("copies", record.value)

    await consumed(kafka, consumer)
    assert dead_causes(kafka) == {b"4": "OutputRefused"}
    assert Counter(kafka.values("copies")) == Counter(str(n).encode() for n in range(10) if n != 4)


# Order after a restart


async def test_a_thread_left_by_a_failure_blocks_its_key_after_the_restart(kafka: MemoryKafka) -> None:
    kafka.write("orders", "1", key="alice")
    kafka.write("orders", "x", key="bad")
    kafka.write("orders", "2", key="alice")
    consumer = consumer_of(kafka, retry=Retry(attempts=1))
    leave, runs = threading.Event(), threading.Lock()
    running: dict[bytes, int] = defaultdict(int)
    log: list[tuple[bytes, bytes]] = []
    together: list[Record] = []

    @consumer.handler
    def handle(record: Record) -> None:
        with runs:
            log.append((record.key, record.value))
            running[record.key] += 1
            if running[record.key] > 1:
                together.append(record)
        if record.key == b"bad" and log.count((b"bad", b"x")) < 3:
            running[record.key] -= 1
            raise ValueError("the first two times")
        if log.count((b"alice", b"1")) == 1 and record.value == b"1":
            leave.wait(60)
        with runs:
            running[record.key] -= 1

    async with consumer:
        await until(lambda: log.count((b"bad", b"x")) == 3)  # the third incarnation runs
        await until(lambda: any(view.queued_behind_key for view in consumer.inspect().partitions))
        assert log.count((b"alice", b"1")) == 1
        leave.set()
        await kafka.until_committed("g", "orders")
    assert together == []
    assert [value for key, value in log if key == b"alice"] == [b"1", b"1", b"2"]


# Batches


async def test_only_the_bad_record_of_a_failed_batch_uses_up_attempts(kafka: MemoryKafka) -> None:
    fill(kafka, 10, keys=1)
    consumer = consumer_of(kafka, retry=AT_ONCE, dead_letter_topic="dead")
    attempts: dict[bytes, list[int]] = defaultdict(list)

    @consumer.batch_handler(records=10)
    async def handle(batch: list[Record]) -> None:
        for record in batch:
            attempts[record.value].append(record.attempt)
        if any(record.value == b"3" for record in batch):
            raise ValueError("three")

    await consumed(kafka, consumer)
    assert max(attempts.pop(b"3")) == 3
    assert all(set(numbers) == {1} for numbers in attempts.values())


# Commits


async def test_records_are_committed_by_count(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, commit_records=10, commit_seconds=600.0)

    @consumer.handler
    async def handle(record: Record) -> None: ...

    async with consumer:
        fill(kafka, 9)
        await until(lambda: consumer.inspect().counts["finished"] == 9)
        assert kafka.committed("g", "orders") is None
        fill(kafka, 1)
        await until(lambda: kafka.committed("g", "orders") == (10, ""))
        fill(kafka, 9)
        await until(lambda: consumer.inspect().counts["finished"] == 19)
        assert consumer.counts.commits == 1


async def test_records_are_committed_by_time(kafka: MemoryKafka) -> None:
    consumer = consumer_of(kafka, commit_records=1_000, commit_seconds=0.05)

    @consumer.handler
    async def handle(record: Record) -> None: ...

    async with consumer:
        for count in (1, 2, 3):
            fill(kafka, 1)
            await until(lambda count=count: kafka.committed("g", "orders") == (count, ""))
    assert consumer.counts.commits == 3


async def test_polls_are_short_while_commands_may_come(kafka: MemoryKafka) -> None:
    """A command cannot interrupt a poll."""
    waits: list[tuple[bool, float]] = []

    class Noting(MemoryClient):
        def poll(self, timeout: float = 0) -> Any:
            waits.append((bool(consumer.inspect().running), timeout))
            return super().poll(timeout)

    consumer = consumer_of(kafka, client=lambda properties: Noting(kafka, properties))
    hold = asyncio.Event()

    @consumer.handler
    async def handle(record: Record) -> Output:
        await hold.wait()
        return Output("copies", record.value)

    fill(kafka, 1)
    async with consumer:
        await until(lambda: sum(busy for busy, _ in waits) > 5)
        hold.set()
        await kafka.until_committed("g", "orders")
    assert {timeout for busy, timeout in waits if busy} == {BUSY_SECONDS}


# Metrics


async def test_metrics_can_be_scraped_from_another_thread_while_records_are_handled(
    kafka: MemoryKafka,
) -> None:
    fill(kafka, 60_000, keys=1_000)
    consumer = consumer_of(kafka, concurrency=50)

    @consumer.handler
    async def handle(record: Record) -> None:
        if record.offset % 7 == 0:
            await asyncio.sleep(0)

    failures: list[Exception] = []
    over = threading.Event()

    def scrape() -> None:
        collector = consumer.collector()
        while not over.is_set():
            try:
                list(collector.collect())
            except Exception as error:  # noqa: BLE001  any failure counts
                failures.append(error)

    scraper = threading.Thread(target=scrape)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that the threads meet everywhere
    try:
        async with consumer:
            scraper.start()
            await kafka.until_committed("g", "orders", seconds=120)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        scraper.join()
    assert failures == []
