"""Creates and repairs the probe topics, so that every broker has its pinned partitions.

The checker's login for the brokers does this, not its API key: tenants place no partitions on brokers outside
their cell. Names carry the prefix of the checker's tenant, which sees them without it.
"""

from __future__ import annotations

from asyncio import gather
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.health.schedule import PINNED, TOPICS, pin
from penstock.kafka.admin import brokers, configs, reassignments, topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.model.errors import PenstockError
from penstock.model.errors.health import ProbeTopicsMissing
from penstock.model.events import ProbeRole
from penstock.model.ids import LogicalClusterId, tenant_prefix
from penstock.wire.error_codes import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.health.schedule import Replicas, TopicRepair
    from penstock.kafka.admin.topics import Topic
    from penstock.kafka.client import Client
    from penstock.kafka.routing import Address

CALL_SECONDS: Final = 4.0
CORDON_SECONDS: Final = 1.0
CORDONED: Final = "cordoned.log.dirs"
MIN_ISR: Final = {ProbeRole.ALONE: 1, ProbeRole.PAIR: 1, ProbeRole.PATH: 2}
CONFIGS: Final = {"retention.ms": str(3600 * 1000), "segment.ms": str(600 * 1000)}


@dataclass(frozen=True, slots=True)
class ProbeLayout:
    """Which partition probes which broker, and what leads it now."""

    zones: Mapping[int, str] = field(default_factory=dict)
    addresses: Mapping[int, Address] = field(default_factory=dict)  # of brokers' inner listeners
    fenced: frozenset[int] = frozenset()
    numbers: Mapping[int, int] = field(default_factory=dict)  # broker → partition
    leaders: Mapping[tuple[ProbeRole, int], int] = field(default_factory=dict)  # −1: none
    replicas: Mapping[tuple[ProbeRole, int], Replicas] = field(default_factory=dict)

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(sorted(self.numbers))

    def follower(self, broker: int) -> int | None:
        """Of the pair that is pinned to this broker."""
        placed = self.replicas.get((ProbeRole.PAIR, self.numbers[broker]), ())
        return next((other for other in placed if other != broker), None)


def topic_of(role: ProbeRole, tenant: str) -> str:
    """The topic as brokers name it."""
    return f"{tenant_prefix(LogicalClusterId(tenant))}{TOPICS[role]}"


async def read_layout(client: Client, tenant: str, cluster: str) -> ProbeLayout:
    """The layout as it is, after repairing what is missing."""
    described = await brokers.describe(client, fenced=True, timeout=CALL_SECONDS)
    zones = {broker: each.rack or "" for broker, each in described.brokers.items()}
    fenced = frozenset(broker for broker, each in described.brokers.items() if each.fenced)
    existing = await _topics(client, tenant)
    placed = {role: {p.index: p.replicas for p in topic.partitions} for role, topic in existing.items()}
    pinning = pin(zones, placed)
    if pinning.repairs:
        alive = {b: z for b, z in zones.items() if b not in fenced}
        leaving = await _cordoned(client, alive)
        pinning = pin({b: z for b, z in zones.items() if b not in leaving}, placed)
        for role, each in pinning.repairs.items():
            await _repair(client, role, tenant, each, placed.get(role, {}), alive, cluster)
        existing = await _topics(client, tenant)
    rows = [(role, p) for role, topic in existing.items() for p in topic.partitions]
    return ProbeLayout(
        zones,
        {broker: each.address for broker, each in described.brokers.items()},
        fenced,
        pinning.numbers,
        {(role, p.index): p.leader for role, p in rows},
        {(role, p.index): p.replicas for role, p in rows},
    )


async def _topics(client: Client, tenant: str) -> dict[ProbeRole, Topic]:
    names = {topic_of(role, tenant): role for role in PINNED}
    described = await topics.describe(client, list(names), timeout=CALL_SECONDS)
    existing = {}
    for name, role in names.items():
        topic = described.get(name)
        if isinstance(topic, PenstockError):
            if topic.facts.get("error_code") not in MISSING:
                raise topic
        elif topic is not None:
            existing[role] = topic
    return existing


async def _cordoned(client: Client, alive: Iterable[int]) -> set[int]:
    """Brokers that take no new replica, as those that leave. One that does not respond counts as open."""

    async def is_cordoned(broker: int) -> bool:
        resource = configs.broker(broker)
        try:
            described = await configs.describe(client, [resource], names=[CORDONED], timeout=CORDON_SECONDS)
        except PenstockError:
            return False
        entries = described[resource]
        return not isinstance(entries, PenstockError) and any(entry.value for entry in entries.values())

    ids = list(alive)
    return {b for b, is_one in zip(ids, await gather(*map(is_cordoned, ids)), strict=True) if is_one}


async def _repair(
    client: Client,
    role: ProbeRole,
    tenant: str,
    repair: TopicRepair,
    placed: Mapping[int, Replicas],
    alive: Mapping[int, str],
    cluster: str,
) -> None:
    """Partitions on brokers that are down wait: Kafka would refuse them."""
    name = topic_of(role, tenant)
    outcomes: list[object] = []
    if not placed and repair.add:
        least = min(MIN_ISR[role], max(len(each) for each in repair.add))
        settings = CONFIGS | {"min.insync.replicas": str(least)}
        new = topics.NewTopic(name, replicas=dict(enumerate(repair.add)), configs=settings)
        outcomes += (await topics.create(client, [new])).values()
    elif repair.add and all(broker in alive for each in repair.add for broker in each):
        count = len(placed) + len(repair.add)
        outcomes += (await topics.add_partitions(client, {name: count}, replicas={name: repair.add})).values()
    moves = {
        TopicPartition(name, number): replicas
        for number, replicas in repair.reassign.items()
        if all(broker in alive for broker in replicas)
    }
    if moves:
        outcomes += (await reassignments.alter(client, moves)).values()
    for outcome in outcomes:
        if isinstance(outcome, PenstockError):
            raise ProbeTopicsMissing(cluster=cluster, reason=str(outcome))
