"""Builds the planner's model from what a cluster reports: replicas, log sizes, traffic and broker load.

Kafka reports bytes by topic and broker. A topic's bytes on a broker are split over the partitions that it
leads there: by the growth of their logs where that is known, else evenly. The time of request handlers is
given to replicas by a profile's weights for bytes in, bytes out and replicated bytes; what a broker is busy
beyond that is its base, which no move changes. Internal topics are included: they cost as much as others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from penstock.balance.model import ABSENT, ANYWHERE, RESOURCES, Brokers, ClusterModel, Costs, Resource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.balance.actions import Action
    from penstock.balance.model import Bools, Floats, Ints

    Partition = tuple[str, int]  # topic and number


class DescribedPartition(Protocol):
    """A partition as the Admin API describes it."""

    @property
    def index(self) -> int: ...
    @property
    def leader(self) -> int: ...  # −1: none
    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def isr(self) -> Sequence[int]: ...


class Traffic(NamedTuple):
    """Bytes a second of one topic on one broker, from and to clients."""

    ingress: float = 0.0
    egress: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """How much of the request handlers' time a byte costs, relative to each other."""

    leader_in: float = 1.0
    leader_out: float = 0.2
    follower_in: float = 0.2


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    id: int
    zone: str
    cell: str | None  # None: in no cell yet
    alive: bool = True
    takes_load: bool = True  # may be given replicas by a plan
    leads: bool = True
    joining: bool = False
    leaving: bool = False  # to be emptied; a dead broker, too, only if it is leaving
    disk_bytes: float | None = None  # capacity of its log directories
    disk_free_bytes: float | None = None
    load: float | None = None  # share of the request handlers' time


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Everything that a model is built from."""

    brokers: Sequence[BrokerFacts]
    topics: Mapping[str, Sequence[DescribedPartition]]
    sizes: Mapping[int, Mapping[Partition, int]]  # bytes by broker
    traffic: Mapping[tuple[str, int], Traffic] = field(default_factory=dict)  # by topic and broker
    growth: Mapping[Partition, float] = field(default_factory=dict)  # of logs, bytes a second
    cell_of: Callable[[str], str | None] = lambda _: None  # of a topic; None: no cell
    tenant_of: Callable[[str], str] = lambda _: ""  # of a topic
    pinned: Collection[str] = ()  # topics that no plan touches
    resting: Collection[Partition] = ()  # partitions that no plan touches
    weights: LoadWeights = LoadWeights()


@dataclass(frozen=True)
class NamedModel:
    """A model, and the names of what it numbers."""

    model: ClusterModel
    topics: tuple[str, ...]
    tenants: tuple[str, ...]
    cells: tuple[str, ...]
    numbers: Ints  # of partitions within their topics
    measured: bool  # there is a load of every living broker

    def partition(self, action: Action) -> Partition:
        return self.topics[int(self.model.topics[action.partition])], int(self.numbers[action.partition])


FACTOR_MIN: Final = 1  # columns of `replicas`, even without partitions


def build(facts: ClusterFacts) -> NamedModel:
    place = {broker.id: number for number, broker in enumerate(facts.brokers)}
    cells = tuple(sorted({broker.cell for broker in facts.brokers if broker.cell is not None}))
    topics = tuple(sorted(facts.topics))
    tenants = tuple(sorted({facts.tenant_of(topic) for topic in topics}))
    rows = _Rows.read(facts, topics, place)
    cell_number = {cell: number for number, cell in enumerate(cells)}
    tenant_number = {tenant: number for number, tenant in enumerate(tenants)}
    by_topic = np.array([cell_number.get(facts.cell_of(name) or "", ANYWHERE) for name in topics], np.int32)
    tenant_by_topic = np.array([tenant_number[facts.tenant_of(name)] for name in topics], np.int32)
    pinned = _pinned(facts, topics, rows)
    size = _sizes(facts, topics, rows, place)
    traffic = _traffic(facts, topics, rows)
    costs = _costs(facts, rows, size, traffic)
    brokers = _brokers(facts, cells)
    model = ClusterModel(
        brokers, costs, rows.topics, tenant_by_topic[rows.topics], by_topic[rows.topics],
        rows.replicas, rows.leaders, rows.in_sync, pinned,
    )  # fmt: skip
    measured = all(broker.load is not None for broker in facts.brokers if broker.alive)
    if measured:
        _share_load(facts, model)
    else:
        costs.leader[:, Resource.LOAD] = costs.follower[:, Resource.LOAD] = 0.0
        model.totals[:, Resource.LOAD] = 0.0
    return NamedModel(model, topics, tenants, cells, rows.numbers, measured)


@dataclass(frozen=True, slots=True)
class _Rows:
    """One row per partition, in the order of topics and numbers."""

    topics: Ints
    numbers: Ints
    replicas: Ints
    leaders: Ints
    in_sync: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

    @classmethod
    def read(cls, facts: ClusterFacts, topics: Sequence[str], place: Mapping[int, int]) -> _Rows:
        """Without partitions that have replicas on brokers that are not listed."""
        kept = [
            (number, one)
            for number, topic in enumerate(topics)
            for one in sorted(facts.topics[topic], key=lambda partition: partition.index)
            if one.replicas and all(broker in place for broker in one.replicas)
        ]
        factor = max((len(one.replicas) for _, one in kept), default=FACTOR_MIN)
        replicas = np.full((len(kept), factor), ABSENT, np.int32)
        in_sync = np.zeros((len(kept), factor), np.bool_)
        leaders = np.full(len(kept), ABSENT, np.int32)
        for row, (_, one) in enumerate(kept):
            for position, broker in enumerate(one.replicas):
                replicas[row, position] = place[broker]
                in_sync[row, position] = broker in one.isr
                if broker == one.leader:
                    leaders[row] = position
        return cls(
            np.array([number for number, _ in kept], np.int32),
            np.array([one.index for _, one in kept], np.int32),
            replicas,
            leaders,
            in_sync,
        )

    def leading(self) -> Ints:
        """The leader's broker of each partition, or ABSENT."""
        first = self.replicas[np.arange(len(self.leaders)), np.maximum(self.leaders, 0)]
        return np.where(self.leaders == ABSENT, ABSENT, first).astype(np.int32)


