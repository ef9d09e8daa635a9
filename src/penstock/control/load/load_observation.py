"""Measures the load of brokers, of their cells, and of each tenant in them, by scraping brokers' metrics.

A broker without a fresh sample has no load, and neither has its cell: the reasons name the broker and the
missing bean. All values are averages over a minute. They survive the control plane: `load_history` restores
them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from penstock.balance.broker_load import (
    FRESH_SECONDS,
    NO_AGENT,
    ONE_SCRAPE,
    WINDOW_SECONDS_MIN,
    Measurement,
    Recent,
    Scrape,
    average_weight,
    averaged,
    broker_load,
    measure,
    recent,
    topic_rates,
)
from penstock.balance.cell_load import (
    BrokerCapacity,
    BrokerSample,
    Load,
    TenantUsage,
    cell_load,
    tenant_loads,
)
from penstock.balance.cells import TARGET
from penstock.control.cluster_placement import load_key
from penstock.control.load.load_history import RATES_SECONDS, rates_events
from penstock.kafka.admin import log_dirs, topics
from penstock.kafka.metrics_scrape import scrape
from penstock.model.errors import PenstockError
from penstock.model.events import BrokerLoad
from penstock.model.ids import TENANT_NAME, BrokerId, LogicalClusterId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.control.capacity_units import CapacityUnit
    from penstock.control.load.load_history import RecentLoad
    from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
    from penstock.kafka.client import Client
    from penstock.model.events import TopicRates

log = structlog.get_logger("penstock.control")

REPLICAS: Final = 3  # of a partition, with three zones
RATE_MIN: Final = 1.0  # bytes a second; a tenant with less is forgotten
Rate = tuple[float, float]  # bytes a second in and out


@dataclass(frozen=True, slots=True)
class Observation:
    """Loads by `load_key`. A cell with a broker whose load is unknown is left out."""

    cells: Mapping[str, Load]
    tenants: Mapping[str, Mapping[LogicalClusterId, Load]]
    brokers: tuple[BrokerLoad, ...] = ()  # every broker, known or not
    topic_rates: tuple[TopicRates, ...] = ()  # once a minute


class LoadObserver(Protocol):
    """Measures the load of cells, and each tenant's contribution."""

    async def observe(self, provided: ProvidedCluster, unit: CapacityUnit) -> Observation:
        """The load of this cluster now."""
        ...


NO_WINDOW: Final = Recent()


@dataclass(slots=True)
class _ObservedBroker:
    """What is known about one broker. Times are those of the steady clock."""

    last: Scrape | None = None
    average: Measurement | None = None
    measured: float | None = None  # when the last window ended
    recent: Recent = NO_WINDOW
    problems: tuple[str, ...] = (ONE_SCRAPE,)
    replicas: int = 0
    leaders: int = 0
    tenants: dict[LogicalClusterId, Rate] = field(default_factory=dict)
    rates_from: tuple[Scrape, int] | None = None  # where the next `TopicRates` start, and its time
    disk: tuple[int, int] | None = None  # bytes used, and in total

    def add(self, scraped: Scrape) -> None:
        metrics = scraped.metrics
        if metrics.missing:
            self.problems = metrics.missing
            return
        self.replicas, self.leaders = int(metrics.replicas), int(metrics.leaders)
        before = self.last
        if before is not None and scraped.time - before.time < WINDOW_SECONDS_MIN:
            return
        self.last = scraped
        window = None if before is None else measure(before, scraped)
        if before is None or window is None:
            self.problems = (ONE_SCRAPE,)
            return
        seconds = scraped.time - before.time
        self.average = averaged(self.average, window, seconds)
        self.recent = recent(before, scraped, window)
        self._add_tenants(_by_tenant(topic_rates(before, scraped)), seconds)
        self.measured, self.problems = scraped.time, ()

    def _add_tenants(self, now: Mapping[LogicalClusterId, Rate], seconds: float) -> None:
        weight = average_weight(seconds)
        after = {}
        for tenant in self.tenants.keys() | now.keys():
            new = now.get(tenant, (0.0, 0.0))
            old = self.tenants.get(tenant, (0.0, 0.0))
            mixed = old[0] + (new[0] - old[0]) * weight, old[1] + (new[1] - old[1]) * weight
            if max(mixed) >= RATE_MIN:
                after[tenant] = mixed
        self.tenants = after

    def fresh(self, now: float) -> Measurement | None:
        known = self.measured is not None and now - self.measured <= FRESH_SECONDS
        return self.average if known else None


