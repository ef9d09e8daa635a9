"""The KRaft quorum of a real cluster, and its metadata log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.fleet.spec import Listener
from penstock.kafka import quorum
from penstock.kafka.client import Client
from penstock.kafka.security import Login, Mechanism, Security
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.quorum import Chunk, MetadataRecord
    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


async def test_brokers_and_controllers_describe_the_same_quorum(client: Client, controllers: Client) -> None:
    by_broker, by_controller = await quorum.describe(client), await quorum.describe(controllers)

    assert by_broker.leader_id == by_controller.leader_id == 1001
    assert [voter.id for voter in by_broker.voters] == [1001]
    assert {observer.id for observer in by_broker.observers} == {1, 2, 3}
    assert by_broker.addresses == by_controller.addresses
    assert by_controller.high_watermark >= by_broker.high_watermark > 0


async def test_the_metadata_log_holds_every_change_in_order(
    client: Client, controllers: Client, make_topic: MakeTopic
) -> None:
    begin = (await quorum.describe(controllers)).high_watermark
    topic = await make_topic(partitions=2)
    seen: list[MetadataRecord] = []
    position = begin

    async def topic_seen() -> bool:
        nonlocal position
        chunk = await quorum.read(controllers, position, wait_seconds=0.5)
        seen.extend(chunk.records)
        position = chunk.next_offset
        return any(r.entry.name == "TopicRecord" and r.entry.values["Name"] == topic for r in seen)

    await eventually(topic_seen)

    offsets = [record.offset for record in seen]
    (created,) = (r for r in seen if r.entry.name == "TopicRecord" and r.entry.values["Name"] == topic)
    placed = [r for r in seen if r.entry.name == "PartitionRecord"]
    own = [r for r in placed if r.entry.values["TopicId"] == created.entry.values["TopicId"]]
    assert offsets == sorted(set(offsets))
    assert offsets[0] >= begin
    assert sorted(r.entry.values["PartitionId"] for r in own) == [0, 1]


async def test_the_whole_log_can_be_read_from_its_start(controllers: Client) -> None:
    end = (await quorum.describe(controllers)).high_watermark
    names: set[str] = set()
    position = 0
    while position < end:
        chunk = await quorum.read(controllers, position)
        names |= {record.entry.name for record in chunk.records}
        assert chunk.next_offset > position
        position = chunk.next_offset

    assert {"FeatureLevelRecord", "RegisterBrokerRecord", "UserScramCredentialRecord"} <= names


@pytest.fixture
def trimming(make_fleet: Callable[..., Fleet]) -> Fleet:
    """One node that takes a snapshot after every record and keeps no older log."""
    always = {
        "metadata.log.max.record.bytes.between.snapshots": "1",
        "metadata.max.retention.bytes": "1",
        "metadata.max.retention.ms": "1000",
    }
    return make_fleet(combined=True, brokers=1, zones=["a"], config=always)


async def test_a_trimmed_log_is_read_from_a_real_snapshot(trimming: Fleet) -> None:
    node = trimming.nodes[0]
    login = Login(PLATFORM_USER, node.access.credentials.platform, Mechanism.PLAIN)
    bootstrap = node.cluster.spec.bootstrap(Listener.CONTROLLER)
    async with Client(bootstrap, Security(login), controllers=True) as controllers:

        async def trimmed() -> Chunk | None:
            chunk = await quorum.read(controllers, 0)
            return chunk if chunk.is_snapshot else None

        chunk = await eventually(trimmed)
        after = await quorum.read(controllers, chunk.next_offset, wait_seconds=1)

    assert "RegisterBrokerRecord" in {record.entry.name for record in chunk.records}
    assert all(record.offset >= chunk.next_offset for record in after.records)
