"""Full cells that relieve themselves: what is seen, what is asked for, and a real fleet that does it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from penstock.balance.cells import FULL, CellId, NewCell
from penstock.balance.load import BrokerCapacity, Load, Part, tenant_loads
from penstock.balance.relief import Pace
from penstock.control import decisions
from penstock.control.local import LocalProvisioner
from penstock.control.observing import Averages, Observation, Observer
from penstock.control.placing import brokers_of, load_key
from penstock.control.relieving import ACTOR, Reliever, needs_cell, past_moves, seen_of
from penstock.control.service import AUDIT, Watch
from penstock.control.units import LAPTOP
from penstock.fleet.layout import Layout
from penstock.kafka import topics
from penstock.kafka.client import Client
from penstock.kafka.log import Appender, Row, bounds, read
from penstock.kafka.partitions import TopicPartition
from penstock.model.entities import ConditionKind, LogicalCluster, Operation, PhysicalCluster, Tenancy, Zones
from penstock.model.errors import PenstockError
from penstock.model.events import AuditEvent
from penstock.model.ids import LogicalClusterId
from tests.control.conftest import QUICK_SESSIONS, open_office
from tests.control.ground import PHYSICAL, Paper
from tests.ground.topics import led_everywhere
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from penstock.control.decisions import Ask, Decided
    from penstock.control.reach import Reach
    from penstock.control.registry import Registry
    from penstock.control.units import CapacityUnit
    from penstock.model.entities import Entity
    from tests.ground.fleet import Fleet

AT_ONCE = Pace(full_seconds=0, settle_seconds=0)


def measured(cells: Mapping[str, float], *tenants: tuple[LogicalCluster, float]) -> Averages:
    """Averages that have come to rest at these loads."""
    averages = Averages()
    averages.cells = {load_key(PHYSICAL, cell): Load(load) for cell, load in cells.items()}
    for cluster, load in tenants:
        averages.tenants.setdefault(load_key(PHYSICAL, cluster.cell), {})[cluster.tenant] = Load(load)
    return averages


def reliever(paper: Paper) -> Reliever:
    async def decide(
        decision: Callable[[Registry, Ask], Decided], kind: type[Entity], *, actor: str
    ) -> Decided:
        del kind
        assert actor == ACTOR
        return paper.accept(decision(paper.registry, paper.ask()))

    return Reliever(decide, None, AT_ONCE)


def settled(paper: Paper, cell: str, **more: object) -> LogicalCluster:
    """A cluster in this very cell."""
    cluster = paper.cluster(f"shop-{paper.now_ms}", **more)
    if cluster.cell != cell:
        moved = paper.accept(decisions.move_cluster(paper.registry, paper.ask(), cluster.id, cell))
        paper.carry_out(moved.operation)
    return paper.registry.cluster(cluster.id)


def test_a_cluster_is_seen_with_its_tenants_and_its_moves() -> None:
    paper = Paper.with_cells(2)
    one, two = settled(paper, "cell-1"), settled(paper, "cell-2")
    moved = paper.accept(decisions.move_cluster(paper.registry, paper.ask(), two.id, "cell-1"))
    physical = paper.registry.need(PhysicalCluster, PHYSICAL)

    seen = seen_of(paper.registry, physical, measured({"cell-1": 0.9, "cell-2": 0.2}, (one, 0.3)))

    assert seen is not None
    assert [each.load.highest for each in seen.cells] == [0.9, 0.2]
    assert [use.tenant for use in seen.tenants[CellId("cell-1")]] == [one.tenant]
    assert seen.busy == {two.tenant}
    (under_way,) = [move for move in seen.past if move.ended is None]
    assert under_way.tenant == two.tenant
    assert moved.operation.given == {"from": "cell-2", "to": "cell-1"}
    paper.carry_out(moved.operation)
    assert all(move.ended is not None for move in past_moves(paper.registry, physical))


def test_nothing_is_decided_while_a_cell_is_not_measured() -> None:
    paper = Paper.with_cells(2)
    physical = paper.registry.need(PhysicalCluster, PHYSICAL)

    assert seen_of(paper.registry, physical, measured({"cell-1": 0.9})) is None


async def test_a_full_cell_starts_one_move_and_no_second_beside_it() -> None:
    paper = Paper.with_cells(2)
    tenants = [settled(paper, "cell-1") for _ in range(3)]
    loads = measured({"cell-1": 0.95, "cell-2": 0.1}, *((tenant, 0.2) for tenant in tenants))
    relief = reliever(paper)

    for _ in range(3):
        await relief.look(paper.registry, PHYSICAL, loads)

    moving = [o for o in paper.registry.running() if o.action == "cluster.move"]
    assert len(moving) == 1
    assert paper.registry.cluster(moving[0].subject).cell == "cell-2"


async def test_when_none_has_room_the_cluster_says_what_it_needs_until_it_is_there() -> None:
    paper = Paper.with_cells(2)
    big = settled(paper, "cell-1")
    relief = reliever(paper)

    await relief.look(paper.registry, PHYSICAL, measured({"cell-1": 0.9, "cell-2": 0.69}, (big, 0.4)))
    needed = paper.registry.need(PhysicalCluster, PHYSICAL).condition(ConditionKind.NEEDS_CELL)
    version = paper.registry.need(PhysicalCluster, PHYSICAL).version
    await relief.look(paper.registry, PHYSICAL, measured({"cell-1": 0.9, "cell-2": 0.69}, (big, 0.4)))

    assert needed is not None
    assert (needed.cells, needed.brokers) == (("cell-1",), 3)
    assert "add 3 brokers to home" in needed.remedy
    assert paper.registry.need(PhysicalCluster, PHYSICAL).version == version  # said once
    relief.forget()  # a successor goes on from what the registry says
    await relief.look(paper.registry, PHYSICAL, measured({"cell-1": 0.75, "cell-2": 0.69}, (big, 0.4)))
    await relief.look(paper.registry, PHYSICAL, measured({"cell-1": 0.5, "cell-2": 0.2}, (big, 0.4)))
    assert paper.registry.need(PhysicalCluster, PHYSICAL).conditions == ()
    assert [o.action for o in paper.registry.all(Operation) if o.subject == PHYSICAL] == [
        "physical.condition"
    ] * 2


def test_since_when_a_cell_is_needed_stays_while_the_reason_changes() -> None:
    paper = Paper.with_cells(2)
    first, more = NewCell(3, "one", (CellId("cell-1"),)), NewCell(3, "two", (CellId("cell-2"),))

    for wanted in (first, more):
        paper.accept(needs_cell(paper.registry, paper.ask(), PHYSICAL, wanted, "buy"))
        paper.now_ms += 60_000

    (condition,) = paper.registry.need(PhysicalCluster, PHYSICAL).conditions
    assert condition.detail == "two"
    assert condition.since_ms < paper.now_ms - 60_000


async def test_a_dedicated_cluster_is_left_to_its_tenant() -> None:
    paper = Paper.with_cells(2, tenancy=Tenancy.DEDICATED)

    await reliever(paper).look(paper.registry, PHYSICAL, measured({"cell-1": 0.99, "cell-2": 0.9}))

    assert paper.registry.need(PhysicalCluster, PHYSICAL).conditions == ()


async def test_what_is_refused_is_decided_anew_in_the_next_round() -> None:
    paper = Paper.with_cells(2)
    tenant = settled(paper, "cell-1")

    async def refuse(decision: object, kind: object, *, actor: str) -> Decided:
        raise PenstockError

    relief = Reliever(refuse, None, AT_ONCE)

    await relief.look(paper.registry, PHYSICAL, measured({"cell-1": 0.9, "cell-2": 0.1}, (tenant, 0.3)))

    assert paper.registry.running() == []


def test_handlers_time_is_laid_on_tenants_by_their_bytes() -> None:
    busy, quiet = LogicalClusterId("lkc-aaaaaa"), LogicalClusterId("lkc-bbbbbb")
    capacity = BrokerCapacity(replicas_max=100, ingress_max=1000, egress_max=3000)
    parts = {busy: Part(600, 300, 10), quiet: Part(0, 100, 30)}

    found = tenant_loads(parts, Load(broker=0.5), 2, capacity)

    assert found[busy] == Load(broker=0.45, replicas=0.05, bandwidth=0.3)
    assert found[quiet].replicas == 0.15
    assert tenant_loads({quiet: Part(0, 0, 1)}, Load(0.9), 1, capacity)[quiet].broker == 0.0


def test_a_moment_of_work_does_not_fill_a_cell_but_minutes_of_it_do() -> None:
    averages, tenant = Averages(), LogicalClusterId("lkc-aaaaaa")
    busy = Observation({"cell": Load(1.0)}, {"cell": {tenant: Load(bandwidth=1.0)}})
    seen = []

    for _ in range(12):
        averages.take(busy)
        seen.append(averages.cells["cell"].highest)
    averages.take(Observation({}, {}))

    assert seen[0] < 0.5 < FULL < seen[-1]
    assert averages.cells["cell"].highest == averages.tenants["cell"][tenant].highest == seen[-1]


def test_local_brokers_are_added_by_whoever_runs_them(tmp_path: Path) -> None:
    provisioner = LocalProvisioner(Layout(tmp_path))
    home = Paper.with_cells(2).registry.need(PhysicalCluster, PHYSICAL)

    assert "3 brokers more, evenly over zones a,b,c: `penstock cell add`" in provisioner.growth(home, 3)
    adopted = Paper.with_cells(provider="adopted").registry.need(PhysicalCluster, PHYSICAL)
    assert provisioner.growth(adopted, 3) == ""


@dataclass
class Planted:
    """An observation that a test writes down: loads by cell, and by tenant wherever it is."""

    cells: dict[str, float] = field(default_factory=dict)
    tenants: dict[str, float] = field(default_factory=dict)

    async def look(self, reach: Reach, unit: CapacityUnit) -> Observation:
        del unit
        parts = {LogicalClusterId(tenant): Load(load) for tenant, load in self.tenants.items()}
        keys = {cell.id: load_key(reach.id, cell.id) for cell in reach.cells}
        return Observation(
            {key: Load(self.cells.get(cell, 0.1)) for cell, key in keys.items()},
            dict.fromkeys(keys.values(), parts),
        )


@pytest.mark.kafka
async def test_a_full_cell_of_a_real_fleet_relieves_itself_and_asks_for_another(
    make_fleet: Callable[..., Fleet], tmp_path: Path, unique: Callable[[str], str]
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=2, zones=["a"], config=QUICK_SESSIONS)
    planted = Planted()
    watch = Watch(seconds=0.1, observer=planted, pace=AT_ONCE)
    provisioner = LocalProvisioner(Layout(tmp_path))
    async with open_office(fleet, cell_brokers=1, provisioner=provisioner, watch=watch) as office:
        await office.active()
        plane = office.plane
        shop = await office.create(unique("shop"), zones=Zones.SINGLE)
        await _topic_at_home(fleet, plane.registry, shop)
        planted.tenants = {shop.id: 0.3}

        planted.cells = {shop.cell: 0.95}

        async def moved() -> bool:
            return plane.registry.cluster(shop.id).cell != shop.cell and not plane.registry.running()

        await eventually(moved)
        planted.cells = {}
        physical = plane.registry.need(PhysicalCluster, shop.cluster)
        after = plane.registry.cluster(shop.id)

        async def arrived() -> bool:  # in the eyes of the broker that is asked, too
            return await _replicas_of(fleet, shop) == set(brokers_of(after, physical))

        await eventually(arrived)
        assert [(e.operation, e.actor) for e in await _audited(fleet) if e.tenant == shop.id][-1] == (
            "cluster.move",
            ACTOR,
        )
        await office.as_declared()

        planted.cells = {cell.id: 0.95 for cell in physical.cells}

        async def needed() -> bool:
            return bool(plane.registry.need(PhysicalCluster, shop.cluster).conditions)

        await eventually(needed)
        (condition,) = plane.registry.need(PhysicalCluster, shop.cluster).conditions
        assert condition.kind == ConditionKind.NEEDS_CELL
        assert "penstock cell add" in condition.remedy
        planted.cells = {}

        async def over() -> bool:
            return not plane.registry.need(PhysicalCluster, shop.cluster).conditions

        await eventually(over)
        assert [e.operation for e in await _audited(fleet)].count("physical.condition") >= 2


async def _topic_at_home(fleet: Fleet, registry: Registry, cluster: LogicalCluster) -> None:
    brokers = brokers_of(cluster, registry.need(PhysicalCluster, cluster.cluster))
    name = f"{cluster.id}_orders"
    async with Client(fleet.bootstrap, fleet.security()) as client:
        made = await topics.create(client, [topics.NewTopic(name, replicas={0: [*brokers], 1: [*brokers]})])
        assert not isinstance(made[name], PenstockError), made
    await led_everywhere(fleet.bootstrap, fleet.security(), name, 2)


async def _replicas_of(fleet: Fleet, cluster: LogicalCluster) -> set[int]:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        topic = (await topics.describe(client))[f"{cluster.id}_orders"]
        assert not isinstance(topic, PenstockError)
        return {replica for partition in topic.partitions for replica in partition.replicas}


async def _audited(fleet: Fleet) -> list[AuditEvent]:
    found: list[AuditEvent] = []
    async with Client(fleet.bootstrap, fleet.security()) as client:
        position, end = await bounds(client, AUDIT)
        while position < end:
            chunk = await read(client, AUDIT, position)
            found += [AuditEvent.from_bytes(r.value) for r in chunk.records if r.value is not None]
            position = chunk.position
    return found


@pytest.mark.kafka
async def test_brokers_tell_what_each_tenant_takes_of_a_cell(
    control_fleet: Fleet, unique: Callable[[str], str]
) -> None:
    tiny = replace(LAPTOP, ingress_bytes=1_000, partitions=1, units_max=1)  # any traffic fills it
    async with open_office(control_fleet) as office:
        await office.active()
        cluster = await office.create(unique("shop"))
        await _topic_at_home(control_fleet, office.plane.registry, cluster)
        clusters = office.plane.clusters
        (reach,) = clusters.known
        observer = Observer(clusters)
        appender = Appender(clusters.client(reach.id), unique("writer"))
        await appender.begin()
        (key,) = (load_key(reach.id, cell.id) for cell in reach.cells)

        async def told() -> Load | None:
            await appender.commit([Row(TopicPartition(f"{cluster.id}_orders", 0), None, b"x" * 50_000)])
            seen = await observer.look(reach, tiny)
            load = seen.tenants[key].get(cluster.tenant)
            return load if load is not None and load.bandwidth > 0 else None

        load = await eventually(told)

        assert load.replicas == pytest.approx(2 / 3)
        assert 0 <= load.broker <= 1