class MetricsObserver:
    """Scrapes brokers' metrics.

    Replicas are counted by tenant only when a cell gets full: listing every topic of a cluster every few
    seconds would be too expensive.
    """

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._observed: dict[tuple[str, int], _ObservedBroker] = {}
        self._replicas: dict[str, Counter[tuple[int, LogicalClusterId]]] = {}

    def restore(self, cluster: str, recent: RecentLoad, now_ms: int) -> None:
        """Continue from another control plane's averages, for brokers without averages of this one."""
        now = time.monotonic()
        for broker, event in recent.loads.items():
            observed = self._observed.setdefault((cluster, broker), _ObservedBroker())
            if observed.average is not None or event.scrape_age_ms is None:
                continue
            observed.average = Measurement(**{f.name: getattr(event, f.name) for f in fields(Measurement)})
            observed.measured = now - (now_ms - event.time_ms + event.scrape_age_ms) / 1000
            observed.replicas, observed.leaders = event.replicas, event.leaders
            observed.tenants = _by_tenant(recent.rates.get(broker, {}))
            if event.disk_used_bytes is not None and event.disk_total_bytes is not None:
                observed.disk = event.disk_used_bytes, event.disk_total_bytes

    async def observe(self, provided: ProvidedCluster, unit: CapacityUnit) -> Observation:
        agents = {broker: (host, port) for broker, host, port in provided.metrics}
        ids = {int(broker.id) for broker in provided.brokers} | agents.keys()
        ids |= {int(broker) for cell in provided.cells for broker in cell.brokers}
        observed = {b: self._observed.setdefault((provided.id, b), _ObservedBroker()) for b in sorted(ids)}
        await asyncio.gather(*(_scrape(one, agents.get(broker)) for broker, one in observed.items()))
        now_ms, now = int(time.time() * 1000), time.monotonic()
        rates = await self._each_minute(provided, observed, now_ms)
        loads = {b: _event(provided, b, one, now_ms, now) for b, one in observed.items()}
        samples = {
            broker: BrokerSample(event.load, event.replicas, event.bytes_in, event.bytes_out)
            for broker, event in loads.items()
            if event.load is not None
        }
        cells: dict[str, Load] = {}
        for cell in provided.cells:
            if all(broker in samples for broker in cell.brokers):
                capacity = broker_capacity(unit, len(cell.brokers))
                key = load_key(provided.id, cell.id)
                cells[key] = cell_load([samples[broker] for broker in cell.brokers], capacity)
        tenants = await self._tenants(provided, unit, cells, observed)
        return Observation(cells, tenants, tuple(loads.values()), rates)

    async def _each_minute(
        self, provided: ProvidedCluster, observed: Mapping[int, _ObservedBroker], now_ms: int
    ) -> tuple[TopicRates, ...]:
        """Topic rates of brokers whose minute is over; their disks are described as often."""
        events: list[TopicRates] = []
        due: list[int] = []
        for broker, one in observed.items():
            last, start = one.last, one.rates_from
            if last is None or (start is not None and last.time - start[0].time < RATES_SECONDS):
                continue
            due.append(broker)
            one.rates_from = last, now_ms
            if start is not None and last.start_ms == start[0].start_ms:
                rates = topic_rates(start[0], last)
                events += rates_events(provided.id, BrokerId(broker), (start[1], now_ms), rates)
        if due:
            client = self._clusters.client(provided.id)
            disks = await asyncio.gather(*(_disk(client, broker) for broker in due))
            for broker, disk in zip(due, disks):
                observed[broker].disk = disk
        return tuple(events)

    async def _tenants(
        self,
        provided: ProvidedCluster,
        unit: CapacityUnit,
        cells: Mapping[str, Load],
        observed: Mapping[int, _ObservedBroker],
    ) -> dict[str, Mapping[LogicalClusterId, Load]]:
        if any(load.highest >= TARGET for load in cells.values()):
            self._replicas[provided.id] = await _count_replicas(self._clusters.client(provided.id))
        counted = self._replicas.get(provided.id, Counter())
        tenants: dict[str, Mapping[LogicalClusterId, Load]] = {}
        for cell in provided.cells:
            key = load_key(provided.id, cell.id)
            if key in cells:
                usage = _tenant_usage({b: observed[b].tenants for b in cell.brokers}, counted)
                size = len(cell.brokers)
                tenants[key] = tenant_loads(usage, cells[key], size, broker_capacity(unit, size))
        return tenants


