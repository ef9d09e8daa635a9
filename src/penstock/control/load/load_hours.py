"""Hours of load on `_penstock.load-hours` of each physical cluster, five weeks.

The active control plane folds its observations into hours and writes the hour in progress every few minutes.
Records of the same hour are merged by readers, so a takeover within an hour loses at most these minutes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from penstock.balance.load_hours import HOUR_MS, fold
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.append import LEADER, append
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.events import LoadHour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.control.physical.cluster_access import Clusters
    from penstock.kafka.client import Client
    from penstock.model.events import BrokerLoad

HOURS: Final = TopicPartition(key_names.LOAD_HOURS_TOPIC, 0)
RETENTION_MS: Final = 35 * 24 * HOUR_MS
WRITE_SECONDS: Final = 300.0  # between two records of the hour in progress
HOURS_KEPT: Final = 35 * 24  # in memory, of one cluster
ATTEMPTS_MAX: Final = 3

log = structlog.get_logger("penstock.control")


async def ensure_load_hours_topic(client: Client) -> None:
    configs = {"retention.ms": str(RETENTION_MS)}
    await ensure_topic(client, NewTopic(key_names.LOAD_HOURS_TOPIC, 1, configs=configs))


class LoadHours:
    """The hours of one physical cluster: those of the topic, and the one in progress."""

    def __init__(self) -> None:
        self.hours: dict[int, LoadHour] = {}
        self._position: int | None = None
        self._current: LoadHour | None = None
        self._written = 0.0

    def add(self, hour: LoadHour) -> None:
        known = self.hours.get(hour.hour)
        self.hours[hour.hour] = hour if known is None else known.merged(hour)
        while len(self.hours) > HOURS_KEPT:
            del self.hours[min(self.hours)]

    async def observe(self, client: Client, brokers: Sequence[BrokerLoad], now: float) -> None:
        """Adds an observation, and writes the hour if it is complete or was not written for a while."""
        before = self._current
        self._current = after = fold(before, brokers, int(now * 1000))
        if after is None:
            return
        complete = before is not None and before.hour != after.hour
        if complete or now - self._written >= WRITE_SECONDS:
            hour = before if complete and before is not None else after
            await append(client, HOURS, [(hour.key, hour.to_bytes())], acks=LEADER, attempts_max=ATTEMPTS_MAX)
            self._written = now
        self.add(after)

    async def refresh(self, client: Client) -> None:
        """Reads what is new on the topic."""
        first, end = await bounds(client, HOURS)
        position = first if self._position is None else max(self._position, first)
        while position < end:
            chunk = await read(client, HOURS, position)
            for record in chunk.records:
                try:
                    self.add(LoadHour.from_bytes(record.value))
                except PenstockError as failure:  # perhaps written by a newer control plane
                    log.warning("hour not understood", **{key_names.ERROR: str(failure)})
            position = chunk.position
        self._position = position


class HourHistory:
    """The hours of every physical cluster."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._hours: dict[str, LoadHours] = {}

    async def observe(self, cluster: str, brokers: Sequence[BrokerLoad]) -> None:
        hours = self._hours.setdefault(cluster, LoadHours())
        await hours.observe(self._clusters.client(cluster), brokers, time.time())

    async def hours(self, cluster: str) -> Mapping[int, LoadHour]:
        """Up to date with the topic."""
        hours = self._hours.setdefault(cluster, LoadHours())
        await hours.refresh(self._clusters.client(cluster))
        return hours.hours


def hour_now() -> int:
    return int(time.time() * 1000) // HOUR_MS
