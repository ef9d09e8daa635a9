"""What cells save: connections, requests and load in the paper's experiment (Kora §5.3).

24 brokers and four tenants, each with two topics of 24 and two of 240 partitions. Each topic has one
producer of 50,000 records a second and one consumer. It runs once with every topic on all brokers, and
once with each tenant on a cell of six. The platform's own `spread` places partitions.

Assumptions, with stock Kafka clients and their defaults:
- Records go to the partitions of a topic in turn. A producer's batch of one partition is sent when it is
  full (`batch_bytes`) or `linger` after its first record. Batches for one broker that are ready together
  go into one request, and at most `in_flight` requests to a broker are outstanding.
- A consumer or follower has one outstanding fetch to each broker it reads from. A response waits for the
  next batch if there is none, and takes a round trip.
- A request costs a broker `request_us` of processor time whatever it carries, plus `kilobyte_us` for each
  kilobyte, in and out. The paper gives neither cost, nor how many processor seconds are "100 %": without
  cells, the load is set to the paper's 73 %. With cells it then depends only on the ratio of the two costs
  (`sensitivity`); `bench.cells` measures the cost of a request on a real broker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.balance.cells import Broker, plan_cells
from penstock.balance.replica_placement import PlacementRequest, spread
from penstock.model.ids import BrokerId, LogicalClusterId, Zone

if TYPE_CHECKING:
    from collections.abc import Sequence

PAPER_LOAD_WITHOUT: Final = 0.73
PAPER_LOAD_WITH: Final = 0.53
ZONES: Final = 3
REQUEST_US: Final = (20.0, 40.0, 60.0, 100.0, 200.0, 400.0)  # candidates for the cost of a request


@dataclass(frozen=True, slots=True)
class Experiment:
    """The paper's numbers; it does not give record size, linger and round trip."""

    brokers: int = 24
    cell_size: int = 6
    tenants: int = 4
    partitions: tuple[int, ...] = (24, 24, 240, 240)  # of each topic of a tenant
    records_per_second: float = 50_000.0  # per topic
    record_bytes: float = 1024.0
    replicas: int = 3
    batch_bytes: float = 16_384.0
    linger_seconds: float = 0.005
    in_flight: int = 5
    produce_seconds: float = 0.010  # a round trip with acks=all
    fetch_seconds: float = 0.001


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time on a broker."""

    request_us: float = 60.0
    kilobyte_us: float = 3.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of an average broker per second, and connections."""

    produces: float
    fetches: float
    follower_fetches: float
    kilobytes: float  # in and out, including replication
    connections_per_client: float
    connections_per_broker: float

    @property
    def requests(self) -> float:
        # A follower's fetch costs the follower about as much as the leader.
        return self.produces + self.fetches + 2 * self.follower_fetches

    def processor_seconds(self, costs: Costs) -> float:
        return (self.requests * costs.request_us + self.kilobytes * costs.kilobyte_us) / 1e6


@dataclass(frozen=True, slots=True)
class Comparison:
    without: Traffic
    within: Traffic
    load_without: float
    load_within: float


def compare(experiment: Experiment, costs: Costs) -> Comparison:
    """The experiment without and with cells."""
    return compared(traffic(experiment, cells=False), traffic(experiment, cells=True), costs)


def compared(without: Traffic, within: Traffic, costs: Costs) -> Comparison:
    capacity = without.processor_seconds(costs) / PAPER_LOAD_WITHOUT
    return Comparison(without, within, PAPER_LOAD_WITHOUT, within.processor_seconds(costs) / capacity)


def sensitivity(experiment: Experiment, request_us: Sequence[float]) -> dict[float, float]:
    """The load with cells, by the assumed cost of a request."""
    both = traffic(experiment, cells=False), traffic(experiment, cells=True)
    return {each: compared(*both, Costs(request_us=each)).load_within for each in request_us}


def traffic(experiment: Experiment, *, cells: bool) -> Traffic:
    """Traffic of an average broker. Each tenant has its own cell, as far as there are cells."""
    e = experiment
    brokers = [Broker(BrokerId(n), Zone(f"zone-{n % ZONES}")) for n in range(e.brokers)]
    cells_brokers = cell_brokers(brokers, e.cell_size) if cells else [tuple(brokers)]
    produces = fetches = 0.0
    batches: dict[tuple[BrokerId, BrokerId], float] = {}  # per second, by leader and follower
    connections = clients = 0
    for tenant in range(e.tenants):
        home = cells_brokers[tenant % len(cells_brokers)]
        for topic, partitions in enumerate(e.partitions):
            tenant_id, name = LogicalClusterId(f"lkc-{tenant:06}"), f"topic-{topic}"
            placed = spread(PlacementRequest(tenant_id, name, 0, partitions, e.replicas, home))
            assert placed is not None, "the cell has fewer brokers than replicas"
            led = Counter(replicas[0] for replicas in placed)
            for count in led.values():
                ready = count * batch_rate(e, partitions)
                produces += requests_sent(e, ready)
                fetches += fetch_rate(e, ready)
            for leader, *followers in placed:
                for follower in followers:
                    pair = leader, follower
                    batches[pair] = batches.get(pair, 0.0) + batch_rate(e, partitions)
            connections += 2 * len(led)  # a producer and a consumer
            clients += 2
    follower_fetches = sum(fetch_rate(e, ready) for ready in batches.values())
    records = e.tenants * len(e.partitions) * e.records_per_second
    # In from the producer and the leaders, out to the consumer and the followers.
    crossings = 2 * e.replicas
    return Traffic(
        produces=produces / e.brokers,
        fetches=fetches / e.brokers,
        follower_fetches=follower_fetches / e.brokers,
        kilobytes=records * e.record_bytes / 1024 * crossings / e.brokers,
        connections_per_client=connections / clients,
        connections_per_broker=(connections + 2 * len(batches)) / e.brokers,
    )


def cell_brokers(brokers: Sequence[Broker], size: int) -> list[tuple[Broker, ...]]:
    zones: dict[Zone, list[BrokerId]] = {}
    for broker in brokers:
        zones.setdefault(broker.zone, []).append(broker.id)
    return [tuple(b for b in brokers if b.id in cell.brokers) for cell in plan_cells(zones, size)]


def batch_rate(e: Experiment, partitions: int) -> float:
    """Batches per second of one partition: sent after linger, or earlier when full."""
    rate = e.records_per_second / partitions
    return max(rate * e.record_bytes / e.batch_bytes, 1 / (e.linger_seconds + 1 / rate))


def requests_sent(e: Experiment, ready: float) -> float:
    """Requests per second to one broker with so many ready batches per second."""
    return min(ready, e.in_flight / e.produce_seconds)


def fetch_rate(e: Experiment, ready: float) -> float:
    return 1 / (e.fetch_seconds + 1 / ready)
