"""The routes for plans, over an in-memory control plane."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from starlette.testclient import TestClient

from penstock.balance.executing import Observation, PartitionState
from penstock.balance.plan_document import Origin, PlanDocument, PlannedMove, PlanState, new_document
from penstock.control.api.app import make_api
from penstock.model.entities import Operation, OperatorRole
from tests.control.in_memory_plane import Api, InMemoryPlane, code

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAN = "plan-7hq2mz"


@pytest.fixture
def api() -> Iterator[Api]:
    plane = InMemoryPlane()
    with TestClient(make_api(plane), base_url="http://control") as client:
        yield Api(plane, client)


def document(count: int = 3, state: PlanState = PlanState.PROPOSED) -> PlanDocument:
    moves = [
        PlannedMove("orders", "t1", n, (1, 2), (3, 2), "disk", f"move {n} for disk", 10) for n in range(count)
    ]
    made = new_document(moves, Origin(PLAN, "pkc-000001", 1_000, "operator/root", "balance"))
    return replace(made, header=replace(made.header, state=state))


def cluster(count: int = 3, replicas: tuple[int, ...] = (1, 2)) -> Observation:
    state = PartitionState("t1", replicas, replicas, replicas[0])
    return Observation({("orders", n): state for n in range(count)}, frozenset({1, 2, 3}))


def test_plans_are_listed_and_shown(api: Api) -> None:
    api.plane.plans.add(document())

    assert [each["id"] for each in api("GET", "/plans").json()["items"]] == [PLAN]
    shown = api("GET", f"/plans/{PLAN}").json()
    assert (shown["state"], shown["moves"], shown["bytes"]) == ("proposed", 3, 30)


def test_an_unknown_plan_is_not_found(api: Api) -> None:
    assert code(api("GET", "/plans/plan-000000"), 404) == "PEN-5420"
    assert code(api("POST", "/plans/plan-000000/run"), 404) == "PEN-5420"


def test_each_move_has_its_reason_and_its_state_on_the_cluster(api: Api) -> None:
    made = document(state=PlanState.RUNNING)
    api.plane.plans.add(replace(made, header=made.header.with_dropped({2: "broker 3 is down"})))
    partitions = {**cluster().partitions, ("orders", 0): PartitionState("t1", (3, 2), (3, 2), 3)}
    api.plane.seen = replace(cluster(), partitions=partitions)

    moves = api("GET", f"/plans/{PLAN}/moves").json()["items"]

    assert [(m["state"], m["detail"]) for m in moves] == [
        ("done", ""),
        ("waiting", ""),
        ("dropped", "broker 3 is down"),
    ]
    assert moves[1]["reason"] == "move 1 for disk"
    assert (moves[1]["before"], moves[1]["after"]) == ([1, 2], [3, 2])


def test_moves_are_paged(api: Api) -> None:
    api.plane.plans.add(document(count=5))
    api.plane.seen = cluster(5)

    first = api("GET", f"/plans/{PLAN}/moves?limit=3").json()
    second = api("GET", f"/plans/{PLAN}/moves?limit=3&cursor={first['cursor']}").json()

    assert [m["number"] for m in first["items"] + second["items"]] == [0, 1, 2, 3, 4]
    assert second["cursor"] is None


def test_a_plan_is_run_as_an_operation_with_its_actor(api: Api) -> None:
    api.plane.plans.add(document())
    api.plane.seen = cluster()

    response = api("POST", f"/plans/{PLAN}/run", {"take_over": True})

    assert response.status_code == 202
    operation = api.plane.registry.need(Operation, response.json()["operation"]["id"])
    assert (operation.action, operation.subject) == ("plan.run", PLAN)
    assert operation.arguments == {"take_over": True}
    assert operation.actor == "operator/root"


def test_a_plan_is_not_run_twice_unless_the_request_is_the_same(api: Api) -> None:
    api.plane.plans.add(document())
    api.plane.seen = cluster()
    first = api("POST", f"/plans/{PLAN}/run", idempotency_key="k")
    api.plane.plans.add(document(state=PlanState.RUNNING))

    assert code(api("POST", f"/plans/{PLAN}/run"), 422) == "PEN-5423"
    again = api("POST", f"/plans/{PLAN}/run", idempotency_key="k")
    assert again.json()["operation"]["id"] == first.json()["operation"]["id"]


def test_a_stale_plan_and_one_of_another_cluster_are_refused(api: Api) -> None:
    api.plane.plans.add(document())
    api.plane.seen = cluster(replicas=(2, 1))

    stale = api("POST", f"/plans/{PLAN}/run")
    assert code(stale, 422) == "PEN-5422"
    assert "orders-0 has replicas [2, 1], not [1, 2]" in stale.json()["detail"]
    assert code(api("POST", f"/plans/{PLAN}/run", {"cluster": "pkc-999999"}), 422) == "PEN-5421"
    assert not api.plane.registry.count(Operation)


def test_cancelling_and_pacing_need_a_plan_that_has_not_ended(api: Api) -> None:
    api.plane.plans.add(document(state=PlanState.DONE))

    assert code(api("POST", f"/plans/{PLAN}/cancel"), 422) == "PEN-5424"
    assert code(api("POST", f"/plans/{PLAN}/pace", {"rate": 2e6}), 422) == "PEN-5424"


def test_a_rate_below_one_megabyte_a_second_is_refused(api: Api) -> None:
    api.plane.plans.add(document(state=PlanState.RUNNING))

    assert code(api("POST", f"/plans/{PLAN}/pace", {"rate": 1000}), 422) == "PEN-5425"
    assert api("POST", f"/plans/{PLAN}/pace", {"rate": 2e6}).status_code == 202


def test_only_admins_change_plans(api: Api) -> None:
    api.plane.plans.add(document())
    api.plane.add_token("viewer", OperatorRole.VIEWER, "see")
    api.secret = "see"

    assert api("GET", f"/plans/{PLAN}").status_code == 200
    assert api("POST", f"/plans/{PLAN}/run").status_code == 403
    assert api("POST", f"/plans/{PLAN}/cancel").status_code == 403