async def _scrape(observed: _ObservedBroker, agent: tuple[str, int] | None) -> None:
    if agent is None:
        observed.problems = (NO_AGENT,)
        return
    began = time.monotonic()
    try:
        metrics = await scrape(*agent)
    except PenstockError as failure:
        observed.problems = (str(failure),)
        return
    halfway = (began + time.monotonic()) / 2  # a busy broker responds late
    observed.add(Scrape(halfway, metrics.start_ms, metrics.broker))


async def _disk(client: Client, broker: int) -> tuple[int, int] | None:
    """Bytes used and in total on the volumes of a broker's log directories."""
    try:
        dirs = (await log_dirs.describe(client, [broker], partitions=()))[broker]
    except PenstockError:
        return None
    known = [each for each in dirs if each.total_bytes >= 0 and each.usable_bytes >= 0]
    if not known:
        return None
    total = sum(each.total_bytes for each in known)
    return total - sum(each.usable_bytes for each in known), total


def _event(
    provided: ProvidedCluster, broker: int, observed: _ObservedBroker, now_ms: int, now: float
) -> BrokerLoad:
    average = observed.average or Measurement()
    fresh = observed.fresh(now)
    newest = NO_WINDOW if fresh is None else observed.recent
    age = None if observed.measured is None else max(0, int((now - observed.measured) * 1000))
    return BrokerLoad(
        cluster=provided.id,
        broker=BrokerId(broker),
        time_ms=now_ms,
        scrape_age_ms=age,
        load=None if fresh is None else broker_load(fresh, provided.profile),
        missing=() if fresh is not None else observed.problems or (ONE_SCRAPE,),
        **{each.name: getattr(average, each.name) for each in fields(Measurement)},
        service_ms=average.service_ms,
        replicas=observed.replicas,
        leaders=observed.leaders,
        disk_used_bytes=None if observed.disk is None else observed.disk[0],
        disk_total_bytes=None if observed.disk is None else observed.disk[1],
        recent_wait_ms=newest.wait_ms,
        recent_handlers_busy=newest.handlers_busy,
        recent_local_ms=newest.local_ms,
        recent_flush_ms=newest.flush_ms,
    )


def _by_tenant(rates: Mapping[str, tuple[float, ...]]) -> dict[LogicalClusterId, Rate]:
    tenants: dict[LogicalClusterId, Rate] = {}
    for topic, row in rates.items():
        if (match := TENANT_NAME.match(topic)) is not None:
            tenant = LogicalClusterId(match[1])
            total = tenants.get(tenant, (0.0, 0.0))
            tenants[tenant] = total[0] + row[0], total[1] + row[1]
    return tenants


def _tenant_usage(
    rates: Mapping[BrokerId, Mapping[LogicalClusterId, Rate]],
    replicas: Counter[tuple[int, LogicalClusterId]],
) -> dict[LogicalClusterId, TenantUsage]:
    """Each tenant's usage of these brokers together."""
    usage: dict[LogicalClusterId, TenantUsage] = {}
    for tenants in rates.values():
        for tenant, (ingress, egress) in tenants.items():
            total = usage.get(tenant, TenantUsage())
            usage[tenant] = TenantUsage(total.ingress + ingress, total.egress + egress)
    for (broker, tenant), count in replicas.items():
        if broker in rates:
            total = usage.get(tenant, TenantUsage())
            usage[tenant] = replace(total, replicas=total.replicas + count)
    return usage


async def _count_replicas(client: Client) -> Counter[tuple[int, LogicalClusterId]]:
    """How many replicas each tenant has on each broker."""
    counted: Counter[tuple[int, LogicalClusterId]] = Counter()
    for name, topic in (await topics.describe(client)).items():
        match = TENANT_NAME.match(name)
        if match is not None and not isinstance(topic, PenstockError):
            tenant = LogicalClusterId(match[1])
            counted.update((replica, tenant) for part in topic.partitions for replica in part.replicas)
    return counted


def log_unknown(before: Observation | None, after: Observation) -> None:
    """Logs each broker whose load has become unknown, or known again."""
    known = {} if before is None else {each.broker: each.missing for each in before.brokers}
    for each in after.brokers:
        if each.missing and each.missing != known.get(each.broker):
            log.warning("broker load unknown", cluster=each.cluster, broker=each.broker, missing=each.missing)
        elif not each.missing and known.get(each.broker):
            log.info("broker load known", cluster=each.cluster, broker=each.broker)


def broker_capacity(unit: CapacityUnit, brokers: int) -> BrokerCapacity:
    """The capacity of one broker of a cell that can carry the largest allowed logical cluster."""
    units = unit.units_max / brokers
    return BrokerCapacity(
        max(1, int(units * unit.partitions * REPLICAS)), units * unit.ingress_bytes, units * unit.egress_bytes
    )
