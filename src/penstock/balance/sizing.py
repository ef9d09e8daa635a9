"""The smallest fleet that carries a demand, for every hardware profile and every cluster at once.

A demand is a row of numbers: traffic, replicas, connections, stored bytes. Each bound divides what the whole
cluster needs by what one broker offers (Kora §4.2: lower bounds rule hardware out before it is tested):

- disk rate: ingress × replication factor + reads that miss the cache; disk space: stored bytes
- network: ingress × replication factor + egress
- memory: the seconds of every log's tail that the page cache keeps
- replicas and connections
- load, ingress and egress as measured, if they were
- services: gateways' processor time and the other services' processors and memory, in what brokers leave free

Brokers get 80 % of a machine and its volumes, services the rest. A fleet must carry the demand without one
of its brokers, and without one of its zones; then the replicas of that zone are missing too.

Everything is computed on arrays, profiles × clusters. The simulator and the advice call the same function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.goals import LOAD_FULL
from penstock.balance.load_cost import COST_FIELDS, MEGABYTE, THOUSAND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.balance.profiles import HardwareProfile

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

BROKER_SHARE: Final = 0.80  # of a machine's processors, memory and network
HEAP_SHARE: Final = 0.25  # of the broker's memory
HEAP_BYTES_MAX: Final = 6 << 30
DISK_FULL: Final = 0.85  # of the volumes
UNMEASURED: Final = math.inf  # the capacity of a bound that was not measured
BROKERS_MAX: Final = 1_000  # of a cluster
MACHINES_MAX: Final = 1_000  # that one packing looks at


class Bound(StrEnum):
    DISK_RATE = "disk rate"
    DISK_SPACE = "disk space"
    NETWORK = "network"
    MEMORY = "memory"
    REPLICAS = "replicas"
    CONNECTIONS = "connections"
    INGRESS = "measured ingress"
    EGRESS = "measured egress"
    SERVICE_PROCESSORS = "processors for services"
    SERVICE_MEMORY = "memory for services"
    LOAD = "measured load"


BOUNDS: Final = tuple(Bound)
UNITS: Final = {
    Bound.DISK_RATE: "bytes/s",
    Bound.DISK_SPACE: "bytes",
    Bound.NETWORK: "bytes/s",
    Bound.MEMORY: "bytes",
    Bound.REPLICAS: "replicas",
    Bound.CONNECTIONS: "connections",
    Bound.INGRESS: "bytes/s",
    Bound.EGRESS: "bytes/s",
    Bound.SERVICE_PROCESSORS: "processors",
    Bound.SERVICE_MEMORY: "bytes",
    Bound.LOAD: "load",
}


@dataclass(frozen=True, slots=True)
class Demand:
    """What one cluster needs at its peak."""

    ingress: float  # bytes a second from producers
    egress: float  # bytes a second to consumers
    requests: float = 0.0  # a second
    connections: float = 0.0
    replicas: float = 0.0  # partitions × replication factor
    stored_bytes: float = 0.0  # with all replicas
    cache_missing: float = 0.0  # bytes a second that consumers read from disk
    factor: float = 3.0  # replication factor
    zones: float = 3.0
    tail_seconds: float = 60.0  # of each log in the page cache


@dataclass(frozen=True, slots=True)
class Footprint:
    """A service beside the brokers: what one instance takes of a machine."""

    name: str
    processors: float
    memory_bytes: float
    processors_mb: float = 0.0  # more for each MB/s of clients' traffic, over all instances
    on_each_broker: bool = False


# Estimates of resident memory and idle processor time, from processes of the embedded platform. The
# gateway's time by traffic follows `bench.gateway` on TLS.
SERVICES: Final = (
    Footprint("gateway", 0.02, 160e6, processors_mb=0.002, on_each_broker=True),
    Footprint("coordinator", 0.02, 110e6),
    Footprint("health checker", 0.05, 120e6),
    Footprint("control plane", 0.05, 220e6),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The smallest fleets. Arrays are profiles × clusters."""

    brokers: Ints
    fits: NDArray[np.bool_]  # within the bounds, and the profile exists in enough zones
    binding: Ints  # index into BOUNDS: which of them needs the most brokers


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A bound that a fleet of a given size does not meet, for one broker after a loss."""

    bound: Bound
    needed: float
    available: float

    @property
    def missing(self) -> float:
        return self.needed - self.available

    def __str__(self) -> str:
        unit = UNITS[self.bound]
        return f"{self.bound}: {self.needed:.4g} {unit} needed, {self.available:.4g} available"


def rows_of(demands: Sequence[Demand]) -> Floats:
    """One column for each cluster, one row for each field."""
    return np.array([[getattr(each, f.name) for each in demands] for f in fields(Demand)], np.float64)


def capacities(profiles: Sequence[HardwareProfile]) -> Floats:
    """What one broker offers: bounds without load × profiles."""
    columns = []
    for each in profiles:
        memory, rest = each.memory_bytes * BROKER_SHARE, 1 - BROKER_SHARE
        measured = each.measured
        gateway = sum(service.memory_bytes for service in SERVICES if service.on_each_broker)
        columns.append((
            each.disk_rate,
            each.disk_bytes * DISK_FULL,
            each.network.base * BROKER_SHARE,
            memory - min(memory * HEAP_SHARE, HEAP_BYTES_MAX),
            each.replicas_max,
            each.connections_max,
            UNMEASURED if measured is None else measured.ingress,
            UNMEASURED if measured is None else measured.egress,
            each.processors * rest,
            max(each.memory_bytes * rest - gateway, 1.0),
        ))  # fmt: skip
    return np.array(columns, np.float64).T


def _amounts(rows: Floats, services: Sequence[Footprint], *, zone_lost: bool) -> Floats:
    """What a whole cluster needs: bounds without load × clusters."""
    ingress, egress, _, connections, replicas, stored, missing, factor, zones, tail = rows
    copies = factor - np.ceil(factor / zones) if zone_lost else factor
    share = copies / factor
    beside = [service for service in services if not service.on_each_broker]
    processors = sum(s.processors_mb for s in services) * (ingress + egress) / MEGABYTE
    return np.array([
        ingress * copies + missing,
        stored * share,
        ingress * copies + egress,
        tail * ingress * copies,
        replicas * share,
        connections,
        ingress,
        egress,
        processors + sum(s.processors for s in beside),
        np.full_like(ingress, sum(s.memory_bytes for s in beside)),
    ])  # fmt: skip


def _loads(rows: Floats, profiles: Sequence[HardwareProfile], *, zone_lost: bool) -> Floats:
    """Brokers' worth of load of a whole cluster, profiles × clusters; 0 if it was not measured."""
    ingress, egress, requests, _, replicas, _, _, factor, zones, _ = rows
    copies = factor - np.ceil(factor / zones) if zone_lost else factor
    costs = np.array([
        [0.0] * len(COST_FIELDS)
        if each.measured is None
        else [getattr(each.measured.load, name) for name in COST_FIELDS]
        for each in profiles
    ])  # fmt: skip
    causes = np.array(
        [
            ingress * copies / MEGABYTE,
            (egress + ingress * np.maximum(copies - 1, 0)) / MEGABYTE,
            requests / THOUSAND,
            replicas * copies / factor / THOUSAND,
        ]
    )
    return np.asarray(costs @ causes / LOAD_FULL)


