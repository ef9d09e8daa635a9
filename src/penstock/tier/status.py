"""How far each tiered partition is in the store, and what each broker's plugin counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.offsets import OffsetSpec, list_offsets
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.metrics_scrape import scrape_text
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kafka.client import Client

_COUNTER: Final = re.compile(r"^penstock_tier_(\w+?)(?:_total)? (\S+)", re.MULTILINE)
_PLACES: Final = {
    "start": OffsetSpec.EARLIEST,
    "local_start": OffsetSpec.EARLIEST_LOCAL,
    "tiered_to": OffsetSpec.LATEST_TIERED,
    "end": OffsetSpec.LATEST,
}


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """Offsets of one partition; None where its leader did not respond."""

    topic: str
    partition: int
    start: int | None
    local_start: int | None  # the first on the leader's disk
    tiered_to: int | None  # the last in the store; -1: none yet
    end: int | None


async def tiered_topics(client: Client) -> list[str]:
    """The topics whose old segments go to the store."""
    names = sorted(await topics.describe(client))
    resources = [configs.topic(name) for name in names]
    described = await configs.describe(client, resources)
    return [
        name
        for name, resource in zip(names, resources)
        if not isinstance(entries := described[resource], PenstockError)
        and entries["remote.storage.enable"].value == "true"
    ]


async def tiered_partitions(client: Client) -> list[TieredPartition]:
    names = await tiered_topics(client)
    if not names:
        return []
    described = results_or_raise(await topics.describe(client, names))
    places = [TopicPartition(name, p.index) for name in names for p in described[name].partitions]
    offsets = {key: await list_offsets(client, dict.fromkeys(places, spec)) for key, spec in _PLACES.items()}
    return [_row(place, {key: offsets[key][place] for key in _PLACES}) for place in places]


def _row(place: TopicPartition, offsets: dict[str, Any]) -> TieredPartition:
    values = {
        key: None if isinstance(value, PenstockError) else value.offset for key, value in offsets.items()
    }
    return TieredPartition(place.topic, place.partition, **values)


async def broker_counters(agents: Sequence[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """What the plugin of each broker counted since its start; `error` for a broker that did not respond."""
    rows: list[dict[str, Any]] = []
    for name, host, port in agents:
        try:
            rows.append({"broker": name, **parse_counters(await scrape_text(host, port))})
        except PenstockError as error:
            rows.append({"broker": name, "error": error.message})
    return rows


def parse_counters(text: str) -> dict[str, int]:
    return {name: int(float(value)) for name, value in _COUNTER.findall(text)}
