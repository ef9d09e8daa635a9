"""The consumer with a real Kafka: rebalances, compaction, transactions, kills, broker restarts."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from penstock.consume import Backoff, Order, Output, ParallelConsumer, Record, Retry
from penstock.consume import fault_points as points
from penstock.model import offset_map
from tests.consume.conftest import KafkaCluster
from tests.consume.journal import ended, lines
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet
    from tests.harness.processes import Processes

pytestmark = pytest.mark.kafka


async def until(condition: Callable[[], object], *, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # it may call Kafka, which must not block the consumer
            await asyncio.sleep(0.01)


def consumer_of(
    cluster: KafkaCluster, topic: str, group: str, properties: Any = None, **options: Any
) -> ParallelConsumer:
    options = {"commit_seconds": 0.1, "restart": Backoff(0.2, 1.0)} | options
    return ParallelConsumer(cluster.properties(group, **(properties or {})), topics=[topic], **options)


def _at_least(seen: list[bytes], count: int) -> bool:
    return len(seen) >= count


PROTOCOLS = {
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "eager": {"partition.assignment.strategy": "range"},
    "kip-848": {"group.protocol": "consumer"},
}


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_two_members_share_the_partitions_and_every_record_runs_once(
    cluster: KafkaCluster, name: str
) -> None:
    topic, group = cluster.topic(4), cluster.unique("group")
    cluster.write(topic, [(f"k{number % 50}", str(number)) for number in range(400)])
    seen: list[tuple[int, bytes]] = []
    members = []
    for member in range(2):
        consumer = consumer_of(cluster, topic, group, PROTOCOLS[name], concurrency=4)

        @consumer.handler
        async def handle(record: Record, member: int = member) -> None:
            await asyncio.sleep(0.005)
            seen.append((member, record.value))

        members.append(consumer)
    async with members[0]:
        await until(lambda: len(seen) > 20)
        async with members[1]:
            await until(lambda: {member for member, _ in seen} == {0, 1} or len(seen) >= 400)
            await until(lambda: len({value for _, value in seen}) == 400)
    assert len(seen) == 400
    assert cluster.all_committed(group, topic, 4)


async def test_a_static_member_comes_back_to_its_partitions(cluster: KafkaCluster) -> None:
    topic, group = cluster.topic(2), cluster.unique("group")
    cluster.write(topic, [(None, str(number)) for number in range(50)])
    seen: list[bytes] = []
    for batch in (50, 100):
        consumer = consumer_of(cluster, topic, group, {"group.instance.id": "one"})

        @consumer.handler
        async def handle(record: Record) -> None:
            seen.append(record.value)

        async with consumer:
            await until(functools.partial(_at_least, seen, batch))
        cluster.write(topic, [(None, str(number)) for number in range(batch, batch + 50)])
    assert len(seen) == len(set(seen)) == 100


async def test_a_compacted_topic_with_holes_commits_to_its_end(cluster: KafkaCluster) -> None:
    topic = cluster.topic(
        1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01",
        segment_bytes="1048576", max_compaction_lag_ms="100", delete_retention_ms="100",
    )  # fmt: skip
    # Every other record has the same key: the cleaner leaves a hole between any two that stay.
    cluster.write(topic, [(f"k{number if number % 2 else 0}", str(number)) for number in range(200)])
    await _compacted(cluster, topic)
    group = cluster.unique("group")
    consumer = consumer_of(cluster, topic, group)
    offsets: list[int] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        offsets.append(record.offset)

    async with consumer:
        await until(lambda: cluster.all_committed(group, topic, 1))
    assert len(offsets) < 200
    assert any(later - earlier > 1 for earlier, later in pairwise(offsets))


async def _compacted(cluster: KafkaCluster, topic: str) -> None:
    """Rolls segments until the log cleaner has removed records."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        cluster.write(topic, [("k0", "roll")])
        if len(cluster.read([topic], 1)) < 200:
            return
        await asyncio.sleep(0.5)
    raise AssertionError("the cleaner never ran")


async def test_aborted_records_are_not_delivered_and_do_not_delay_the_commit(cluster: KafkaCluster) -> None:
    topic, group = cluster.topic(1), cluster.unique("group")
    producer = Producer(cluster.fleet.client_config() | {"transactional.id": cluster.unique("writer")})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, f"{number}-{each}", key=str(each))
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    consumer = consumer_of(cluster, topic, group)
    seen: list[str] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        seen.append(record.value.decode())

    async with consumer:
        # The last offset is a transaction marker, not a record; the commit must pass it.
        await until(lambda: cluster.all_committed(group, topic, 1))
    assert sorted(seen) == sorted(f"{number}-{each}" for number in (0, 2, 4) for each in range(10))


async def test_a_poison_record_is_dead_lettered_and_the_rest_continues(cluster: KafkaCluster) -> None:
    topic, dead, group = cluster.topic(2), cluster.topic(1), cluster.unique("group")
    cluster.write(topic, [("k", str(number)) for number in range(50)])
    consumer = consumer_of(cluster, topic, group, retry=Retry(3, Backoff(0.01)), dead_letter_topic=dead)
    done: list[int] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        if record.value == b"20":
            raise ValueError("poison")
        done.append(int(record.value))

    async with consumer:
        await until(lambda: cluster.all_committed(group, topic, 2))
    (dead_letter,) = cluster.read([dead], 1)
    headers = dict(dead_letter.headers())
    assert (dead_letter.key(), dead_letter.value(), headers["penstock.attempts"]) == (b"k", b"20", b"3")
    assert headers["penstock.topic"] == topic.encode()
    assert done == [number for number in range(50) if number != 20]


