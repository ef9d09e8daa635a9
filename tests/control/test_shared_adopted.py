"""Adopted clusters that carry many tenants: placement, what is missing, brokers lost and gained."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from penstock.control import decisions
from penstock.control.checker import ActualState, declared_state, differences, known_tenants_only
from penstock.control.cluster_placement import brokers_of
from penstock.control.decisions import ClusterRequest
from penstock.control.desired_state import KafkaAccess
from penstock.control.effects import registered
from penstock.control.home import Home
from penstock.control.kafka_access import read_access
from penstock.control.physical.cluster_access import BrokerSelection, ProvidedCluster
from penstock.control.physical.configured import provide, require_unclaimed
from penstock.control.registry import Put, Registry
from penstock.control.settings import ConfiguredCluster
from penstock.fleet.adopted.capabilities import (
    CREATE,
    DESCRIBE,
    Capability,
    ClusterProbe,
    capability_table,
    missing_capabilities,
)
from penstock.fleet.adopted.capability_probe import open_acls
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.kafka.admin.acls import Acl, Operation, Pattern, Permission, ResourceType
from penstock.model.entities import (
    ActiveControlPlane,
    BrokerEndpoint,
    CellMembers,
    Condition,
    ConditionKind,
    MissingCapability,
    OperationState,
    PhysicalCluster,
    Role,
    Tenancy,
)
from penstock.model.errors.control import (
    AdoptedOccupied,
    AdoptedUnusable,
    ClocksDiffer,
    EntityMissing,
    MoveNeedsLink,
    NoRoom,
)
from penstock.model.errors.fleet import CapabilityMissing, ClusterClaimed, ClusterReplaced
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from penstock.model.tenant_acls import AclEntry
from tests.control.in_memory_control import InMemoryControl, physical
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.control.conftest import PlaneHarness
    from tests.harness.secured_kafka import SecuredKafka

KEY = PlatformKey(b"k" * 32)
EAST = "pkc-000001"


def adopted(name: str = "east", **more: Any) -> PhysicalCluster:
    values = {"name": name, "provider": "adopted", "capacity": "published"} | more
    return replace(physical(2, **values), id=EAST)


def memory_with(*clusters: PhysicalCluster) -> InMemoryControl:
    memory = InMemoryControl()
    memory.registry.accept([Put(cluster) for cluster in clusters])
    return memory


def test_many_tenants_share_the_adopted_cluster_that_they_name() -> None:
    memory = memory_with(physical(), adopted())

    tenants = [memory.cluster(name, adopted="east") for name in ("shop", "bank")]

    assert {tenant.cluster for tenant in tenants} == {EAST}
    assert memory.cluster("third").cluster == physical().id  # the first one, if none is named
    with pytest.raises(EntityMissing, match="north"):
        memory.cluster("fourth", adopted="north")


def test_a_dedicated_tenant_has_every_cell_and_gives_the_cluster_back() -> None:
    memory = memory_with(adopted())

    alone = memory.cluster("alone", tenancy=Tenancy.DEDICATED, adopted="east")

    cluster = memory.registry.need(PhysicalCluster, EAST)
    assert cluster.tenancy is Tenancy.DEDICATED
    assert brokers_of(alone, cluster) == (1, 2, 3, 4, 5, 6)
    for request in (ClusterRequest("second", adopted="east"), ClusterRequest("third")):
        with pytest.raises((AdoptedOccupied, NoRoom)):
            decisions.create_cluster(memory.registry, memory.context(), request)
    deleted = decisions.delete_cluster(memory.registry, memory.context(), alone.id, None)
    memory.complete(memory.accept(deleted).operation)
    assert memory.registry.need(PhysicalCluster, EAST).tenancy is Tenancy.SHARED

    memory.cluster("shop", adopted="east")
    with pytest.raises(AdoptedOccupied, match="lkc-"):
        memory.cluster("second", tenancy=Tenancy.DEDICATED, adopted="east")


def lack(memory: InMemoryControl, missing: MissingCapability) -> None:
    before = memory.registry.need(PhysicalCluster, EAST)
    memory.registry.accept([Put(before.changed(memory.now_ms, missing=(missing,)))])


def test_a_missing_capability_turns_off_the_feature_that_needs_it() -> None:
    missing = MissingCapability("acls", "limited service accounts", "no authorizer", "Set one.")
    memory = memory_with(adopted(missing=(missing,)))
    shop = memory.cluster("shop", adopted="east")

    with pytest.raises(CapabilityMissing, match="a limited service account needs the capability acls"):
        decisions.create_account(memory.registry, memory.context(), shop.id, "app", Role.LIMITED, ())
    lack(memory, replace(missing, capability="reassignments"))
    with pytest.raises(CapabilityMissing, match="moving a tenant"):
        decisions.move_cluster(memory.registry, memory.context(), shop.id, "cell-2")
    lack(memory, replace(missing, capability="users"))
    with pytest.raises(CapabilityMissing, match="a logical cluster needs the capability users"):
        memory.cluster("bank", adopted="east")
    with pytest.raises(NoRoom):
        memory.cluster("bank")


def test_a_cluster_that_is_another_one_now_takes_no_tenants() -> None:
    condition = Condition(ConditionKind.UNUSABLE, 1, "10.0.0.1:9092 is another cluster", "Correct it.")
    memory = memory_with(adopted(conditions=(condition,)))

    with pytest.raises(AdoptedUnusable, match="another cluster"):
        memory.cluster("shop", adopted="east")
    with pytest.raises(NoRoom):
        memory.cluster("shop")


def test_a_move_to_another_kafka_cluster_names_what_it_needs() -> None:
    memory = memory_with(physical(2), adopted())
    shop = memory.cluster("shop")

    for target in ("east/cell-1", f"{EAST}/cell-1"):
        with pytest.raises(MoveNeedsLink, match="a move to 'east' copies its data") as refused:
            decisions.move_cluster(memory.registry, memory.context(), shop.id, target)
        assert "cluster links" in refused.value.advice
    with pytest.raises(EntityMissing, match="north"):
        decisions.move_cluster(memory.registry, memory.context(), shop.id, "north/cell-1")
    other = "cell-2" if shop.cell == "cell-1" else "cell-1"
    decided = decisions.move_cluster(memory.registry, memory.context(), shop.id, f"home/{other}")
    assert decided.operation.arguments["to"] == other


def provided(*ids: int, selection: BrokerSelection | None = None) -> ProvidedCluster:
    places = tuple(BrokerEndpoint(BrokerId(i), Zone("abc"[(i - 1) % 3]), "kafka", 9000 + i) for i in ids)
    cells = (CellMembers("cell-1", tuple(place.id for place in places)),)
    selection = selection or BrokerSelection()
    return ProvidedCluster(
        PhysicalClusterId(EAST), "east", "adopted", "kafka:9092", KEY, places, cells, selection=selection
    )


def test_a_lost_broker_stays_in_its_cell_and_is_reported_until_it_is_back() -> None:
    new = PhysicalCluster(id=EAST, name="east", provider="adopted")
    whole = registered(new, provided(1, 2, 3), 1)

    without = registered(whole, provided(1, 3), 2)

    assert (without.cells, without.brokers) == (whole.cells, whole.brokers)
    (condition,) = without.conditions
    assert condition.kind == ConditionKind.BROKERS_LOST
    assert "2" in condition.detail
    assert registered(without, provided(1, 3), 3).conditions[0].since_ms == 2
    assert registered(without, provided(1, 2, 3), 4).conditions == ()
    selection = BrokerSelection(ids=frozenset((1, 3)))
    left_out = registered(whole, provided(1, 3, selection=selection), 5)
    assert [broker.id for broker in left_out.brokers] == [1, 3]


def test_a_gained_broker_joins_the_only_cell_or_waits_for_others() -> None:
    new = PhysicalCluster(id=EAST, name="east", provider="adopted")
    whole = registered(new, provided(1, 2, 3), 1)

    assert registered(whole, provided(1, 2, 3, 4), 2).cells == provided(1, 2, 3, 4).cells
    cells = BrokerSelection(one_cell=False)
    waiting = registered(whole, provided(1, 2, 3, 4, selection=cells), 2)
    assert waiting.cells == whole.cells
    assert [each.kind for each in waiting.conditions] == [ConditionKind.BROKERS_UNUSED]
    grown = registered(waiting, provided(1, 2, 3, 4, 5, 6, selection=cells), 3)
    assert [cell.brokers for cell in grown.cells] == [(1, 2, 3), (4, 5, 6)]
    assert grown.conditions == ()


def test_only_selected_brokers_carry_tenants() -> None:
    (one, two, three) = provided(1, 2, 3).brokers
    by_zone = BrokerSelection(zones=frozenset("ab"))
    assert [by_zone.includes(each) for each in (one, two, three)] == [True, True, False]
    both = BrokerSelection(ids=frozenset((2, 3)), zones=frozenset("ab"))
    assert [both.includes(each) for each in (one, two, three)] == [False, True, False]


def test_what_resembles_a_tenants_on_an_adopted_cluster_is_neither_reported_nor_removed() -> None:
    memory = memory_with(adopted())
    shop = memory.cluster("shop", adopted="east")
    declared = declared_state(memory.registry, memory.registry.need(PhysicalCluster, EAST))
    others = AclEntry("lkc-zzzzzz_sa-zzzzzz", "topic", "lkc-zzzzzz_", "prefixed", "read")
    intruder = AclEntry("mallory", "topic", f"{shop.id}_orders", "literal", "read")
    access = replace(declared.access, acls=declared.access.acls | {others, intruder})
    access |= KafkaAccess({others.user: 0}, client_quotas={others.user: {"producer_byte_rate": 1.0}})
    actual = ActualState(access, {"lkc-zzzzzz_orders": frozenset((1,))}, declared.states)

    reported = differences(declared, known_tenants_only(actual, declared))

    assert [(each.what, each.name) for each in reported] == [("acl", "mallory")]


def test_acls_of_every_user_that_cover_tenants_are_named() -> None:
    def acl(principal: str, name: str, pattern: Pattern = Pattern.LITERAL) -> Acl:
        return Acl(principal, Operation.READ, ResourceType.TOPIC, name, pattern)

    harmless = [acl("User:*", "public"), acl("User:alice", "*"), acl("User:*", "x", Pattern.PREFIXED)]
    denied = replace(acl("User:*", "*"), permission=Permission.DENY)
    assert open_acls([*harmless, denied]) == ()
    for name, pattern in (("*", Pattern.LITERAL), ("lkc-", Pattern.PREFIXED), ("l", Pattern.PREFIXED)):
        (shown,) = open_acls([*harmless, acl("User:*", name, pattern)])
        assert shown == f"User:* Read on topic {name}"
    probe = ClusterProbe(frozenset(), {}, {}, open_acls=("User:* Read on topic *",))
    (row,) = [row for row in capability_table(probe) if row.capability is Capability.ISOLATION]
    assert "User:* Read on topic *" in row.reason


def test_a_missing_right_comes_with_the_command_that_grants_it() -> None:
    probe = ClusterProbe(frozenset((CREATE, DESCRIBE)), {}, {}, grant="kafka-acls.sh --add …")
    missing = {each.capability: each for each in missing_capabilities(capability_table(probe))}
    assert missing[Capability.CLIENT_QUOTAS].remedy.endswith("kafka-acls.sh --add …")
    assert "AlterConfigs" in missing[Capability.CLIENT_QUOTAS].reason
    assert Capability.ACLS not in missing


def test_a_clock_behind_that_of_the_active_control_plane_is_reported() -> None:
    home = Home("pkc-000000", "https://standby", ())
    registry = Registry()
    now = int(time.time() * 1000)
    active = ActiveControlPlane(
        id="active", version=1, url="https://active", incarnation="a", since_ms=now + 60_000
    )
    registry.accept([Put(active)])

    with capture_logs() as logged:
        home.check_settings(registry)
    assert ClocksDiffer.code in logged[0]["error"]
    assert "https://active" in logged[0]["error"]

    registry.accept([Put(active.changed(now, since_ms=now))])
    with capture_logs() as logged:
        home.check_settings(registry)
    assert logged == []


@pytest.mark.kafka
async def test_a_cluster_follows_what_it_allows_and_is_left_alone_while_it_is_another(
    harness: PlaneHarness, secured_kafka: SecuredKafka, unique: Callable[[str], str]
) -> None:
    security = secured_kafka.security(secured_kafka.platform())
    east = await provide(ConfiguredCluster("east", secured_kafka.fleet.bootstrap, security), KEY)
    quotas_missing = MissingCapability(Capability.CLIENT_QUOTAS, "backstop", "denied")
    plane = harness.plane
    await plane.add_cluster(replace(east, missing=(quotas_missing,)))
    shop = await harness.create(unique("shop"), adopted="east")
    before = (await read_access(plane.clusters.client(east.id))).client_quotas
    assert not any(user.startswith(shop.id) for user in before)
    assert plane.registry.need(PhysicalCluster, east.id).missing == (quotas_missing,)
    assert not plane.has_current(east)

    await plane.add_cluster(replace(east, missing=()))

    async def has_quotas() -> bool:
        granted = (await read_access(plane.clusters.client(east.id))).client_quotas
        return any(user.startswith(shop.id) for user in granted)

    await eventually(has_quotas)
    assert plane.has_current(replace(east, missing=()))
    await require_unclaimed(plane.registry, east)
    with pytest.raises(ClusterClaimed, match=shop.id):
        await require_unclaimed(Registry(), east)
    replaced = ClusterReplaced(name="east", kafka_id=east.kafka_id, bootstrap=east.bootstrap, other="x")
    await plane.report_unusable("east", replaced, replaced=True)
    assert not plane.clusters.has(east.id)
    assert plane.registry.need(PhysicalCluster, east.id).condition(ConditionKind.UNUSABLE) is not None
    with pytest.raises(AdoptedUnusable):
        await harness.create(unique("bank"), adopted="east")

    await plane.add_cluster(replace(east, missing=()))
    assert plane.registry.need(PhysicalCluster, east.id).condition(ConditionKind.UNUSABLE) is None
    assert (await harness.delete(shop.id)).state is OperationState.DONE
    await harness.as_declared()