def sized(
    demands: Sequence[Demand] | Floats,
    profiles: Sequence[HardwareProfile],
    services: Sequence[Footprint] = SERVICES,
    brokers_max: int = BROKERS_MAX,
) -> Sizes:
    """The smallest fleet of each profile for each cluster, and which bound decides."""
    rows = demands if isinstance(demands, np.ndarray) else rows_of(demands)
    offered = capacities(profiles)
    zones, factor = rows[8], rows[7]
    most = np.zeros((len(profiles), rows.shape[1]))
    binding = np.zeros(most.shape, np.int64)
    for zone_lost in (False, True):
        amounts = _amounts(rows, services, zone_lost=zone_lost)
        grown = np.where(zones > 1, zones / np.maximum(zones - 1, 1), 0.0) if zone_lost else 1.0
        lost = 0.0 if zone_lost else 1.0  # broker
        for index in range(len(BOUNDS)):
            if BOUNDS[index] is Bound.LOAD:
                needed = _loads(rows, profiles, zone_lost=zone_lost)
            else:
                needed = amounts[index][None, :] / offered[index][:, None]
            needed = np.ceil(needed * grown - 1e-9) + lost
            higher = needed > most
            np.copyto(most, needed, where=higher)
            np.copyto(binding, index, where=higher)
    least = np.maximum(np.maximum(factor, zones), 1)
    brokers = np.ceil(np.maximum(most, least) / zones) * zones
    offers = np.array([len(each.zones) for each in profiles])[:, None] >= zones[None, :]
    return Sizes(brokers.astype(np.int64), offers & (brokers <= brokers_max), binding)