def _pinned(facts: ClusterFacts, topics: Sequence[str], rows: _Rows) -> Bools:
    by_topic = np.array([name in facts.pinned for name in topics], np.bool_)
    pinned = by_topic[rows.topics]
    if facts.resting:
        pinned |= np.array(
            [
                (topics[topic], int(number)) in facts.resting
                for topic, number in zip(rows.topics, rows.numbers, strict=True)
            ],
            np.bool_,
        )
    return pinned


def _sizes(facts: ClusterFacts, topics: Sequence[str], rows: _Rows, place: Mapping[int, int]) -> Floats:
    """The largest replica of each partition: a follower that is behind will have as much."""
    row_of = {
        (topics[topic], int(number)): row
        for row, (topic, number) in enumerate(zip(rows.topics, rows.numbers, strict=True))
    }
    size = np.zeros(len(rows.topics))
    for broker, logs in facts.sizes.items():
        if broker not in place:
            continue
        for partition, held in logs.items():
            row = row_of.get((partition[0], partition[1]))
            if row is not None and held > size[row]:
                size[row] = held
    return size


def _traffic(facts: ClusterFacts, topics: Sequence[str], rows: _Rows) -> Floats:
    """[partition, in and out]: a topic's bytes on a broker, split over what it leads there."""
    leading = rows.leading()
    growth = np.array(
        [
            facts.growth.get((topics[topic], int(number)), 0.0)
            for topic, number in zip(rows.topics, rows.numbers, strict=True)
        ]
        if facts.growth
        else np.zeros(len(rows.topics))
    )
    count = max(len(facts.brokers), 1)
    led = leading != ABSENT
    groups = rows.topics.astype(np.int64) * count + np.maximum(leading, 0)
    _, group = np.unique(groups, return_inverse=True)
    grown = np.bincount(group, growth * led, minlength=1)
    partitions = np.bincount(group, led, minlength=1)
    even = 1.0 / np.maximum(partitions[group], 1)
    share = np.where(grown[group] > 0, growth / np.where(grown[group] > 0, grown[group], 1.0), even) * led
    split = np.zeros((len(rows.topics), 2))
    ids = [broker.id for broker in facts.brokers]
    first = np.unique(group, return_index=True)[1]
    bytes_of = np.zeros((len(first), 2))
    for number, row in enumerate(first):
        if led[row]:
            key = (topics[rows.topics[row]], ids[leading[row]])
            bytes_of[number] = facts.traffic.get(key, Traffic())
    split[:] = bytes_of[group] * share[:, np.newaxis]
    return split


