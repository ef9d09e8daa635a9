"""Log directories of real brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import log_dirs
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors.wire import BrokerUnknown

if TYPE_CHECKING:
    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic, Produce

pytestmark = pytest.mark.kafka


async def test_a_replica_is_described_with_its_size(
    client: Client, make_topic: MakeTopic, produce: Produce
) -> None:
    partition = TopicPartition(await make_topic(replicas={0: [2]}), 0)
    await produce(partition.topic, b"x" * 1000)

    described = await log_dirs.describe(client, partitions=[partition])

    holders = {
        b: d.replicas[partition] for b, dirs in described.items() for d in dirs if partition in d.replicas
    }
    assert sorted(described) == [1, 2, 3]
    assert list(holders) == [2]
    assert holders[2].size_bytes > 1000
    assert (holders[2].offset_lag, holders[2].is_future) == (0, False)
    assert all(
        d.error is None and d.total_bytes > d.usable_bytes > 0 for dirs in described.values() for d in dirs
    )


async def test_a_broker_that_does_not_exist_is_named(client: Client) -> None:
    with pytest.raises(BrokerUnknown, match="no node 99"):
        await log_dirs.describe(client, [99])
