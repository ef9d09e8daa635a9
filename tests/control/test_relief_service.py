"""Automatic relief of full cells: snapshots, moves, the request for a new cell, and a real fleet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from penstock.balance.broker_load import Measurement, averaged, broker_load
from penstock.balance.cell_load import BrokerCapacity, Load, TenantUsage, tenant_loads
from penstock.balance.cell_relief import Pace
from penstock.balance.cells import FULL, CellId, NewCell
from penstock.control import decisions
from penstock.control.capacity_units import LAPTOP
from penstock.control.cluster_placement import brokers_of, load_key
from penstock.control.home import AUDIT
from penstock.control.load.load_observation import MetricsObserver, Observation
from penstock.control.load.relief_service import (
    ACTOR,
    CellReliefService,
    cluster_snapshot,
    needs_cell,
    recent_moves,
)
from penstock.control.physical.local import LocalProvisioner
from penstock.control.service import CellWatch
from penstock.fleet.layout import Layout
from penstock.kafka.admin import topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.kafka.partition_log import ProducerRecord, TransactionalProducer, bounds, read
from penstock.model.entities import ConditionKind, LogicalCluster, Operation, PhysicalCluster, Tenancy, Zones
from penstock.model.errors import PenstockError
from penstock.model.events import AuditEvent
from penstock.model.ids import LogicalClusterId
from tests.control.conftest import QUICK_SESSIONS, run_control_plane
from tests.control.in_memory_control import PHYSICAL, InMemoryControl
from tests.harness.propagation import wait_for_leaders
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.control.capacity_units import CapacityUnit
    from penstock.control.decisions import Decision, DecisionContext
    from penstock.control.physical.cluster_access import ProvidedCluster
    from penstock.control.registry import Registry
    from penstock.model.entities import Entity
    from tests.harness.fleet import Fleet

IMMEDIATE = Pace(full_seconds=0, settle_seconds=0)


def measured(cells: Mapping[str, float], *tenants: tuple[LogicalCluster, float]) -> Observation:
    """An observation of these loads."""
    shares: dict[str, dict[LogicalClusterId, Load]] = {}
    for cluster, load in tenants:
        shares.setdefault(load_key(PHYSICAL, cluster.cell), {})[cluster.tenant] = Load(load)
    return Observation({load_key(PHYSICAL, cell): Load(load) for cell, load in cells.items()}, shares)


def reliever(memory: InMemoryControl) -> CellReliefService:
    async def decide(
        decision: Callable[[Registry, DecisionContext], Decision], kind: type[Entity], *, actor: str
    ) -> Decision:
        del kind
        assert actor == ACTOR
        return memory.accept(decision(memory.registry, memory.context()))

    return CellReliefService(decide, None, IMMEDIATE)


def cluster_in(memory: InMemoryControl, cell: str, **more: object) -> LogicalCluster:
    """A cluster in this cell."""
    cluster = memory.cluster(f"shop-{memory.now_ms}", **more)
    if cluster.cell != cell:
        moved = memory.accept(decisions.move_cluster(memory.registry, memory.context(), cluster.id, cell))
        memory.complete(moved.operation)
    return memory.registry.cluster(cluster.id)


def test_a_snapshot_has_the_clusters_tenants_and_moves() -> None:
    memory = InMemoryControl.with_cells(2)
    one, two = cluster_in(memory, "cell-1"), cluster_in(memory, "cell-2")
    moved = memory.accept(decisions.move_cluster(memory.registry, memory.context(), two.id, "cell-1"))
    physical = memory.registry.need(PhysicalCluster, PHYSICAL)

    snapshot = cluster_snapshot(
        memory.registry, physical, measured({"cell-1": 0.9, "cell-2": 0.2}, (one, 0.3))
    )

    assert snapshot is not None
    assert [each.load.highest for each in snapshot.cells] == [0.9, 0.2]
    assert [use.tenant for use in snapshot.tenants[CellId("cell-1")]] == [one.tenant]
    assert snapshot.busy == {two.tenant}
    (running,) = [move for move in snapshot.recent_moves if move.ended is None]
    assert running.tenant == two.tenant
    assert moved.operation.arguments == {"from": "cell-2", "to": "cell-1"}
    memory.complete(moved.operation)
    assert all(move.ended is not None for move in recent_moves(memory.registry, physical))


def test_nothing_is_decided_while_a_cell_has_no_measurement() -> None:
    memory = InMemoryControl.with_cells(2)
    physical = memory.registry.need(PhysicalCluster, PHYSICAL)

    assert cluster_snapshot(memory.registry, physical, measured({"cell-1": 0.9})) is None


async def test_a_full_cell_starts_one_move_at_a_time() -> None:
    memory = InMemoryControl.with_cells(2)
    tenants = [cluster_in(memory, "cell-1") for _ in range(3)]
    loads = measured({"cell-1": 0.95, "cell-2": 0.1}, *((tenant, 0.2) for tenant in tenants))
    relief = reliever(memory)

    for _ in range(3):
        await relief.run_round(memory.registry, PHYSICAL, loads)

    moving = [o for o in memory.registry.running() if o.action == "cluster.move"]
    assert len(moving) == 1
    assert memory.registry.cluster(moving[0].subject).cell == "cell-2"


async def test_a_cluster_without_room_reports_the_cell_it_needs_until_there_is_room() -> None:
    memory = InMemoryControl.with_cells(2)
    big = cluster_in(memory, "cell-1")
    relief = reliever(memory)

    await relief.run_round(memory.registry, PHYSICAL, measured({"cell-1": 0.9, "cell-2": 0.69}, (big, 0.4)))
    needed = memory.registry.need(PhysicalCluster, PHYSICAL).condition(ConditionKind.NEEDS_CELL)
    version = memory.registry.need(PhysicalCluster, PHYSICAL).version
    await relief.run_round(memory.registry, PHYSICAL, measured({"cell-1": 0.9, "cell-2": 0.69}, (big, 0.4)))

    assert needed is not None
    assert (needed.cells, needed.brokers) == (("cell-1",), 3)
    assert "add 3 brokers to home" in needed.remedy
    assert memory.registry.need(PhysicalCluster, PHYSICAL).version == version  # reported once
    relief.forget()  # a successor continues from the registry
    await relief.run_round(memory.registry, PHYSICAL, measured({"cell-1": 0.75, "cell-2": 0.69}, (big, 0.4)))
    await relief.run_round(memory.registry, PHYSICAL, measured({"cell-1": 0.5, "cell-2": 0.2}, (big, 0.4)))
    assert memory.registry.need(PhysicalCluster, PHYSICAL).conditions == ()
    assert [o.action for o in memory.registry.all(Operation) if o.subject == PHYSICAL] == [
        "physical.condition"
    ] * 2


def test_the_start_of_a_condition_stays_while_its_reason_changes() -> None:
    memory = InMemoryControl.with_cells(2)
    first, more = NewCell(3, "one", (CellId("cell-1"),)), NewCell(3, "two", (CellId("cell-2"),))

    for new_cell in (first, more):
        memory.accept(needs_cell(memory.registry, memory.context(), PHYSICAL, new_cell, "buy"))
        memory.now_ms += 60_000

    (condition,) = memory.registry.need(PhysicalCluster, PHYSICAL).conditions
    assert condition.detail == "two"
    assert condition.since_ms < memory.now_ms - 60_000


async def test_a_dedicated_cluster_is_not_relieved() -> None:
    memory = InMemoryControl.with_cells(2, tenancy=Tenancy.DEDICATED)

    await reliever(memory).run_round(memory.registry, PHYSICAL, measured({"cell-1": 0.99, "cell-2": 0.9}))

    assert memory.registry.need(PhysicalCluster, PHYSICAL).conditions == ()


async def test_a_rejected_move_is_decided_again_in_the_next_round() -> None:
    memory = InMemoryControl.with_cells(2)
    tenant = cluster_in(memory, "cell-1")

    async def refuse(decision: object, kind: object, *, actor: str) -> Decision:
        raise PenstockError

    relief = CellReliefService(refuse, None, IMMEDIATE)

    await relief.run_round(memory.registry, PHYSICAL, measured({"cell-1": 0.9, "cell-2": 0.1}, (tenant, 0.3)))

    assert memory.registry.running() == []


def test_handler_time_is_attributed_to_tenants_by_their_bytes() -> None:
    busy, quiet = LogicalClusterId("lkc-aaaaaa"), LogicalClusterId("lkc-bbbbbb")
    capacity = BrokerCapacity(replicas_max=100, ingress_max=1000, egress_max=3000)
    usage = {busy: TenantUsage(600, 300, 10), quiet: TenantUsage(0, 100, 30)}

    loads = tenant_loads(usage, Load(broker=0.5), 2, capacity)

    assert loads[busy] == Load(broker=0.45, replicas=0.05, bandwidth=0.3)
    assert loads[quiet].replicas == 0.15
    assert tenant_loads({quiet: TenantUsage(0, 0, 1)}, Load(0.9), 1, capacity)[quiet].broker == 0.0


def test_a_short_burst_does_not_fill_a_broker_but_sustained_load_does() -> None:
    average, loads = Measurement(), []

    for _ in range(12):
        average = averaged(average, Measurement(wait_ms=1.0, handlers_busy=1.0), 10)
        loads.append(broker_load(average))

    assert loads[0] < 0.5 < FULL < loads[-1]


def test_the_remedy_for_local_brokers_is_a_command(tmp_path: Path) -> None:
    provisioner = LocalProvisioner(Layout(tmp_path))
    home = InMemoryControl.with_cells(2).registry.need(PhysicalCluster, PHYSICAL)

    assert "add 3 brokers, evenly over zones a,b,c: `penstock cell add`" in provisioner.growth(home, 3)
    adopted = InMemoryControl.with_cells(provider="adopted").registry.need(PhysicalCluster, PHYSICAL)
    assert provisioner.growth(adopted, 3) == ""


@dataclass
class FixedLoads:
    """An observer with loads set by a test, by cell and by tenant."""

    cells: dict[str, float] = field(default_factory=dict)
    tenants: dict[str, float] = field(default_factory=dict)

    async def observe(self, provided: ProvidedCluster, unit: CapacityUnit) -> Observation:
        del unit
        tenants = {LogicalClusterId(tenant): Load(load) for tenant, load in self.tenants.items()}
        keys = {cell.id: load_key(provided.id, cell.id) for cell in provided.cells}
        return Observation(
            {key: Load(self.cells.get(cell, 0.1)) for cell, key in keys.items()},
            dict.fromkeys(keys.values(), tenants),
        )


@pytest.mark.kafka
async def test_a_full_cell_of_a_real_fleet_is_relieved_and_a_new_one_is_requested(
    make_fleet: Callable[..., Fleet], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=2, zones=["a"], config=QUICK_SESSIONS)
    observer_loads = FixedLoads()
    watch = CellWatch(seconds=0.1, observer=observer_loads, pace=IMMEDIATE)
    provisioner = LocalProvisioner(Layout(tmp_path))
    async with run_control_plane(fleet, cell_brokers=1, provisioner=provisioner, watch=watch) as harness:
        await harness.active()
        plane = harness.plane
        shop = await harness.create(unique("shop"), zones=Zones.SINGLE)
        await _create_topic(fleet, plane.registry, shop)
        observer_loads.tenants = {shop.id: 0.3}

        observer_loads.cells = {shop.cell: 0.95}

        async def moved() -> bool:
            return plane.registry.cluster(shop.id).cell != shop.cell and not plane.registry.running()

        await eventually(moved)
        observer_loads.cells = {}
        physical = plane.registry.need(PhysicalCluster, shop.cluster)
        after = plane.registry.cluster(shop.id)

        async def arrived() -> bool:  # also according to the broker that is queried
            return await _replicas_of(fleet, shop) == set(brokers_of(after, physical))

        await eventually(arrived)
        assert [(e.operation, e.actor) for e in await _audit_events(fleet) if e.tenant == shop.id][-1] == (
            "cluster.move",
            ACTOR,
        )
        await harness.as_declared()

        observer_loads.cells = {cell.id: 0.95 for cell in physical.cells}

        async def needed() -> bool:
            return bool(plane.registry.need(PhysicalCluster, shop.cluster).conditions)

        await eventually(needed)
        (condition,) = plane.registry.need(PhysicalCluster, shop.cluster).conditions
        assert condition.kind == ConditionKind.NEEDS_CELL
        assert "penstock cell add" in condition.remedy
        observer_loads.cells = {}

        async def over() -> bool:
            return not plane.registry.need(PhysicalCluster, shop.cluster).conditions

        await eventually(over)
        assert [e.operation for e in await _audit_events(fleet)].count("physical.condition") >= 2


async def _create_topic(fleet: Fleet, registry: Registry, cluster: LogicalCluster) -> None:
    brokers = brokers_of(cluster, registry.need(PhysicalCluster, cluster.cluster))
    name = f"{cluster.id}_orders"
    async with Client(fleet.bootstrap, fleet.security()) as client:
        made = await topics.create(client, [topics.NewTopic(name, replicas={0: [*brokers], 1: [*brokers]})])
        assert not isinstance(made[name], PenstockError), made
    await wait_for_leaders(fleet.bootstrap, fleet.security(), name, 2)


async def _replicas_of(fleet: Fleet, cluster: LogicalCluster) -> set[int]:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        topic = (await topics.describe(client))[f"{cluster.id}_orders"]
        assert not isinstance(topic, PenstockError)
        return {replica for partition in topic.partitions for replica in partition.replicas}


async def _audit_events(fleet: Fleet) -> list[AuditEvent]:
    events: list[AuditEvent] = []
    async with Client(fleet.bootstrap, fleet.security()) as client:
        position, end = await bounds(client, AUDIT)
        while position < end:
            chunk = await read(client, AUDIT, position)
            events += [AuditEvent.from_bytes(r.value) for r in chunk.records if r.value is not None]
            position = chunk.position
    return events


@pytest.mark.kafka
async def test_broker_metrics_show_each_tenants_share_of_a_cell(
    control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    tiny = replace(LAPTOP, ingress_bytes=1_000, partitions=1, units_max=1)  # any traffic fills it
    async with run_control_plane(control_fleet) as harness:
        await harness.active()
        cluster = await harness.create(unique("shop"))
        await _create_topic(control_fleet, harness.plane.registry, cluster)
        clusters = harness.plane.clusters
        (provided,) = clusters.known
        observer = MetricsObserver(clusters)
        appender = TransactionalProducer(clusters.client(provided.id), unique("writer"))
        await appender.init()
        (key,) = (load_key(provided.id, cell.id) for cell in provided.cells)

        async def tenant_load() -> Load | None:
            await appender.commit(
                [ProducerRecord(TopicPartition(f"{cluster.id}_orders", 0), None, b"x" * 50_000)]
            )
            observation = await observer.observe(provided, tiny)
            load = observation.tenants.get(key, {}).get(cluster.tenant)
            return load if load is not None and load.bandwidth > 0 else None

        load = await eventually(tenant_load)

        assert load.replicas == pytest.approx(2 / 3)
        assert 0 <= load.broker <= 1
