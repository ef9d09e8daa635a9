"""Observing load: unknown without a fresh sample, restored from the history, measured on real brokers."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from socket import create_server
from typing import TYPE_CHECKING

import pytest

from penstock.balance.broker_load import NO_AGENT, ONE_SCRAPE
from penstock.control.capacity_units import TABLES
from penstock.control.cluster_placement import load_key
from penstock.control.load.load_history import (
    RATES_CHARACTERS_MAX,
    RecentLoad,
    publish,
    rates_events,
    read_recent,
)
from penstock.control.load.load_observation import MetricsObserver, Observation
from penstock.control.physical.cluster_access import Clusters, ProvidedCluster
from penstock.control.service import CellWatch
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.model.entities import CellMembers
from penstock.model.events import BrokerLoad
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId
from tests.control.conftest import run_control_plane
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from penstock.control.capacity_units import CapacityUnit
    from tests.harness.fleet import Fleet

CLUSTER = PhysicalClusterId("pkc-000000")
UNIT = TABLES["laptop"]
TENANT = LogicalClusterId("lkc-0a1b2c")


def cluster_of(brokers: int) -> ProvidedCluster:
    """Without metrics agents, in one cell."""
    members = tuple(BrokerId(number + 1) for number in range(brokers))
    cells = (CellMembers("cell-1", members),)
    return ProvidedCluster(CLUSTER, "home", "local", "h:1", PlatformKey(b"k" * 32), cells=cells)


def recorded(brokers: int, *, time_ms: int, busy: float = 0.4) -> RecentLoad:
    """As an earlier control plane would have left it."""
    loads = {
        number: BrokerLoad(CLUSTER, BrokerId(number), time_ms, 0, busy, handlers_busy=busy, requests=100.0)
        for number in range(1, brokers + 1)
    }
    return RecentLoad(loads, {1: {f"{TENANT}_orders": (500.0, 100.0, 1.0)}})


async def observed(brokers: int, recent: RecentLoad) -> Observation:
    observer = MetricsObserver(Clusters(()))
    observer.restore(CLUSTER, recent, int(time.time() * 1000))
    return await observer.observe(cluster_of(brokers), UNIT)


async def test_loads_are_known_at_once_from_the_history() -> None:
    observation = await observed(2, recorded(2, time_ms=int(time.time() * 1000)))

    assert [each.load for each in observation.brokers] == [pytest.approx(0.4)] * 2
    assert observation.cells[load_key(CLUSTER, "cell-1")].broker == pytest.approx(0.4)
    assert observation.tenants[load_key(CLUSTER, "cell-1")][TENANT].bandwidth > 0


async def test_a_broker_without_a_fresh_sample_is_unknown_and_so_is_its_cell() -> None:
    now = int(time.time() * 1000)
    recent = recorded(2, time_ms=now)
    recent.loads[2] = replace(recent.loads[2], time_ms=now - 60_000)

    observation = await observed(2, recent)

    fresh, stale = observation.brokers
    assert fresh.load == pytest.approx(0.4)
    assert stale.load is None
    assert stale.missing == (NO_AGENT,)
    assert stale.scrape_age_ms is not None
    assert stale.scrape_age_ms >= 60_000
    assert not observation.cells
    assert not observation.tenants


async def test_a_broker_that_was_never_measured_is_neither_idle_nor_full() -> None:
    observation = await observed(1, RecentLoad())

    assert (observation.brokers[0].load, observation.brokers[0].scrape_age_ms) == (None, None)
    assert not observation.cells


def test_many_topics_take_several_records() -> None:
    rates = {f"{'t' * 200}{number}": (1.0, 2.0, 3.0) for number in range(3000)}

    events = rates_events(CLUSTER, BrokerId(1), (0, 60_000), rates)

    assert [(each.part, each.parts) for each in events] == [(n, len(events)) for n in range(len(events))]
    assert {topic: row for each in events for topic, row in each.rates.items()} == rates
    assert max(len(each.to_bytes()) for each in events) < 2 * RATES_CHARACTERS_MAX
    assert [each.rates for each in rates_events(CLUSTER, BrokerId(1), (0, 1), {})] == [{}]


@pytest.mark.kafka
async def test_the_load_of_real_brokers_is_measured_published_and_restored(control_fleet: Fleet) -> None:
    async with run_control_plane(control_fleet, watch=CellWatch(seconds=1.0)) as harness:
        await harness.active()
        plane = harness.plane
        (provided,) = plane.clusters.known
        client = plane.clusters.client(provided.id)
        brokers = {int(broker.id) for broker in provided.brokers}

        async def published() -> RecentLoad | None:
            recent = await read_recent(client)
            known = {broker for broker, event in recent.loads.items() if event.load is not None}
            return recent if known == brokers else None

        recent = await eventually(published)
        cells = {load_key(provided.id, cell.id) for cell in provided.cells}

        async def measured() -> bool:
            return plane.loads.keys() == cells

        await eventually(measured)
        assert all(event.disk_total_bytes for event in recent.loads.values())
        assert sum(event.leaders for event in recent.loads.values()) > 0

        first = await MetricsObserver(plane.clusters).observe(provided, UNIT)
        assert {each.missing for each in first.brokers} == {(ONE_SCRAPE,)}
        assert not first.cells

        successor = MetricsObserver(plane.clusters)
        successor.restore(provided.id, await read_recent(client), int(time.time() * 1000))
        restored = await successor.observe(provided, UNIT)
        assert all(each.load is not None for each in restored.brokers)
        assert restored.cells


class NothingObserved:
    """Leaves the history of load to the test."""

    async def observe(self, provided: ProvidedCluster, unit: CapacityUnit) -> Observation:
        del provided, unit
        return Observation({}, {})


@pytest.mark.kafka
async def test_an_agent_that_does_not_respond_is_named(control_fleet: Fleet) -> None:
    async with run_control_plane(control_fleet, watch=CellWatch(observer=NothingObserved())) as harness:
        await harness.active()
        clusters = harness.plane.clusters
        (provided,) = clusters.known
        with closing(create_server(("127.0.0.1", 0))) as server:
            port = server.getsockname()[1]
        silent = provided.metrics[0][0]
        others = provided.metrics[1:]
        agents = ((silent, "127.0.0.1", port), *others)
        observer = MetricsObserver(clusters)

        async def measured() -> Observation | None:
            observation = await observer.observe(replace(provided, metrics=agents), UNIT)
            known = [each for each in observation.brokers if each.load is not None]
            return observation if len(known) == len(others) else None

        observation = await eventually(measured)

        (unknown,) = (each for each in observation.brokers if each.load is None)
        assert unknown.broker == silent
        assert f"127.0.0.1:{port}" in unknown.missing[0]
        assert not observation.cells
        await publish(clusters.client(provided.id), observation.brokers)
        kept = (await read_recent(clusters.client(provided.id))).loads[silent]
        assert kept.missing == unknown.missing
