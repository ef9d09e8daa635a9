"""Ack evidence on real brokers: every acknowledged offset is in `_penstock.acks`, across drains and kills."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.gateway.limits.ack_ranges import BYTES_PER_SECOND_MIN, INGRESS_SHARE_MAX
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, read
from penstock.model.ack_evidence import step
from penstock.model.events import AckRanges
from penstock.model.key_names import ACKS_TOPIC
from penstock.quota.topics import ACKS_PARTITIONS
from tests.gateway.test_replacement import declared
from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access
from tests.harness.gateway_process import GatewayFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from penstock.model.ack_evidence import GatewayRun
    from penstock.model.events import AckRange
    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka

SECONDS = 60.0
PARTITIONS = 3
BATCH = 200

Runs = dict[str, "GatewayRun"]


async def evidence(fleet: Fleet, others: Collection[str]) -> tuple[Runs, list[AckRange], int]:
    """Everything in the topic: the runs, their ranges and the bytes these took."""
    runs: Runs = {}
    ranges: list[AckRange] = []
    size = 0
    async with Client(fleet.bootstrap, fleet.security()) as client:
        for number in range(ACKS_PARTITIONS):
            partition = TopicPartition(ACKS_TOPIC, number)
            position, end = await bounds(client, partition)
            while position < end:
                chunk = await read(client, partition, position, wait_ms=100)
                position = chunk.position
                for each in chunk.records:
                    record = AckRanges.from_bytes(each.value)
                    if record.incarnation in others:
                        continue
                    runs[record.incarnation], some = step(runs.get(record.incarnation), record)
                    ranges += some
                    size += len(each.value or b"")
    return runs, ranges, size


class Producers:
    """Two producers, with acks=all and with acks=1, whose acknowledged offsets are collected."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[tuple[int, int, int]] = set()  # partition, offset, acks
        self.bytes = 0

    def produce(self, access: Access, rounds: int) -> set[tuple[int, int, int]]:
        before = set(self.acknowledged)
        producers = {
            -1: Producer(access.client_config(acks="all", enable_idempotence=True, linger_ms=1)),
            1: Producer(access.client_config(acks=1, linger_ms=1)),
        }
        for _ in range(rounds):
            for acks, producer in producers.items():
                for number in range(BATCH):
                    producer.produce(
                        self.topic,
                        bytes(1_000),
                        partition=number % PARTITIONS,
                        on_delivery=partial(self._delivered, acks),
                    )
                producer.poll(0)
        for producer in producers.values():
            assert producer.flush(SECONDS) == 0
        return self.acknowledged - before

    def _delivered(self, acks: int, error: object, message: Any) -> None:
        assert error is None, error
        self.acknowledged.add((message.partition(), message.offset(), acks))
        self.bytes += 1_000


def covered(ranges: list[AckRange]) -> set[tuple[int, int, int]]:
    assert all(one.records == one.offsets for one in ranges), "a range with holes"
    return {(one.partition, offset, one.acks) for one in ranges for offset in range(one.first, one.last + 1)}


def test_every_acknowledged_offset_is_in_the_evidence_or_its_gap_is(
    fleet: Fleet, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    access = new_access()
    asyncio.run(declared(fleet, access))
    state = GatewayFile(fleet, tmp_path / "state.yaml", {"tenants_from": "state"})
    with_file = GatewayFile(fleet, tmp_path / "file.yaml")
    others = asyncio.run(evidence(fleet, set()))[0].keys()  # runs of other tests

    try:
        (access,) = state.write(access)
        (access_by_file,) = with_file.write(access)
        running = state.start()
        admin, topic, unseen = AdminClient(access.client_config()), unique("acked"), unique("unseen")
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (topic, unseen)]).values():
            made.result(SECONDS)
        producers = Producers(topic)
        producers.produce(access, 20)
        silent = Producer(access.client_config(acks=0))
        silent.produce(unseen, b"not evidence")
        assert silent.flush(SECONDS) == 0
        os.kill(running.pid, signal.SIGTERM)
        assert state.wait(running) == 0  # drained

        killed = state.start()
        producers.produce(access, 20)
        acknowledged = set(producers.acknowledged)
        wait_for(
            lambda: acknowledged <= covered(asyncio.run(evidence(fleet, others))[1]),
            what="evidence while it runs",
            seconds=SECONDS,
        )
        unproven = producers.produce(access, 1)
        os.kill(killed.pid, signal.SIGKILL)
        state.wait(killed)

        last = with_file.start()
        producers.produce(access_by_file, 20)
        os.kill(last.pid, signal.SIGTERM)
        assert with_file.wait(last) == 0
    finally:
        state.stop()
        with_file.stop()

    runs, ranges, size = asyncio.run(evidence(fleet, others))
    evident = covered(ranges)
    assert producers.acknowledged - evident <= unproven
    assert evident <= producers.acknowledged
    assert sorted(run.complete for run in runs.values()) == [False, True, True]
    assert not any(run.missing or run.lost for run in runs.values())
    assert len({one.topic_id for one in ranges}) == 1  # acks=0 is no evidence
    print(f"evidence {size} bytes of {producers.bytes}: {size / producers.bytes:.5f}")
    assert size <= INGRESS_SHARE_MAX * producers.bytes + BYTES_PER_SECOND_MIN * 4 * SECONDS
