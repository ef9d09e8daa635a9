"""Following `_penstock.quota`: of each tenant what was told last, by whichever coordinator.

The highest (epoch, sequence) counts: one that was replaced and does not know it yet changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from penstock.kafka.following import Follower
from penstock.model import keys
from penstock.model.errors import PenstockError
from penstock.model.events import QuotaShares
from penstock.quota.topics import QUOTA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kafka.client import Client
    from penstock.model.ids import LogicalClusterId
    from penstock.wire.records import Record

log = structlog.get_logger("penstock.quota")


class Told:
    def __init__(self, client: Client, news: Callable[[QuotaShares], None] = lambda _: None) -> None:
        self.last: dict[LogicalClusterId, QuotaShares] = {}
        self._news = news
        self.follower = Follower(client, QUOTA, take=self._take, reset=lambda: None)

    @property
    def epoch(self) -> int:
        """The highest that anybody has decided under."""
        return max((told.epoch for told in self.last.values()), default=0)

    def forget(self, before_ms: int) -> None:
        """What was told so long ago is of no use to anybody."""
        for tenant in [t for t, told in self.last.items() if told.time_ms < before_ms]:
            del self.last[tenant]

    def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            try:
                told = QuotaShares.from_bytes(record.value)
            except PenstockError as failure:  # of a newer coordinator, perhaps
                log.warning("shares not understood", **{keys.ERROR: str(failure)})
                continue
            before = self.last.get(told.tenant)
            if before is None or told.order > before.order:
                self.last[told.tenant] = told
                self._news(told)
