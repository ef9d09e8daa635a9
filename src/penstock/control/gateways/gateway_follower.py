"""Follows the gateways of every known physical cluster, and the quota shares that coordinators give them.

A cluster that cannot be followed is logged, followed again from the start, and delays no other.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.quota.share_follower import ShareFollower
from penstock.quota.usage_reports import GATEWAY_EXPIRY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.control.gateways.gateway_directory import GatewayDirectory
    from penstock.control.physical.cluster_access import Clusters
    from penstock.kafka.compacted_topic import CompactedTopicReader
    from penstock.model.events import QuotaShares
    from penstock.model.ids import LogicalClusterId

FOLLOW_SECONDS: Final = 2.0  # between two looks at which clusters there are

log = structlog.get_logger("penstock.control")


class GatewayFollower:
    """Keeps `directory` and `shares`, the latest of each tenant, up to date."""

    def __init__(
        self, clusters: Clusters, directory: GatewayDirectory, shares: dict[LogicalClusterId, QuotaShares]
    ) -> None:
        self._clusters = clusters
        self._directory = directory
        self._shares = shares
        self._following: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._follow()
                await asyncio.sleep(FOLLOW_SECONDS)
                self._directory.log_changes()
                self._expire()
        finally:
            for task in self._following.values():
                task.cancel()
            await asyncio.gather(*self._following.values(), return_exceptions=True)

    def _follow(self) -> None:
        for cluster in [cluster for cluster, task in self._following.items() if task.done()]:
            failure = self._following.pop(cluster).exception()
            log.error("gateways not followed", cluster=cluster, exc_info=failure)
        known = {provided.id for provided in self._clusters.known}
        for cluster in self._following.keys() - known:
            self._following.pop(cluster).cancel()
            self._directory.forget(cluster)
        for cluster in known - self._following.keys():
            client = self._clusters.client(cluster)
            shares = ShareFollower(client, on_shares=self._on_shares)
            readers = (shares.follower, self._directory.reader(cluster, client))
            self._following[cluster] = asyncio.create_task(_run(readers))

    def _on_shares(self, shares: QuotaShares) -> None:
        self._shares[shares.tenant] = shares

    def _expire(self) -> None:
        oldest = int((time.time() - GATEWAY_EXPIRY_SECONDS) * 1000)
        for tenant in [t for t, shares in self._shares.items() if shares.time_ms < oldest]:
            del self._shares[tenant]


async def _run(readers: Iterable[CompactedTopicReader]) -> None:
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.run())
