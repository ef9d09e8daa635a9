"""Skewed clusters for `balance`: topics of a power law, on brokers that carry up to four times the mean."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from penstock.balance.cluster_model import BrokerFacts, ClusterFacts, Traffic
from penstock.balance.goals import GOALS
from penstock.balance.model import RESOURCES, Brokers, ClusterModel, Costs, Resource
from penstock.balance.planner import LEADER_ONLY
from penstock.kafka.admin.topics import Partition

if TYPE_CHECKING:
    from penstock.balance.goals import Bounds
    from penstock.balance.model import Floats

FACTOR, ZONES, TENANTS = 3, 3, 50
PARTITIONS_PER_TOPIC = 30
SHAPE, CAPPED = 1.6, 0.999  # of the topics' power law, and the quantile above which it is cut
SKEW_MAX = 4.0  # of one broker's share to another's
LOAD_MEAN = 0.5
ALL_GOALS = tuple(replace(goal, floor=0.0) for goal in GOALS)  # the clusters are small in bytes


def skewed(replicas: int, brokers: int, seed: int, *, joining: int = 0) -> ClusterModel:
    """The last `joining` brokers are new and empty."""
    dice = np.random.default_rng(seed)
    count = replicas // FACTOR
    topics = np.sort(dice.integers(0, max(1, count // PARTITIONS_PER_TOPIC), count)).astype(np.int32)
    popular = dice.pareto(SHAPE, int(topics.max()) + 1) + 0.1
    popular = np.minimum(popular, np.quantile(popular, CAPPED))[topics]
    ingress = popular * dice.exponential(1.0, count) * 1e4
    size, egress = popular * dice.exponential(1.0, count) * 1e8, ingress * dice.exponential(2.0, count)
    costs = _costs(size, ingress, egress, load=LOAD_MEAN * brokers)
    zone = (np.arange(brokers) % ZONES).astype(np.int32)
    weight = np.minimum(dice.pareto(1.5, brokers) + 1, SKEW_MAX)
    weight[brokers - joining :] = 0.0
    placed = np.empty((count, FACTOR), np.int32)
    for one in range(ZONES):
        members = np.flatnonzero(zone == one)
        placed[:, one] = members[dice.choice(len(members), count, p=weight[members] / weight[members].sum())]
    order = dice.permuted(np.tile(np.arange(FACTOR), (count, 1)), axis=1)
    new = np.arange(brokers) >= brokers - joining
    yes, no = np.ones(brokers, np.bool_), np.zeros(brokers, np.bool_)
    table = Brokers(
        np.arange(brokers, dtype=np.int32), zone, np.zeros(brokers, np.int32),
        np.full((brokers, RESOURCES), np.inf), np.zeros((brokers, RESOURCES)), yes, yes, yes, new, no,
    )  # fmt: skip
    return ClusterModel(
        table, costs, topics, topics % TENANTS, np.zeros(count, np.int32),
        np.take_along_axis(placed, order, 1), np.zeros(count, np.int32), np.ones((count, FACTOR), np.bool_),
        np.zeros(count, np.bool_),
    )  # fmt: skip


def _costs(size: Floats, ingress: Floats, egress: Floats, *, load: float) -> Costs:
    leader, follower = np.zeros((len(size), RESOURCES)), np.zeros((len(size), RESOURCES))
    leader[:, Resource.DISK] = follower[:, Resource.DISK] = size
    leader[:, Resource.INGRESS] = follower[:, Resource.INGRESS] = ingress
    leader[:, Resource.EGRESS] = egress + (FACTOR - 1) * ingress
    leader[:, Resource.LOAD], follower[:, Resource.LOAD] = 0.7 * ingress + 0.15 * egress, 0.15 * ingress
    scale = load / (leader[:, Resource.LOAD].sum() + (FACTOR - 1) * follower[:, Resource.LOAD].sum())
    leader[:, Resource.LOAD] *= scale
    follower[:, Resource.LOAD] *= scale
    leader[:, Resource.LEADER_INGRESS] = ingress
    leader[:, Resource.LEADERS] = leader[:, Resource.REPLICAS] = follower[:, Resource.REPLICAS] = 1
    return Costs(leader, follower)


def bytes_min(model: ClusterModel, bounds: Bounds) -> float:
    """A lower bound of the bytes that any plan has to copy.

    For one resource: each broker above its target gives away the replicas that carry most for their bytes,
    until it is at the target. The largest of these over all resources that leadership alone cannot move.
    """
    needed = []
    for resource in set(Resource) - LEADER_ONLY:
        total = 0.0
        for broker in np.flatnonzero(model.totals[:, resource] > bounds.target[:, resource]):
            over = model.totals[broker, resource] - bounds.target[broker, resource]
            cost = model.cost_of(model.on_broker(int(broker)))
            value, size = cost[:, resource], cost[:, Resource.DISK]
            order = np.argsort(-value / (size + 1e-9), kind="stable")
            carried = np.cumsum(value[order])
            whole = int(np.searchsorted(carried, over))
            total += float(size[order][:whole].sum())  # the last one in part
            if whole < len(order):
                left = over - (carried[whole - 1] if whole else 0.0)
                total += float(size[order][whole] * left / value[order][whole])
        needed.append(total)
    return max(needed)


def reported(partitions: int, brokers: int, seed: int) -> ClusterFacts:
    """What a cluster of this size reports, as the Admin API and the brokers' metrics give it."""
    dice = np.random.default_rng(seed)
    per_zone = brokers // ZONES
    facts = [BrokerFacts(n, f"zone-{n % ZONES}", "cell-1", load=0.5) for n in range(per_zone * ZONES)]
    chosen = dice.integers(0, per_zone, (partitions, ZONES)) * ZONES + dice.permuted(
        np.tile(np.arange(ZONES), (partitions, 1)), axis=1
    )
    size = (dice.pareto(SHAPE, partitions) * 1e8).astype(np.int64)
    topics: dict[str, list[Partition]] = {}
    sizes: dict[int, dict[tuple[str, int], int]] = {broker.id: {} for broker in facts}
    traffic: dict[tuple[str, int], Traffic] = {}
    for row, replicas in enumerate(chosen.tolist()):
        topic, index = f"lkc-000000_t{row // PARTITIONS_PER_TOPIC}", row % PARTITIONS_PER_TOPIC
        held = tuple(replicas)
        topics.setdefault(topic, []).append(Partition(index, held[0], 0, held, held, ()))
        for broker in held:
            sizes[broker][topic, index] = int(size[row])
        traffic[topic, held[0]] = Traffic(1e4, 2e4)
    return ClusterFacts(facts, topics, sizes, traffic, cell_of=lambda _: "cell-1")
