"""Plans made from what a control plane knows of a cluster, over an in-memory control plane."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.balance.executing import Observation, PartitionState
from penstock.balance.plan_document import PlanState
from penstock.control.health.broker_states import set_status
from penstock.control.load.planning import ClusterReading, Disks
from penstock.control.registry import Put
from penstock.control.service import Role
from penstock.model.entities import BrokerStatus, ClusterState, MissingCapability, OperatorRole
from penstock.model.events import BrokerLoad
from penstock.model.ids import BrokerId, PhysicalClusterId
from tests.control.in_memory_control import PHYSICAL, physical
from tests.control.in_memory_plane import code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.control.in_memory_plane import Api

TB = 10**12
GB = 10**9
BROKERS = (1, 2, 3, 4, 5, 6)  # two cells of three
Partition = tuple[str, int]


def reading(
    placed: Mapping[Partition, tuple[int, ...]],
    size: int = GB,
    rates: Mapping[int, Mapping[str, tuple[float, ...]]] | None = None,
    **more: Any,
) -> ClusterReading:
    states: dict[Any, PartitionState] = {
        key: PartitionState("t1", replicas, replicas, replicas[0]) for key, replicas in placed.items()
    }
    disks = {}
    for broker in BROKERS:
        sizes = {key: size for key, replicas in placed.items() if broker in replicas}
        disks[broker] = Disks(TB, TB - sum(sizes.values()), sizes)
    seen = Observation(states, frozenset(BROKERS), **more)
    return ClusterReading(seen, disks, rates or {})


def skewed(topic: str = "orders", count: int = 12) -> ClusterReading:
    """Everything is on broker 1."""
    return reading({(topic, number): (1,) for number in range(count)})


def loads(**known: float | None) -> tuple[BrokerLoad, ...]:
    values = {broker: known.get(f"b{broker}", 0.1) for broker in BROKERS}
    return tuple(
        BrokerLoad(
            PhysicalClusterId(PHYSICAL),
            BrokerId(broker),
            1,
            0,
            load=load,
            missing=() if load is not None else ("agent",),
        )
        for broker, load in values.items()
    )


def make(api: Api, **body: Any) -> Any:
    return api("POST", "/plans", {"physical_cluster": PHYSICAL, **body})


def made(api: Api, **body: Any) -> dict[str, Any]:
    response = make(api, **body)
    assert response.status_code == 201, response.text
    plan: dict[str, Any] = response.json()
    return plan


def moves(api: Api, plan: dict[str, Any]) -> list[dict[str, Any]]:
    assert api.plane.reading is not None
    api.plane.seen = api.plane.reading.seen
    rows: list[dict[str, Any]] = api("GET", f"/plans/{plan['id']}/moves").json()["items"]
    return rows


def test_a_plan_is_proposed_with_its_reasons_and_the_goals_that_need_metrics_skipped(api: Api) -> None:
    api.plane.reading = skewed()

    plan = made(api)

    assert (plan["state"], plan["purpose"], plan["actor"]) == ("proposed", "balance", "operator/root")
    assert set(plan["goals_skipped"]) == {"ingress", "egress", "load", "leader-ingress"}
    assert plan["goals_run"] == ["disk", "leaders", "replicas", "topic-spread"]
    rows = moves(api, plan)
    assert len(rows) == plan["moves"] > 0
    assert all(row["before"] == [1] and row["after"] != [1] for row in rows)
    assert rows[0]["goal"] == "disk"
    assert rows[0]["reason"].startswith("move from broker 1 to broker ")
    assert rows[0]["carried_after"] < rows[0]["carried_before"]


def test_all_goals_run_once_load_and_traffic_of_every_broker_are_known(api: Api) -> None:
    placed = {("orders", number): (1,) for number in range(12)} | {("orders", 12): (4,)}
    rates = {broker: {"orders": (12e6, 0.0, 1.0)} if broker == 1 else {} for broker in BROKERS}
    api.plane.reading = reading(placed, rates=rates)
    api.plane.broker_loads = {PHYSICAL: loads(b1=0.9)}
    assert made(api)["goals_skipped"] == []

    api.plane.broker_loads = {PHYSICAL: loads(b1=0.9, b4=None)}
    assert "load" in made(api)["goals_skipped"]

    api.plane.broker_loads = {PHYSICAL: loads(b1=0.9)}
    api.plane.reading = reading(placed, rates={1: rates[1]})
    assert "ingress" in made(api)["goals_skipped"]


def test_a_tenants_partitions_stay_in_its_cell(api: Api) -> None:
    tenant = api.plane.memory.cluster("shop")
    inside = (1, 2, 3) if tenant.cell == "cell-1" else (4, 5, 6)
    placed = {(f"{tenant.id}_orders", number): (inside[0],) for number in range(12)}
    api.plane.reading = reading(placed)

    rows = moves(api, made(api))

    assert {row["after"][0] for row in rows} == set(inside[1:])


def test_a_tenant_that_moves_and_a_partition_that_is_reassigned_stay(api: Api) -> None:
    tenant = api.plane.memory.cluster("shop")
    api.plane.reading = skewed(f"{tenant.id}_orders")
    moving = replace(tenant, version=tenant.version + 1, state=ClusterState.MOVING, moving_from="cell-2")
    api.plane.registry.accept([Put(moving)])
    assert made(api)["moves"] == 0

    known = skewed()
    under_way = frozenset(known.seen.partitions)
    api.plane.reading = replace(known, seen=replace(known.seen, under_way=under_way))
    assert made(api)["moves"] == 0


def test_excluded_topics_and_tenants_stay(api: Api) -> None:
    tenant = api.plane.memory.cluster("shop")
    api.plane.reading = skewed(f"{tenant.id}_orders")

    assert made(api)["moves"] > 0
    assert made(api, exclude_topics=[f"{tenant.id}_orders"])["moves"] == 0
    assert made(api, exclude_tenants=["shop"])["moves"] == 0
    assert made(api, exclude_tenants=[tenant.id])["moves"] == 0
    assert code(make(api, exclude_tenants=["nobody"]), 404) == "PEN-5001"
    assert code(make(api, exclude_topics=["orderz"]), 422) == "PEN-5430"


def test_moves_and_bytes_are_bounded(api: Api) -> None:
    api.plane.reading = skewed()

    assert made(api, moves_max=2)["moves"] == 2
    bounded = made(api, bytes_max=3 * GB)
    assert 0 < bounded["bytes"] <= 3 * GB
    assert bounded["partial"]


def test_only_the_requested_goals_run(api: Api) -> None:
    api.plane.reading = skewed()

    plan = made(api, goals=["leaders"])

    assert plan["goals_run"] == ["leaders"]
    assert {row["goal"] for row in moves(api, plan)} <= {"leaders"}


def test_a_broker_that_does_not_report_its_disks_or_may_not_receive_is_given_nothing(api: Api) -> None:
    known = skewed()
    api.plane.reading = replace(known, disks={b: d for b, d in known.disks.items() if b != 2})
    context = replace(api.plane.memory.context(), actor="operator/root")
    api.plane.memory.accept(set_status(api.plane.registry, context, PHYSICAL, 3, BrokerStatus.CORDONED, ""))

    receivers = {row["after"][0] for row in moves(api, made(api))}

    assert receivers
    assert receivers.isdisjoint({2, 3})


def test_a_broker_is_relieved_emptied_or_demoted_by_name(api: Api) -> None:
    placed = {("orders", number): (1 + number % 3, 4 + number % 3) for number in range(36)}
    api.plane.reading = reading(placed)

    emptied = moves(api, made(api, purpose="empty", broker=2))
    assert len(emptied) == 12
    assert all(2 in row["before"] and 2 not in row["after"] for row in emptied)

    demoted = moves(api, made(api, purpose="demote", broker=2))
    assert len(demoted) == 12
    assert all(row["before"][0] == 2 != row["after"][0] and row["bytes"] == 0 for row in demoted)

    api.plane.reading = skewed()
    assert {row["before"][0] for row in moves(api, made(api, purpose="relieve", broker=1))} == {1}
    assert made(api, purpose="relieve", broker=2)["moves"] == 0
    assert made(api, cell="cell-2")["moves"] == 0


def test_leadership_does_not_return_to_a_broker_that_is_still_demoted(api: Api) -> None:
    api.plane.reading = reading({("orders", 0): (2, 1)})
    demotion = made(api, purpose="demote", broker=2)
    document = api.plane.plans.need(demotion["id"])
    api.plane.plans.add(replace(document, header=replace(document.header, state=PlanState.DONE)))
    api.plane.reading = reading({("orders", 0): (1, 2)})
    assert made(api, purpose="restore", broker=2)["moves"] == 1

    context = replace(api.plane.memory.context(), actor="health")
    api.plane.memory.accept(set_status(api.plane.registry, context, PHYSICAL, 2, BrokerStatus.DEMOTED, ""))
    assert made(api, purpose="restore", broker=2)["moves"] == 0


def test_what_cannot_be_reached_is_reported(api: Api) -> None:
    known = skewed()
    disks = {
        broker: Disks(13 * GB, 1 * GB if broker == 1 else 13 * GB, d.sizes)
        for broker, d in known.disks.items()
    }
    api.plane.reading = replace(known, disks={1: disks[1]})  # no other broker may receive

    plan = made(api)

    assert plan["moves"] == 0
    assert plan["unmet"][0]["broker"] == 1
    assert plan["unmet"][0]["goal"] == "disk"
    assert plan["unmet"][0]["refused"]


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ({"goals": ["speed"]}, 422, "PEN-5427"),
        ({"purpose": "empty", "broker": 99}, 404, "PEN-5410"),
        ({"cell": "cell-9"}, 404, "PEN-5428"),
        ({"physical_cluster": "pkc-999999"}, 404, "PEN-5001"),
        ({"purpose": "relieve"}, 422, "PEN-5013"),
        ({"purpose": "restore"}, 422, "PEN-5013"),
        ({"broker": 1}, 422, "PEN-5013"),
        ({"moves_max": 0}, 422, "PEN-5013"),
    ],
)
def test_requests_that_name_nothing_known_are_refused(
    api: Api, body: dict[str, Any], status: int, expected: str
) -> None:
    api.plane.reading = skewed()

    assert code(make(api, **body), status) == expected
    assert not api.plane.plans.documents.headers


def test_on_an_adopted_cluster_only_topics_of_the_platform_and_its_tenants_move(api: Api) -> None:
    adopted = replace(physical(2), version=2, provider="adopted")
    api.plane.registry.accept([Put(adopted)])
    tenant = api.plane.memory.cluster("shop")
    first = 1 if tenant.cell == "cell-1" else 4
    others = {("payments", number): (first,) for number in range(6)}
    own = {(f"{tenant.id}_orders", number): (first,) for number in range(6)}
    api.plane.reading = reading({**others, **own})

    assert {row["topic"] for row in moves(api, made(api))} == {f"{tenant.id}_orders"}

    lacking = MissingCapability("reassignments", "the user may not alter the cluster", "grant it")
    api.plane.registry.accept([Put(replace(adopted, version=3, missing=(lacking,)))])
    assert make(api).json()["code"] == "PEN-2022"


def test_nothing_is_planned_for_a_cluster_of_which_nothing_is_known(api: Api) -> None:
    assert code(make(api), 503) == "PEN-5429"

    api.plane.reading = skewed()
    empty = replace(physical(2), version=2, brokers=())
    api.plane.registry.accept([Put(empty)])
    assert code(make(api), 503) == "PEN-5429"


def test_only_an_admin_of_the_active_control_plane_makes_plans(api: Api) -> None:
    api.plane.reading = skewed()
    api.plane.add_token("viewer", OperatorRole.VIEWER, "see")
    api.secret = "see"
    assert make(api).status_code == 403

    api.secret = "root-secret"
    api.plane.role = Role.STANDBY
    assert make(api).status_code == 503
