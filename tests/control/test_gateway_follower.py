"""Following the gateways of every physical cluster: a failure belongs to one cluster, and ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from penstock.control.gateways import gateway_follower
from penstock.control.gateways.gateway_directory import GatewayDirectory
from penstock.control.gateways.gateway_follower import GatewayFollower
from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.model.ids import PhysicalClusterId

if TYPE_CHECKING:
    import pytest

    from penstock.kafka.client import Client

EAST, WEST = PhysicalClusterId("pkc-000001"), PhysicalClusterId("pkc-000002")


class NoConnections(Clusters):
    def client(self, cluster: str) -> Client:
        return cast("Client", cluster)


def provided(cluster: PhysicalClusterId) -> ProvidedCluster:
    return ProvidedCluster(cluster, cluster, "adopted", "kafka:1", PlatformKey(b"k" * 32))


async def test_a_cluster_whose_records_end_the_reader_is_followed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    enough = asyncio.Event()

    async def run(reader: CompactedTopicReader) -> None:
        started.append(reader._client)
        if cast("str", reader._client) == EAST and started.count(EAST) == 2:
            raise UnicodeError("a defect of the reader")
        if started.count(EAST) > 3:
            enough.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(CompactedTopicReader, "run", run)
    monkeypatch.setattr(gateway_follower, "FOLLOW_SECONDS", 0.01)
    follower = GatewayFollower(NoConnections((provided(EAST), provided(WEST))), GatewayDirectory(), {})
    running = asyncio.create_task(follower.run())

    async with asyncio.timeout(30):
        await enough.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert started.count(WEST) == 2  # its readers of gateways and of shares were started once
