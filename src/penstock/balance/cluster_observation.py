"""Reads what `executing.decide` needs to know of a running cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.balance.executing import Health, Observation, PartitionState, health_of
from penstock.kafka.admin import configs, log_dirs, reassignments, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.model.shadow_ids import is_shadow
from penstock.wire.error_codes import MISSING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penstock.kafka.admin.reassignments import Reassignment
    from penstock.kafka.admin.topics import Topic
    from penstock.kafka.client import Client

SIZES_SECONDS_MAX: Final = 5.0  # a broker that does not report its sizes by then is skipped
MIN_ISR: Final = "min.insync.replicas"
TOPICS_MAX: Final = 500  # of which the minimum of in-sync replicas is read in one round


async def observe(client: Client, names: Collection[str] | None = None) -> Observation:
    """Partitions of these topics, or of all; live brokers; and every reassignment under way.

    Mirrors that a link's shadow leads are listed apart, without the shadow: their link places them."""
    cluster = await client.cluster(refresh=True)
    before = await reassignments.under_way(client)
    described = await topics.describe(client, None if names is None else sorted(names))
    # Listed before and after: a topic description does not show whether a reassignment is running.
    moving = {**before, **await reassignments.under_way(client)}
    partitions: dict[tuple[str, int], PartitionState] = {}
    mirrors: dict[tuple[str, int], tuple[int, ...]] = {}
    for name, topic in _existing(described).items():
        for p in topic.partitions:
            key = TopicPartition(name, p.index)
            if any(map(is_shadow, p.replicas)):
                mirrors[key] = tuple(broker for broker in p.replicas if not is_shadow(broker))
            else:
                partitions[key] = _state(topic, p, moving.get(key))
    return Observation(partitions, frozenset(cluster.real_nodes), frozenset(moving), mirrors=mirrors)


async def with_sizes(
    client: Client, seen: Observation, sized: Iterable[tuple[str, int]], *, everywhere: bool = False
) -> Observation:
    """With the sizes of these partitions, and how much of them new replicas have already.

    Brokers that do not respond are left out."""
    keys = [TopicPartition(*key) for key in sized if key in seen.partitions]
    if not keys:
        return seen
    holders = {broker for key in keys for broker in seen.partitions[key].replicas}
    brokers = sorted(seen.alive if everywhere else holders & seen.alive)
    sizes = await _sizes(client, keys, brokers)
    known = dict(seen.partitions)
    for key in keys:
        state, of_partition = known[key], sizes.get(key, {})
        new = state.adding or state.target
        copied = min((of_partition.get(broker, 0) for broker in new), default=0)
        size = max(of_partition.values(), default=0)
        known[key] = replace(state, size_bytes=size, copied_bytes=copied)
    return replace(seen, partitions=known)


async def cluster_health(client: Client, seen: Observation, slow: str = "") -> Health:
    """Of a whole cluster; the minimum of in-sync replicas is read where it matters."""
    behind = {
        key[0]
        for key, state in seen.partitions.items()
        if not state.reassigning and len(state.isr) < len(state.replicas)
    }
    resources = [configs.topic(name) for name in sorted(behind)[:TOPICS_MAX]]
    described = await configs.describe(client, resources, names=[MIN_ISR]) if resources else {}
    least = {
        resource.name: int(entries[MIN_ISR].value or 1)
        for resource, entries in described.items()
        if not isinstance(entries, PenstockError) and MIN_ISR in entries
    }
    return health_of(seen.partitions, seen.alive, least, slow)


def _existing(described: Mapping[str, Topic | PenstockError]) -> dict[str, Topic]:
    """Topics that were deleted meanwhile are left out; any other error is one of the observation."""
    gone = {
        name
        for name, topic in described.items()
        if isinstance(topic, PenstockError) and topic.facts.get("error_code") in MISSING
    }
    return results_or_raise({name: topic for name, topic in described.items() if name not in gone})


def _state(topic: Topic, p: topics.Partition, moving: Reassignment | None) -> PartitionState:
    return PartitionState(
        topic_id=str(topic.id),
        replicas=p.replicas if moving is None else moving.replicas,
        isr=p.isr,
        leader=p.leader if p.leader >= 0 else None,
        adding=() if moving is None else moving.adding,
        removing=() if moving is None else moving.removing,
        reassigning=moving is not None,
    )


async def _sizes(
    client: Client, partitions: Sequence[TopicPartition], brokers: Sequence[int]
) -> dict[TopicPartition, dict[int, int]]:
    describe = partial(log_dirs.describe, client, partitions=partitions, timeout=SIZES_SECONDS_MAX)
    responses = await asyncio.gather(*(describe([each]) for each in brokers), return_exceptions=True)
    sizes: dict[TopicPartition, dict[int, int]] = {}
    for broker, response in zip(brokers, responses, strict=True):
        if isinstance(response, PenstockError) and response.retriable:
            continue
        if isinstance(response, BaseException):
            raise response
        for directory in response[broker]:
            for key, replica in directory.replicas.items():
                sizes.setdefault(key, {})[broker] = replica.size_bytes
    return sizes