def _costs(facts: ClusterFacts, rows: _Rows, size: Floats, traffic: Floats) -> Costs:
    """Load is in the weights' unit here; `_share_load` scales it."""
    count, weights = len(size), facts.weights
    ingress, egress = traffic[:, 0], traffic[:, 1]
    followers = (rows.replicas != ABSENT).sum(axis=1) - 1
    leader, follower = np.zeros((count, RESOURCES)), np.zeros((count, RESOURCES))
    leader[:, Resource.DISK] = follower[:, Resource.DISK] = size
    leader[:, Resource.INGRESS] = follower[:, Resource.INGRESS] = ingress
    leader[:, Resource.EGRESS] = egress + ingress * followers
    leader[:, Resource.LOAD] = weights.leader_in * ingress + weights.leader_out * leader[:, Resource.EGRESS]
    follower[:, Resource.LOAD] = weights.follower_in * ingress
    leader[:, Resource.LEADER_INGRESS] = ingress
    leader[:, Resource.LEADERS] = leader[:, Resource.REPLICAS] = follower[:, Resource.REPLICAS] = 1.0
    return Costs(leader, follower)


def _share_load(facts: ClusterFacts, model: ClusterModel) -> None:
    """Scales the replicas' load so that together they account for the brokers'; the rest is the base."""
    load = np.array([broker.load or 0.0 for broker in facts.brokers])
    weighed = model.totals[:, Resource.LOAD]
    scale = load.sum() / weighed.sum() if weighed.sum() > 0 else 0.0
    for table in (model.costs.leader, model.costs.follower, model.totals):
        table[:, Resource.LOAD] *= scale
    model.brokers.base[:, Resource.LOAD] = np.maximum(load - model.totals[:, Resource.LOAD], 0.0)


def _brokers(facts: ClusterFacts, cells: Sequence[str]) -> Brokers:
    brokers = facts.brokers
    zones = sorted({broker.zone for broker in brokers})
    capacity = np.full((len(brokers), RESOURCES), np.inf)
    base = np.zeros((len(brokers), RESOURCES))
    for number, broker in enumerate(brokers):
        if broker.disk_bytes is not None:
            capacity[number, Resource.DISK] = broker.disk_bytes
            logs = float(sum(facts.sizes.get(broker.id, {}).values()))
            free = broker.disk_free_bytes
            base[number, Resource.DISK] = 0.0 if free is None else max(broker.disk_bytes - free - logs, 0.0)
    # A broker in no cell yet is in one of its kind, where no tenant's partition is.
    outside = len(cells)
    return Brokers(
        np.array([broker.id for broker in brokers], np.int32),
        np.array([zones.index(broker.zone) for broker in brokers], np.int32),
        np.array([outside if b.cell is None else cells.index(b.cell) for b in brokers], np.int32),
        capacity,
        base,
        np.array([broker.alive for broker in brokers], np.bool_),
        np.array([broker.takes_load for broker in brokers], np.bool_),
        np.array([broker.leads for broker in brokers], np.bool_),
        np.array([broker.joining for broker in brokers], np.bool_),
        np.array([broker.leaving for broker in brokers], np.bool_),
    )