@pytest.mark.parametrize(
    "point", [points.AFTER_PRODUCE, points.BEFORE_TRANSACTION_COMMIT, points.AFTER_TRANSACTION_COMMIT]
)
def test_a_transaction_killed_with_34_done_and_33_not(
    cluster: KafkaCluster, processes: Processes, tmp_path: Path, point: str
) -> None:
    topic, copies, group = cluster.topic(1), cluster.topic(1), cluster.unique("group")
    cluster.write(topic, [(str(number), str(number)) for number in range(40)])
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    plan = {
        "properties": cluster.properties(group, **{"group.instance.id": "one"}), "topics": [topic],
        "journal": str(journal), "output": copies,
        "wait_value": "33", "wait_for": str(gate),
        "options": {"transactional_id": cluster.unique("writer"), "transaction_seconds": 0.05},
    }  # fmt: skip
    first = _start(processes, plan, PENSTOCK_FAULT=point)
    assert first.wait(60) == -signal.SIGKILL
    before = lines(journal)
    assert "33" not in ended(before)
    _start(processes, plan)
    wait_for(lambda: _map_of(cluster, group, topic) == (33, 6), what="all but 33 to be done", seconds=60)
    gate.touch()
    wait_for(lambda: cluster.all_committed(group, topic, 1), what="everything to be committed", seconds=60)
    written = cluster.read([copies], 40, **{"isolation.level": "read_committed"})
    assert sorted(int(message.value()) for message in written) == list(range(40)), "each output shows once"


def _map_of(cluster: KafkaCluster, group: str, topic: str) -> tuple[int, int]:
    committed = cluster.committed(group, topic, 1)[0]
    stored = offset_map.decode(committed.offset, committed.metadata)
    return committed.offset, stored.done_count if stored else 0


def _start(processes: Processes, plan: dict[str, Any], **environment: str) -> Any:
    import os

    return processes.start(
        [sys.executable, "-m", "tests.consume.member", json.dumps(plan)], env=os.environ | environment
    )


def test_sigterm_drains_and_finished_records_do_not_run_again(
    cluster: KafkaCluster, processes: Processes, tmp_path: Path
) -> None:
    topic, group = cluster.topic(3), cluster.unique("group")
    cluster.write(topic, [(f"k{number % 30}", str(number)) for number in range(600)])
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    plan = {
        "properties": cluster.properties(group), "topics": [topic], "journal": str(journal), "work_ms": 5,
        "wait_after": 299, "wait_for": str(gate),  # so that it is half-way whenever the signal arrives
        "options": {"concurrency": 10, "commit_seconds": 30.0},
    }  # fmt: skip
    member = _start(processes, plan)
    wait_for(lambda: len(lines(journal)) > 100, what="some records to be handled", seconds=60)
    member.send_signal(signal.SIGTERM)
    gate.touch()
    assert member.wait(60) == 0
    assert len(ended(lines(journal))) < 600, "it was stopped half-way"
    _start(processes, plan)
    wait_for(lambda: len(ended(lines(journal))) == 600, what="all records", seconds=60)
    starts = [line.value for line in lines(journal) if line.what == "start"]
    assert len(starts) == 600


async def test_nothing_is_lost_while_the_broker_restarts(
    make_fleet: Callable[..., Fleet], unique: Callable[[str], str]
) -> None:
    fleet = await asyncio.to_thread(make_fleet)
    cluster = KafkaCluster(fleet, unique)
    topic, group = cluster.topic(2), unique("group")
    cluster.write(topic, [(f"k{number % 20}", str(number)) for number in range(300)])
    consumer = consumer_of(cluster, topic, group, {"reconnect.backoff.max.ms": 500}, concurrency=4)
    seen: list[bytes] = []

    @consumer.handler
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.01)
        seen.append(record.value)

    async with consumer:
        await until(lambda: len(seen) > 50)
        await asyncio.to_thread(fleet.kill, fleet.brokers[0].name)
        await asyncio.to_thread(fleet.start_node, fleet.brokers[0].name)
        await until(lambda: len(set(seen)) == 300)
        await until(lambda: cluster.all_committed(group, topic, 2))
    cluster.close()
    assert len(seen) - 300 <= consumer.counts.abandoned


async def test_the_demo_of_the_paper_ten_runners_take_a_tenth_of_the_time(cluster: KafkaCluster) -> None:
    """Scaled to a tenth: 1,000 records of 10 ms need 1 s on ten runners; one after the other, 10 s."""
    topic, group = cluster.topic(4), cluster.unique("group")
    cluster.write(topic, [(f"k{number % 100}", str(number)) for number in range(1_000)])
    consumer = consumer_of(cluster, topic, group, order=Order.KEY, concurrency=10)
    together = most = count = 0

    @consumer.handler
    async def handle(record: Record) -> None:
        nonlocal together, most, count
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.01)
        together -= 1
        count += 1

    async with consumer:
        await until(lambda: count == 1_000)
    assert most == 10


async def test_outputs_are_written_before_the_offset(cluster: KafkaCluster) -> None:
    topic, copies, group = cluster.topic(2), cluster.topic(2), cluster.unique("group")
    cluster.write(topic, [(str(number), str(number)) for number in range(100)])
    consumer = consumer_of(cluster, topic, group)

    @consumer.handler
    async def handle(record: Record) -> Output:
        return Output(copies, record.value, key=record.key)

    async with consumer:
        await until(lambda: cluster.all_committed(group, topic, 2))
        assert len(cluster.read([copies], 100)) == 100
