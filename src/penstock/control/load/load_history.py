"""The history of broker load: `_penstock.load` on each physical cluster, seven days.

The active control plane writes a `BrokerLoad` of every broker with each observation, and once a minute the
`TopicRates` of each broker. A control plane that starts reads the last ones, so that it has averages at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from penstock.balance.broker_load import FRESH_SECONDS
from penstock.kafka.admin.offsets import list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.admin.topics import NewTopic
from penstock.kafka.append import LEADER, append
from penstock.kafka.partition_log import bounds, ensure_topic, read
from penstock.model import key_names
from penstock.model.errors import PenstockError
from penstock.model.errors.events import EventOfAnotherKind
from penstock.model.events import BrokerLoad, TopicRates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kafka.client import Client
    from penstock.model.ids import BrokerId, PhysicalClusterId
    from penstock.wire.records import Record

RETENTION_MS: Final = 7 * 24 * 3600 * 1000
LOAD: Final = TopicPartition(key_names.LOAD_TOPIC, 0)
RATES_SECONDS: Final = 60.0  # between two `TopicRates` of a broker
LOOK_BACK_SECONDS: Final = FRESH_SECONDS + RATES_SECONDS  # older averages are of no use
RATES_CHARACTERS_MAX: Final = 256 << 10  # of the topic names in one record
ROW_CHARACTERS: Final = 60  # of three rates
ATTEMPTS_MAX: Final = 3  # the next record comes soon

log = structlog.get_logger("penstock.control")


@dataclass(slots=True)
class RecentLoad:
    """The last records of each broker."""

    loads: dict[int, BrokerLoad] = field(default_factory=dict)
    rates: dict[int, dict[str, tuple[float, ...]]] = field(default_factory=dict)  # by broker and topic
    _rates_ms: dict[int, int] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        try:
            load = BrokerLoad.from_bytes(record.value)
            self.loads[int(load.broker)] = load
        except EventOfAnotherKind:
            self._add_rates(TopicRates.from_bytes(record.value))

    def _add_rates(self, event: TopicRates) -> None:
        broker = int(event.broker)
        if self._rates_ms.get(broker) != event.time_ms:
            self.rates[broker] = {}
        self._rates_ms[broker] = event.time_ms
        self.rates[broker].update(event.rates)


async def ensure_load_topic(client: Client) -> None:
    configs = {"retention.ms": str(RETENTION_MS)}
    await ensure_topic(client, NewTopic(key_names.LOAD_TOPIC, 1, configs=configs))


async def publish(client: Client, events: Sequence[BrokerLoad | TopicRates]) -> None:
    rows = [(event.key, event.to_bytes()) for event in events]
    if rows:
        await append(client, LOAD, rows, acks=LEADER, attempts_max=ATTEMPTS_MAX)


async def read_recent(client: Client) -> RecentLoad:
    """What the last minutes left."""
    recent = RecentLoad()
    since = int((time.time() - LOOK_BACK_SECONDS) * 1000)
    position = results_or_raise(await list_offsets(client, {LOAD: since}))[LOAD].offset
    _, end = await bounds(client, LOAD)
    while 0 <= position < end:
        chunk = await read(client, LOAD, position)
        for record in chunk.records:
            try:
                recent.add(record)
            except PenstockError as failure:  # perhaps written by a newer control plane
                log.warning("load not understood", **{key_names.ERROR: str(failure)})
        position = chunk.position
    return recent


def rates_events(
    cluster: PhysicalClusterId,
    broker: BrokerId,
    window_ms: tuple[int, int],
    rates: Mapping[str, tuple[float, ...]],
) -> list[TopicRates]:
    """The rates of a broker's topics, in as many records as their size demands."""
    parts: list[dict[str, tuple[float, ...]]] = [{}]
    size = 0
    for topic, row in rates.items():
        size += len(topic) + ROW_CHARACTERS
        if size > RATES_CHARACTERS_MAX and parts[-1]:
            parts.append({})
            size = len(topic) + ROW_CHARACTERS
        parts[-1][topic] = row
    return [
        TopicRates(cluster, broker, *window_ms, rates=part, part=number, parts=len(parts))
        for number, part in enumerate(parts)
    ]