def shortfalls(
    demand: Demand, profile: HardwareProfile, brokers: int, services: Sequence[Footprint] = SERVICES
) -> list[Shortfall]:
    """The bounds that a fleet of this size misses after the loss of a broker or a zone; largest first."""
    rows = rows_of([demand])
    offered = capacities([profile])[:, 0]
    worst: dict[Bound, Shortfall] = {}
    zones = int(demand.zones)
    for zone_lost in (False, True):
        left = brokers - (math.ceil(brokers / zones) if zone_lost else 1)
        if zone_lost and zones == 1:
            continue
        amounts = _amounts(rows, services, zone_lost=zone_lost)[:, 0]
        load = float(_loads(rows, [profile], zone_lost=zone_lost)[0, 0]) * LOAD_FULL
        for bound in BOUNDS:
            if bound is Bound.LOAD:
                needed, available = load / max(left, 1), LOAD_FULL
            else:
                index = BOUNDS.index(bound)
                needed, available = float(amounts[index]) / max(left, 1), float(offered[index])
            if needed > available * (1 + 1e-9) and (bound not in worst or needed > worst[bound].needed):
                worst[bound] = Shortfall(bound, needed, available)
    return sorted(worst.values(), key=lambda each: each.needed / each.available, reverse=True)


@dataclass(frozen=True, slots=True)
class Packing:
    """Which services run on which machine, by index; those beyond `brokers` are additional machines."""

    machines: tuple[tuple[str, ...], ...]
    brokers: int

    @property
    def additional(self) -> int:
        return len(self.machines) - self.brokers


def packed(
    demand: Demand, profile: HardwareProfile, brokers: int, services: Sequence[Footprint] = SERVICES
) -> Packing:
    """Places services in what the brokers leave free: the largest first, each on the first that has room.

    What fits on no broker's machine gets an additional one, which it may use as a whole.
    """
    rest = 1 - BROKER_SHARE
    free = [[profile.processors * rest, profile.memory_bytes * rest] for _ in range(brokers)]
    names: list[list[str]] = [[] for _ in range(brokers)]
    traffic = (demand.ingress + demand.egress) / MEGABYTE
    instances_left: list[tuple[float, float, str, int | None]] = []
    for service in services:
        count = brokers if service.on_each_broker else 1
        processors = service.processors + service.processors_mb * traffic / count
        for number in range(count):
            home = number if service.on_each_broker else None
            instances_left.append((processors, service.memory_bytes, service.name, home))
    whole = (profile.processors, profile.memory_bytes)
    instances_left.sort(key=lambda each: (each[3] is None, -max(each[0] / whole[0], each[1] / whole[1])))
    for processors, memory, name, home in instances_left:
        choices = range(len(free)) if home is None else (home, *range(brokers, len(free)))
        index = next((i for i in choices if free[i][0] >= processors and free[i][1] >= memory), None)
        if index is None:
            if len(free) >= MACHINES_MAX:
                raise ValueError(f"services need more than {MACHINES_MAX} machines")
            index = len(free)
            free.append(list(whole))
            names.append([])
        free[index][0] -= processors
        free[index][1] -= memory
        names[index].append(name)
    return Packing(tuple(tuple(each) for each in names), brokers)
