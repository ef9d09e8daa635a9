"""Automatic balancing: rounds over an in-memory control plane."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import structlog.testing

from penstock.balance.executing import Health
from penstock.balance.plan_document import PlanState
from penstock.balance.rounds import PACE, BalancerMode, Pace
from penstock.control.health.interventions import open_intervention
from penstock.control.load import balancing
from penstock.control.load.balancing import (
    ACTOR,
    BalanceCounts,
    Balancing,
    mode_of,
    recent_plans,
    set_balance_mode,
)
from penstock.control.load.planning import PlanRequest
from penstock.control.registry import Put
from penstock.model.entities import (
    Actor,
    ClusterState,
    ConditionKind,
    OpenIntervention,
    Operation,
    OperatorRole,
    PhysicalCluster,
)
from penstock.model.ids import BrokerId, Zone
from tests.control.in_memory_control import PHYSICAL
from tests.control.in_memory_plane import InMemoryPlane, code
from tests.control.test_planning import GB, loads, reading, skewed
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from penstock.balance.plan_document import PlanDocument, PlanHeader
    from penstock.control.load.planning import ClusterReading
    from tests.control.conftest import PlaneHarness
    from tests.control.in_memory_plane import Api

IMBALANCED, BLOCKED, BALANCING = (
    ConditionKind.IMBALANCED,
    ConditionKind.BALANCE_BLOCKED,
    ConditionKind.BALANCING,
)
START = time.time()
DUE = START + PACE.violated_seconds


def a_plane(mode: BalancerMode, cluster: ClusterReading | None = None) -> InMemoryPlane:
    plane = InMemoryPlane(reading=cluster or skewed())
    plane.memory.accept(set_balance_mode(plane.registry, plane.memory.context(), PHYSICAL, mode))
    return plane


async def rounds(plane: InMemoryPlane, *times: float) -> None:
    for now in times:
        await plane.balancing.run_round(PHYSICAL, now)


def detail(plane: InMemoryPlane, kind: ConditionKind) -> str:
    condition = plane.registry.need(PhysicalCluster, PHYSICAL).condition(kind)
    return "" if condition is None else condition.detail


def plans(plane: InMemoryPlane) -> list[PlanHeader]:
    return list(plane.plans.documents.headers.values())


def operations(plane: InMemoryPlane, action: str) -> list[str]:
    return [each.subject for each in plane.registry.all(Operation) if each.action == action]


def put(plane: InMemoryPlane, plan: str, state: PlanState, *, at: float = DUE, done: int = 0) -> None:
    document: PlanDocument = plane.plans.need(plan)
    progress = replace(document.header.progress, done=done, bytes_done=done * GB)
    header = replace(document.header, state=state, changed_ms=int(at * 1000), progress=progress)
    plane.plans.add(replace(document, header=header))


async def test_off_looks_at_nothing_and_reports_nothing() -> None:
    plane = a_plane(BalancerMode.OFF)
    plane.reading = None  # it would fail

    await rounds(plane, START, DUE)

    assert not plans(plane)
    assert plane.registry.need(PhysicalCluster, PHYSICAL).conditions == ()


async def test_advice_is_one_plan_that_waits() -> None:
    plane = a_plane(BalancerMode.ADVISE)

    await rounds(plane, START, START + 60)
    assert (plans(plane), detail(plane, IMBALANCED)) == ([], "")
    await rounds(plane, DUE, DUE + 60, DUE + 120)

    (advice,) = plans(plane)
    assert (advice.actor, advice.state, advice.moves > 0) == (ACTOR, PlanState.PROPOSED, True)
    assert detail(plane, IMBALANCED) == "disk: more than 1.2 of its fair share on broker 1"
    assert not operations(plane, "plan.run")
    assert len(operations(plane, "physical.condition")) == 1  # what stays the same is not written again


async def test_advice_that_no_longer_fits_is_made_again() -> None:
    plane = a_plane(BalancerMode.ADVISE)
    await rounds(plane, START, DUE)
    (first,) = plans(plane)
    plane.reading = reading({("orders", number): (2,) for number in range(12)})

    await rounds(plane, DUE + 60)

    assert operations(plane, "plan.cancel") == [first.id]
    assert len(plans(plane)) == 2


async def test_auto_runs_the_plan_and_reports_it() -> None:
    plane = a_plane(BalancerMode.AUTO)

    await rounds(plane, START, DUE)

    (plan,) = plans(plane)
    assert operations(plane, "plan.run") == [plan.id]
    assert {each.actor for each in plane.registry.all(Operation) if each.action == "plan.run"} == {ACTOR}
    put(plane, plan.id, PlanState.RUNNING)
    await rounds(plane, DUE + 60)
    assert detail(plane, BALANCING) == plan.id
    assert len(plans(plane)) == 1


async def test_after_a_plan_loads_settle_and_what_moved_rests() -> None:
    plane = a_plane(BalancerMode.AUTO)
    await rounds(plane, START, DUE)
    (plan,) = plans(plane)
    put(plane, plan.id, PlanState.DONE, at=DUE + 10, done=plan.moves)

    await rounds(plane, DUE + 60)
    assert len(plans(plane)) == 1
    await rounds(plane, DUE + 10 + PACE.settle_seconds)

    moved = {(move.topic, move.partition) for move in plane.plans.need(plan.id).moves}
    (second,) = (each for each in plans(plane) if each.id != plan.id)
    assert moved.isdisjoint((m.topic, m.partition) for m in plane.plans.need(second.id).moves)


async def test_a_balanced_cluster_has_no_condition_left() -> None:
    plane = a_plane(BalancerMode.ADVISE)
    await rounds(plane, START, DUE)
    assert detail(plane, IMBALANCED)
    plane.reading = reading({("orders", number): (1 + number % 6,) for number in range(12)})

    await rounds(plane, DUE + 60)

    assert plane.registry.need(PhysicalCluster, PHYSICAL).conditions == ()


async def blocked_by(plane: InMemoryPlane) -> str:
    await rounds(plane, START, DUE)
    assert not operations(plane, "plan.run")
    assert detail(plane, IMBALANCED)
    return detail(plane, BLOCKED)


async def test_nothing_moves_while_a_broker_is_dead() -> None:
    known = skewed()
    plane = a_plane(
        BalancerMode.AUTO, replace(known, seen=replace(known.seen, alive=frozenset({1, 2, 3, 4, 6})))
    )
    assert await blocked_by(plane) == "broker 5 is not alive"


async def test_nothing_moves_while_a_broker_load_is_unknown() -> None:
    plane = a_plane(BalancerMode.AUTO)
    plane.broker_loads = {PHYSICAL: loads(b4=None)}
    assert await blocked_by(plane) == "no load of broker 4"


async def test_nothing_moves_while_a_partition_is_below_its_minimum_of_in_sync_replicas() -> None:
    plane = a_plane(BalancerMode.AUTO)
    plane.move_health = Health(under_min_isr=(("orders", 3),))
    assert await blocked_by(plane) == "orders-3 below the minimum of in-sync replicas"


async def test_nothing_moves_during_reassignments_and_moves_of_tenants() -> None:
    known = skewed()
    plane = a_plane(
        BalancerMode.AUTO, replace(known, seen=replace(known.seen, under_way=frozenset({("orders", 1)})))
    )
    assert await blocked_by(plane) == "reassignment of orders-1"

    plane = a_plane(BalancerMode.AUTO)
    tenant = plane.memory.cluster("shop")
    moving = replace(tenant, version=tenant.version + 1, state=ClusterState.MOVING, moving_from="cell-2")
    plane.registry.accept([Put(moving)])
    assert await blocked_by(plane) == f"tenant {tenant.id} moves to another cell"


async def test_nothing_moves_while_health_has_taken_a_broker() -> None:
    plane = a_plane(BalancerMode.AUTO)
    sick = OpenIntervention(Actor.HEALTH, "broker-4", "sick", 0, (BrokerId(4),), (Zone("a"),))
    plane.memory.accept(open_intervention(plane.registry, plane.memory.context(), PHYSICAL, sick))
    assert await blocked_by(plane) == "health has taken broker 4"


async def test_nothing_moves_while_a_restore_is_not_complete() -> None:
    async def restoring(cluster: str) -> str:
        assert cluster == PHYSICAL
        return "restore-7"

    plane = a_plane(BalancerMode.AUTO)
    plane.balancing = Balancing(plane, plane.read_health, lambda: True, restoring=restoring)
    assert await blocked_by(plane) == "restore restore-7 is running"


async def test_where_no_move_helps_the_cluster_is_blocked() -> None:
    known = skewed()
    plane = a_plane(BalancerMode.AUTO, replace(known, disks={1: known.disks[1]}))
    assert (await blocked_by(plane)).startswith("no move would help")


async def test_a_round_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = a_plane(BalancerMode.ADVISE)
    known, plane.reading = plane.reading, None  # not reached
    monkeypatch.setattr(balancing, "ROUND_SECONDS", 0.001)

    async def looked() -> bool:
        return plane.plan_maker.seconds != {}

    rounds_ = asyncio.create_task(
        Balancing(plane, plane.read_health, lambda: True, Pace(violated_seconds=0)).run()
    )
    try:
        with structlog.testing.capture_logs() as logs:

            async def failed() -> bool:
                return any(entry["event"] == "cluster not balanced" for entry in logs)

            await eventually(failed)
        plane.reading = known
        await eventually(looked)
    finally:
        rounds_.cancel()
        await asyncio.gather(rounds_, return_exceptions=True)

    assert [each.state for each in plans(plane)] == [PlanState.PROPOSED]


async def test_recent_plans_leave_out_those_that_never_ran() -> None:
    plane = a_plane(BalancerMode.ADVISE)
    await rounds(plane, START, DUE)
    (plan,) = plans(plane)
    assert recent_plans(plane.plans.documents, PHYSICAL, DUE) == ()
    put(plane, plan.id, PlanState.CANCELLED)
    assert recent_plans(plane.plans.documents, PHYSICAL, DUE) == ()
    put(plane, plan.id, PlanState.DONE, done=2)
    (recent,) = recent_plans(plane.plans.documents, PHYSICAL, DUE + 1)
    assert (recent.moves, recent.bytes) == (2, 2 * GB)
    assert recent_plans(plane.plans.documents, PHYSICAL, DUE + 25 * 3600) == ()
    assert recent_plans(plane.plans.documents, "pkc-999999", DUE) == ()


async def test_only_progress_since_the_start_is_counted_and_never_twice() -> None:
    plane = a_plane(BalancerMode.ADVISE)
    await rounds(plane, START, DUE)
    (plan,) = plans(plane)
    counts = BalanceCounts()
    put(plane, plan.id, PlanState.RUNNING, done=2)
    counts.update(plans(plane))
    assert counts.moves[PHYSICAL] == 0
    put(plane, plan.id, PlanState.RUNNING, done=5)
    counts.update(plans(plane))
    counts.update(plans(plane))
    assert (counts.moves[PHYSICAL], counts.bytes[PHYSICAL]) == (3, 3 * GB)
    counts.update(())  # it has expired
    assert counts.moves[PHYSICAL] == 3


@pytest.mark.parametrize("mode", BalancerMode)
def test_the_mode_is_set_through_the_api(api: Api, mode: BalancerMode) -> None:
    response = api("PUT", f"/physical-clusters/{PHYSICAL}/balance", {"mode": str(mode)})

    assert response.status_code == 200, response.text
    assert api("GET", f"/physical-clusters/{PHYSICAL}").json()["balance_mode"] == mode
    assert mode_of(api.plane.registry.need(PhysicalCluster, PHYSICAL)) is mode


def test_an_unknown_mode_or_cluster_and_a_viewer_are_refused(api: Api) -> None:
    path = f"/physical-clusters/{PHYSICAL}/balance"
    assert code(api("PUT", path, {"mode": "fast"}), 422) == "PEN-5013"
    assert code(api("PUT", "/physical-clusters/pkc-999999/balance", {"mode": "auto"}), 404) == "PEN-5001"
    api.plane.add_token("viewer", OperatorRole.VIEWER, "see")
    api.secret = "see"
    assert api("PUT", path, {"mode": "auto"}).status_code == 403


async def test_metrics_show_plans_and_what_blocks(api: Api) -> None:
    plane = api.plane
    plane.reading = skewed()
    plane.memory.accept(
        set_balance_mode(plane.registry, plane.memory.context(), PHYSICAL, BalancerMode.ADVISE)
    )
    await rounds(plane, START, DUE)

    page = api.client.get("/metrics").text

    assert f'penstock_balance_blocked{{cluster="{PHYSICAL}"}} 0.0' in page
    assert f'penstock_balance_moves_total{{cluster="{PHYSICAL}"}} 0.0' in page
    assert f'penstock_balance_bytes_total{{cluster="{PHYSICAL}"}} 0.0' in page
    assert f'penstock_balance_under_way{{cluster="{PHYSICAL}"}} 0.0' in page
    assert f'penstock_balance_plan_seconds{{cluster="{PHYSICAL}"}}' in page


@pytest.mark.kafka
async def test_a_running_control_plane_looks_at_its_clusters_and_plans(harness: PlaneHarness) -> None:
    plane = harness.plane
    physical = next(each for each in plane.registry.all(PhysicalCluster) if plane.clusters.has(each.id))
    await harness.decide(
        lambda r, c: set_balance_mode(r, c, physical.id, BalancerMode.ADVISE), PhysicalCluster
    )

    await plane.balancing.run_round(physical.id, time.time())
    proposed = await plane.plan_maker.propose(PlanRequest(physical.id), "test")

    assert plane.plans.need(proposed.id).header.state is PlanState.PROPOSED
    assert {"disk", "replicas"} <= set(proposed.header.goals_run)
    assert mode_of(plane.registry.need(PhysicalCluster, physical.id)) is BalancerMode.ADVISE
    await harness.decide(lambda r, c: set_balance_mode(r, c, physical.id, BalancerMode.OFF), PhysicalCluster)
