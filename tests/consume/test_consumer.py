"""The whole consumer with Kafka in memory: order, retries, dead letters, rebalances, restarts."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.consume import Backoff, NullKeys, Order, Output, ParallelConsumer, Record, Retry, Workers
from penstock.consume.testing import MemoryKafka
from penstock.model import offset_map

QUICK = {"commit_seconds": 0.02, "restart": Backoff(0.01, 0.05), "revoke_seconds": 1.0, "drain_seconds": 5.0}
AT_ONCE = Retry(attempts=3, backoff=Backoff(0.001, 0.002))


@pytest.fixture
def kafka() -> MemoryKafka:
    cluster = MemoryKafka()
    cluster.create("orders", partitions=3)
    return cluster


def consumer_of(kafka: MemoryKafka, **options: Any) -> ParallelConsumer:
    return ParallelConsumer(kafka.properties("g"), topics=["orders"], **(QUICK | kafka.clients | options))


async def until(condition: Any, *, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def fill(kafka: MemoryKafka, count: int, keys: int = 10) -> None:
    for number in range(count):
        kafka.write("orders", str(number), key=f"k{number % keys}")


async def consumed(kafka: MemoryKafka, consumer: ParallelConsumer) -> None:
    async with consumer:
        await kafka.until_committed("g", "orders", seconds=60.0)


async def test_every_record_is_handled_once_and_committed(kafka: MemoryKafka) -> None:
    fill(kafka, 5_000, keys=100)
    consumer = consumer_of(kafka)
    seen: list[bytes] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        seen.append(record.value)

    await consumed(kafka, consumer)
    assert sorted(map(int, seen)) == list(range(5_000))


@pytest.mark.parametrize("order", list(Order))
async def test_records_of_one_key_or_partition_run_in_order_and_never_overlap(
    kafka: MemoryKafka, order: Order
) -> None:
    fill(kafka, 300)
    consumer = consumer_of(kafka, order=order, concurrency=20, null_keys=NullKeys.TOGETHER)
    active: dict[object, int] = defaultdict(int)
    last: dict[object, int] = defaultdict(lambda: -1)
    overlaps, most = [], [0]

    @consumer.handler
    async def handle(record: Record) -> None:
        queues = {Order.KEY: (record.partition, record.key), Order.PARTITION: record.partition}
        queue_key = queues.get(order, record.offset)
        active[queue_key] += 1
        most[0] = max(most[0], sum(active.values()))
        if order is not Order.UNORDERED and (active[queue_key] > 1 or record.offset < last[queue_key]):
            overlaps.append(record)
        last[queue_key] = record.offset
        await asyncio.sleep(0.001)
        active[queue_key] -= 1

    await consumed(kafka, consumer)
    assert overlaps == []
    assert most[0] <= 20
    assert most[0] > (1 if order is not Order.PARTITION else 0)


async def test_records_finished_behind_a_slow_one_do_not_run_again_after_a_restart(
    kafka: MemoryKafka,
) -> None:
    for number in range(40):
        kafka.write("orders", str(number), key=str(number), partition=0)
    gate = asyncio.Event()
    first = consumer_of(kafka)

    @first.handler
    async def block(record: Record) -> None:
        if record.offset == 33:
            await gate.wait()

    async with first:
        await until(lambda: (kafka.committed("g", "orders", 0) or (0, ""))[0] == 33)
        await until(lambda: _map(kafka).done_count == 6)
        gate.set()
        stored = kafka.offsets["g", "orders", 0]
    kafka.offsets["g", "orders", 0] = stored  # as if killed before 33 was done
    second = consumer_of(kafka)
    again: list[int] = []

    @second.handler
    async def note(record: Record) -> None:
        again.append(record.offset)

    await consumed(kafka, second)
    assert again == [33]
    assert second.counts.skipped == 6


def _map(kafka: MemoryKafka) -> offset_map.OffsetMap:
    stored = offset_map.decode(*(kafka.committed("g", "orders", 0) or (0, "")))
    return stored or offset_map.OffsetMap(0, 0, frozenset())


async def test_offsets_without_records_do_not_delay_the_commit(kafka: MemoryKafka) -> None:
    for number in range(30):
        kafka.write("orders", str(number), partition=0)
        kafka.skip_offsets("orders", 0, offsets=number % 3)
    kafka.skip_offsets("orders", 0, offsets=5)
    consumer = consumer_of(kafka)

    @consumer.handler
    async def handle(record: Record) -> None: ...

    await consumed(kafka, consumer)
    assert kafka.committed("g", "orders", 0) == (kafka.logs["orders", 0].end, "")


async def test_a_failing_record_is_retried_before_its_followers(kafka: MemoryKafka) -> None:
    for number in range(4):
        kafka.write("orders", str(number), key="k")
    consumer = consumer_of(kafka, retry=AT_ONCE)
    runs: list[tuple[bytes, int]] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        runs.append((record.value, record.attempt))
        if record.value == b"1" and record.attempt < 3:
            raise ConnectionError("not yet")

    await consumed(kafka, consumer)
    assert runs == [(b"0", 1), (b"1", 1), (b"1", 2), (b"1", 3), (b"2", 1), (b"3", 1)]


async def test_a_poison_record_is_dead_lettered_with_failure_headers_and_the_rest_continues(
    kafka: MemoryKafka,
) -> None:
    for number in range(10):
        kafka.write("orders", str(number), key="k", partition=1, headers=[("trace", b"t1")])
    consumer = consumer_of(kafka, retry=AT_ONCE, dead_letter_topic="orders.dead")
    done: list[bytes] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        if record.value == b"4":
            raise ValueError("poison")
        done.append(record.value)

    await consumed(kafka, consumer)
    (dead_letter,) = kafka.messages("orders.dead")
    headers = {name: (value or b"").decode() for name, value in dead_letter.headers() or ()}
    assert (dead_letter.key(), dead_letter.value()) == (b"k", b"4")
    assert headers.pop("penstock.timestamp").isdigit()
    assert headers == {
        "trace": "t1", "penstock.cause": "builtins.ValueError", "penstock.message": "poison",
        "penstock.attempts": "3", "penstock.topic": "orders", "penstock.partition": "1",
        "penstock.offset": "4", "penstock.group": "g",
    }  # fmt: skip
    assert done == [str(number).encode() for number in range(10) if number != 4]


async def test_retries_by_type_of_exception(kafka: MemoryKafka) -> None:
    kafka.write("orders", "1")
    policy = Retry(attempts=5, backoff=Backoff(0.001), by_type={LookupError: Retry(attempts=1)})
    consumer = consumer_of(kafka, retry=policy, dead_letter_topic="dead")

    @consumer.handler
    async def handle(record: Record) -> None:
        raise KeyError("a kind of LookupError")

    await consumed(kafka, consumer)
    assert consumer.counts.failed == 1


async def test_without_a_dead_letter_topic_the_consumer_restarts_and_loses_nothing(
    kafka: MemoryKafka,
) -> None:
    fill(kafka, 100)
    consumer = consumer_of(kafka, retry=Retry(attempts=1))
    seen: set[bytes] = set()
    failures = iter([RuntimeError("once"), RuntimeError("twice")])

    @consumer.handler
    async def handle(record: Record) -> None:
        if record.value == b"50":
            for failure in failures:
                raise failure
        seen.add(record.value)

    await consumed(kafka, consumer)
    assert len(seen) == 100
    assert consumer.counts.restarts == 2


async def test_filter_and_deserializers_run_before_the_handler(kafka: MemoryKafka) -> None:
    fill(kafka, 20)
    consumer = consumer_of(
        kafka, value_deserializer=int, key_deserializer=bytes.decode, filter=lambda record: record.value % 2
    )
    seen: list[tuple[str, int]] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        seen.append((record.key, record.value))

    await consumed(kafka, consumer)
    assert sorted(value for _, value in seen) == list(range(1, 20, 2))
    assert consumer.counts.filtered == 10


async def test_an_unreadable_record_is_dead_lettered_without_retry(kafka: MemoryKafka) -> None:
    kafka.write("orders", "not a number")
    consumer = consumer_of(kafka, value_deserializer=int, dead_letter_topic="dead")

    @consumer.handler
    async def handle(record: Record) -> None: ...

    await consumed(kafka, consumer)
    assert kafka.values("dead") == [b"not a number"]
    assert consumer.counts.failed == 1


async def test_a_batch_handler_gets_many_records_and_a_bad_one_is_isolated(kafka: MemoryKafka) -> None:
    fill(kafka, 100, keys=3)
    consumer = consumer_of(kafka, retry=AT_ONCE, dead_letter_topic="dead", concurrency=2)
    sizes: list[int] = []
    done: dict[bytes, list[int]] = defaultdict(list)

    @consumer.batch_handler(records=20)
    async def handle(batch: list[Record]) -> None:
        sizes.append(len(batch))
        await asyncio.sleep(0)
        if any(record.value == b"42" for record in batch):
            raise ValueError("42")
        for record in batch:
            done[record.key].append(int(record.value))

    await consumed(kafka, consumer)
    assert kafka.values("dead") == [b"42"]
    assert max(sizes) > 5
    assert all(values == sorted(values) for values in done.values())
    assert sum(map(len, done.values())) == 99


async def test_plain_functions_run_concurrently_on_threads(kafka: MemoryKafka) -> None:
    fill(kafka, 40, keys=40)
    consumer = consumer_of(kafka, concurrency=4)
    together = threading.Barrier(4, timeout=60)
    names: set[str] = set()

    @consumer.handler
    def handle(record: Record) -> None:
        names.add(threading.current_thread().name)
        together.wait()

    await consumed(kafka, consumer)
    assert names == {"penstock-handler"}


def square(record: Record) -> Output | None:
    if record.value == b"13":
        raise ValueError("thirteen")
    if record.value == b"7" and record.attempt == 1:
        import os

        os._exit(3)
    return Output("squares", str(int(record.value) ** 2), key=record.key)


async def test_processes_handle_records_and_survive_a_worker_that_dies(kafka: MemoryKafka) -> None:
    fill(kafka, 20, keys=20)
    consumer = consumer_of(
        kafka, workers=Workers.PROCESSES, processes=2, retry=AT_ONCE, dead_letter_topic="dead"
    )
    consumer.handler(square)
    await consumed(kafka, consumer)
    squares = sorted(int(value or b"") for value in kafka.values("squares"))
    assert squares == sorted(number**2 for number in range(20) if number != 13)
    assert kafka.values("dead") == [b"13"]


async def test_outputs_are_durable_before_their_record_is_committed(kafka: MemoryKafka) -> None:
    fill(kafka, 50)
    consumer = consumer_of(kafka)

    @consumer.handler
    async def handle(record: Record) -> list[Output]:
        return [Output("copies", record.value, headers={"from": record.topic})] * 2

    await consumed(kafka, consumer)
    assert len(kafka.values("copies")) == 100


async def test_a_transaction_commits_outputs_and_offsets_together(kafka: MemoryKafka) -> None:
    for number in range(40):
        kafka.write("orders", str(number), key=str(number), partition=0)
    gate = asyncio.Event()
    consumer = consumer_of(kafka, transactional_id="t-1", transaction_seconds=0.01)

    @consumer.handler
    async def handle(record: Record) -> Output:
        if record.offset == 33:
            await gate.wait()
        return Output("copies", record.value)

    async with consumer:
        await until(lambda: len(kafka.values("copies")) == 39)
        offset, text = kafka.committed("g", "orders", 0) or (0, "")
        stored = offset_map.decode(offset, text)
        assert (offset, stored and stored.done_count) == (33, 6)
        gate.set()
        await kafka.until_committed("g", "orders")
    assert len(kafka.values("copies")) == 40


async def test_a_failed_transaction_runs_again_and_its_outputs_appear_once(kafka: MemoryKafka) -> None:
    fill(kafka, 30)
    kafka.refuse_commits(KafkaError.INVALID_TXN_STATE)
    consumer = consumer_of(kafka, transactional_id="t-1", transaction_seconds=0.01)

    @consumer.handler
    async def handle(record: Record) -> Output:
        return Output("copies", record.value)

    await consumed(kafka, consumer)
    assert sorted(int(value or b"") for value in kafka.values("copies")) == list(range(30))
    assert consumer.counts.restarts == 1


async def test_a_revoked_partition_is_committed_and_resumed_without_repeats(kafka: MemoryKafka) -> None:
    fill(kafka, 600, keys=50)
    consumer = consumer_of(kafka, concurrency=10, revoke_seconds=60.0)
    seen: list[tuple[int, int]] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.001)
        seen.append((record.partition, record.offset))

    async with consumer:
        for partition in (0, 1, 2, 0, 1):
            await until(lambda: kafka.members and len(kafka.members[0].positions) == 3)
            kafka.revoke("orders", partition)
            await until(lambda: len(kafka.members[0].positions) == 2)
            kafka.assign("orders", partition)
        await kafka.until_committed("g", "orders")
    assert len(seen) == len(set(seen)) == 600


async def test_the_result_of_a_lost_partition_is_dropped_and_its_handler_cancelled(
    kafka: MemoryKafka,
) -> None:
    kafka.write("orders", "x", partition=0)
    consumer = consumer_of(kafka)
    cancelled, hold = asyncio.Event(), asyncio.Event()

    @consumer.handler
    async def handle(record: Record) -> None:
        try:
            await hold.wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with consumer:
        await until(lambda: consumer.inspect().running)
        kafka.lose("orders", 0)
        await asyncio.wait_for(cancelled.wait(), 60)
        await until(lambda: not consumer.inspect().running)
        assert kafka.committed("g", "orders", 0) is None
        hold.set()
        kafka.assign("orders", 0)
        await kafka.until_committed("g", "orders")


async def test_a_refused_commit_is_retried(kafka: MemoryKafka) -> None:
    fill(kafka, 10)
    kafka.refuse_commits(KafkaError.REBALANCE_IN_PROGRESS, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    consumer = consumer_of(kafka)

    @consumer.handler
    async def handle(record: Record) -> None: ...

    await consumed(kafka, consumer)
    assert consumer.counts.commit_failures == 2


async def test_a_broken_client_is_replaced_and_nothing_is_lost(kafka: MemoryKafka) -> None:
    fill(kafka, 200)
    consumer = consumer_of(kafka, concurrency=5)
    seen: set[bytes] = set()

    @consumer.handler
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.001)
        seen.add(record.value)

    async with consumer:
        await until(lambda: len(seen) > 20)
        kafka.break_client(KafkaError._FATAL, fatal=True)
        await until(lambda: consumer.counts.restarts == 1)
        await kafka.until_committed("g", "orders")
    assert len(seen) == 200
    assert consumer.counts.restarts == 1


async def test_memory_stays_within_its_bound(kafka: MemoryKafka) -> None:
    fill(kafka, 3_000, keys=200)
    consumer = consumer_of(
        kafka, buffer_records=200, commit_records=10, uncommitted_records_max=40, concurrency=50
    )
    started = most = 0

    @consumer.handler
    async def handle(record: Record) -> None:
        nonlocal started, most
        started += 1
        most = max(most, consumer.inspect().records_in_memory)
        await asyncio.sleep(0)

    await consumed(kafka, consumer)
    assert started == 3_000
    assert 50 < most <= 200


async def test_a_hot_key_does_not_delay_other_partitions(kafka: MemoryKafka) -> None:
    for number in range(1_000):
        kafka.write("orders", str(number), key="hot", partition=0)
    for number in range(100):
        kafka.write("orders", str(number), key=str(number), partition=1)
    consumer = consumer_of(kafka, buffer_records=300, concurrency=10)
    hold, done = asyncio.Event(), []

    @consumer.handler
    async def handle(record: Record) -> None:
        if record.partition == 0:
            await hold.wait()
        else:
            done.append(record.offset)

    async with consumer:
        await until(lambda: len(done) == 100)
        await until(lambda: [view.partition for view in consumer.inspect().partitions if view.paused] == [0])
        (view,) = [view for view in consumer.inspect().partitions if view.partition == 0]
        assert view.hot_keys[0].key == "b'hot'"
        hold.set()
        await kafka.until_committed("g", "orders")


async def test_stop_finishes_running_records_and_starts_no_more(kafka: MemoryKafka) -> None:
    fill(kafka, 500, keys=500)
    consumer = consumer_of(kafka, concurrency=5)
    started, ended = [], []

    @consumer.handler
    async def handle(record: Record) -> None:
        started.append(record.offset)
        await asyncio.sleep(0.01)
        ended.append((record.partition, record.offset))

    async with consumer:
        await until(lambda: len(started) >= 20)
    assert len(started) == len(ended) < 500
    done = 0
    for partition in range(3):
        offset, text = kafka.committed("g", "orders", partition) or (0, "")
        stored = offset_map.decode(offset, text)
        done += offset + (stored.done_count if stored else 0)
    assert done == len(ended)


async def test_large_records_stay_within_buffer_bytes(kafka: MemoryKafka) -> None:
    for number in range(200):
        kafka.write("orders", b"x" * 10_000, key=str(number))
    consumer = consumer_of(kafka, buffer_bytes=200_000, concurrency=5)
    most = 0

    @consumer.handler
    async def handle(record: Record) -> None:
        nonlocal most
        most = max(most, consumer.inspect().bytes_in_memory)
        await asyncio.sleep(0.001)

    await consumed(kafka, consumer)
    assert 50_000 < most <= 260_000  # polls for callbacks may return a few more
