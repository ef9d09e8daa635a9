"""A shadow leads partitions of real brokers: with TLS, SCRAM and an authorizer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from penstock.kafka import quorum
from penstock.kafka.admin import topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import produce_body
from penstock.kafka.metadata_image import PartitionId
from penstock.kafka.routing import LeaderOf
from penstock.shadow.partition import LedPartition, RawBatch
from penstock.wire.error_codes import STALE_METADATA, Code
from penstock.wire.records import CONTROL, TRANSACTIONAL, Producer, Record, batches, records, write
from tests.harness.shadow import running_shadow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.kafka.client import Client
    from penstock.shadow.broker import ShadowBroker
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

NOW_MS = int(time.time() * 1000)  # older records would fall to retention
START = 5_000_000_003
WAIT_SECONDS = 150.0  # as the harness's `wait_for`: for a busy machine
COMMIT = Record(START + 5, NOW_MS, b"\0\0\0\x01", b"\0\0\0\0\0\0")


def source_log(count: int) -> list[RawBatch]:
    """Batches with a gap after each, and a transaction with its marker."""
    made = []
    producer = Producer(4711, 0, 0)
    first = [Record(START + i, NOW_MS, b"k", b"first") for i in range(5)]
    made.append(write(first, producer=producer, flags=TRANSACTIONAL, leader_epoch=90))
    made.append(write([COMMIT], producer=producer, flags=TRANSACTIONAL | CONTROL, leader_epoch=90))
    for number in range(count):
        base = START + 10 + number * 10
        made.append(
            write([Record(base, NOW_MS, b"k", b"%d" % number)], last_offset=base + 4, leader_epoch=91)
        )
    raw = [next(batches(one)) for one in made]
    return [RawBatch(batch.base_offset, batch.last_offset, bytes(batch.raw)) for batch in raw]


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        await asyncio.sleep(0.02)


async def led_topic(shadow: ShadowBroker, client: Client, name: str, log: Sequence[RawBatch]) -> LedPartition:
    real = sorted(broker for broker in shadow.image.brokers if broker != shadow.id)
    new = topics.NewTopic(name, replicas={0: [shadow.id, *real]})
    results_or_raise(await topics.create(client, [new]))
    await until(lambda: name in shadow.image.topics and shadow.image.partitions_of(name), "the topic")

    async def older(offset: int, bytes_max: int) -> Sequence[RawBatch]:
        return [batch for batch in log if batch.last_offset >= offset]

    partition = LedPartition(PartitionId(shadow.image.topics[name], 0), name, START, START, older)
    shadow.lead(partition)
    await until(lambda: partition.leadership is not None and partition.leadership.ready, "the leadership")
    return partition


async def stored(client: Client, name: str, end: int) -> list[tuple[int, int, int]]:
    """Base offset, last offset and CRC of every batch, from the leader.

    A new leader may be known late, and serves consumers only as far as it knows the high watermark."""
    rows: list[tuple[int, int, int]] = []
    offset = START
    deadline = time.monotonic() + WAIT_SECONDS
    while offset < end:
        assert time.monotonic() < deadline, f"read up to {offset} of {end}"
        requested = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
        body = {"MaxWaitMs": 100, "MinBytes": 1, "Topics": [{"Topic": name, "Partitions": [requested]}]}
        response = await client.call("Fetch", {"ReplicaId": -1, **body}, to=LeaderOf(name, 0), version_max=12)
        row = response["Responses"][0]["Partitions"][0]
        if row["ErrorCode"] in STALE_METADATA:
            await client.leaders([name], strict=False)
            continue
        assert row["ErrorCode"] == 0
        for one in batches(row["Records"] or b""):
            rows.append((one.base_offset, one.last_offset, one.crc))
            offset = one.last_offset + 1
    return rows


def spans(log: Sequence[RawBatch]) -> list[tuple[int, int, int]]:
    return [(one.base_offset, one.last_offset, one.crc) for raw in log for one in batches(raw.raw)]


async def test_real_brokers_replicate_from_a_shadow_and_take_over(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=2, tls=True)
    log = source_log(20)
    async with running_shadow(fleet, tmp_path / "shadow") as (shadow, client):
        partition = await led_topic(shadow, client, "mirror", log)
        # A follower that restarts in the middle gets what it missed, and becomes in-sync again.
        partition.append(log[:10], partition.leader_epoch)
        shadow.announce()
        await until(lambda: partition.high_watermark == log[9].last_offset + 1, "the first half")
        await asyncio.to_thread(fleet.kill, "b2")
        await until(lambda: partition.leadership and partition.leadership.in_sync == (1,), "b2 to leave")
        partition.append(log[10:], partition.leader_epoch)
        shadow.announce()
        await until(lambda: partition.high_watermark == partition.end, "the second half on b1")
        await asyncio.to_thread(fleet.start_node, "b2")
        await until(
            lambda: partition.leadership and set(partition.leadership.in_sync) == {1, 2}, "b2 in sync"
        )
        # Nothing can be written, and no other topic is placed on the shadow.
        batch = write([Record(0, 1, None, b"written")])
        body = produce_body(TopicPartition("mirror", 0), batch)
        response = await client.call("Produce", body, to=LeaderOf("mirror", 0), version_max=12)
        assert response["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == Code.POLICY_VIOLATION
        results_or_raise(await topics.create(client, [topics.NewTopic("others", 12, 1)]))
        # From the metadata log: a broker may learn of a new topic later than the controller responds.
        await until(lambda: len(shadow.image.partitions_of("others")) == 12, "the topic of others")
        assert all(shadow.id not in one.replicas for one in shadow.image.partitions_of("others").values())
        await shadow.step_down()
        await until(lambda: partition.leadership is None, "a real leader")
    async with running_shadow(fleet, tmp_path / "shadow") as (again, client):
        assert await stored(client, "mirror", log[-1].last_offset + 1) == spans(log)
        # A new incarnation catches up with the real leader, and leads again.
        key = PartitionId(again.image.topics["mirror"], 0)
        await again.regain("mirror", key)
        assert again.image.partitions[key].leader == again.id
        await again.step_down()
    assert partition.guarded == 0
    assert records(next(batches(log[0].raw)))[0].value == b"first"


@pytest.mark.soak
async def test_followers_whose_sessions_all_ended_are_in_sync_again(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """The controller leaves the shadow alone in sync; a busy machine has the same effect."""
    fleet = await asyncio.to_thread(make_fleet, brokers=2, tls=True)
    log = source_log(20)
    async with running_shadow(fleet, tmp_path / "shadow") as (shadow, client):
        partition = await led_topic(shadow, client, "mirror", log)
        partition.append(log[:10], partition.leader_epoch)
        shadow.announce()
        await until(lambda: partition.high_watermark == log[9].last_offset + 1, "the first half")
        for node in fleet.brokers:
            fleet.pause(node.name)
        await until(lambda: partition.leadership and not partition.leadership.in_sync, "all to leave")
        partition.append(log[10:], partition.leader_epoch)
        shadow.announce()
        for node in fleet.brokers:
            fleet.resume(node.name)
        await until(lambda: partition.leadership and len(partition.leadership.in_sync) == 2, "all in sync")
        await until(lambda: partition.high_watermark == log[-1].last_offset + 1, "the second half")
        await shadow.step_down()
        await until(lambda: partition.leadership is None, "a real leader")
        assert await stored(client, "mirror", log[-1].last_offset + 1) == spans(log)
    assert partition.guarded == 0


@pytest.mark.soak
async def test_a_shadow_outlives_the_active_controller(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=1, zones=["a"], controllers=3, tls=True)
    async with running_shadow(fleet, tmp_path / "shadow") as (shadow, client):
        epoch = shadow.session.broker_epoch
        active = (await quorum.describe(client)).leader_id
        await asyncio.to_thread(fleet.kill, next(n.name for n in fleet.nodes if n.spec.id == active))
        new = topics.NewTopic("later", replicas={0: [shadow.id, fleet.brokers[0].spec.id]})
        results_or_raise(await topics.create(client, [new], timeout=WAIT_SECONDS))
        await until(lambda: shadow.image.partitions_of("later"), "the metadata log of another controller")
        assert shadow.image.partitions_of("later")[0].leader == shadow.id
        assert not shadow.session.fenced
        assert shadow.session.broker_epoch == epoch, "it stays registered"
        await shadow.step_down()
