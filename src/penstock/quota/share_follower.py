"""Follows `_penstock.quota` and keeps the latest shares of each tenant.

The highest (epoch, sequence) wins, so a replaced coordinator that still publishes changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from penstock.kafka.compacted_topic import CompactedTopicReader
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.events import QuotaShares
from penstock.quota.topics import QUOTA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kafka.client import Client
    from penstock.model.ids import LogicalClusterId
    from penstock.wire.records import Record

log = structlog.get_logger("penstock.quota")


class ShareFollower:
    """Calls `on_shares` for each tenant whose shares changed; run `follower` to start it."""

    def __init__(self, client: Client, on_shares: Callable[[QuotaShares], None] = lambda _: None) -> None:
        self.latest: dict[LogicalClusterId, QuotaShares] = {}
        self._on_shares = on_shares
        self.follower = CompactedTopicReader(client, QUOTA, apply=self._apply, reset=lambda: None)

    @property
    def epoch(self) -> int:
        """The highest epoch of any coordinator."""
        return max((shares.epoch for shares in self.latest.values()), default=0)

    def forget(self, before_ms: int) -> None:
        """Drops shares published before this time."""
        for tenant in [t for t, shares in self.latest.items() if shares.time_ms < before_ms]:
            del self.latest[tenant]

    def _apply(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                shares = QuotaShares.from_bytes(record.value)
            except PenstockError as failure:  # perhaps written by a newer coordinator
                log.warning("shares not understood", **{key_names.ERROR: str(failure)})
                continue
            before = self.latest.get(shares.tenant)
            if before is None or shares.order > before.order:
                self.latest[shares.tenant] = shares
                self._on_shares(shares)
