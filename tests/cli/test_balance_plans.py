"""`penstock balance`, against the API of a control plane in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.balance.executing import Observation, PartitionState
from penstock.balance.plan_document import Origin, PlanDocument, PlannedMove, PlanState, new_document
from penstock.model.entities import PhysicalCluster
from penstock.model.errors import Exit
from penstock.model.errors.balance import PlanUnfinished
from tests.control.in_memory_plane import ROOT, InMemoryPlane
from tests.control.test_planning import reading
from tests.harness.control_api import serve_control_api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.command import CommandResult

PLAN = "plan-7hq2mz"


@pytest.fixture
def plane(here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryPlane]:
    del here  # it clears the environment first
    with serve_control_api() as api:
        monkeypatch.setenv("PENSTOCK_URL", api.url)
        monkeypatch.setenv("PENSTOCK_TOKEN", ROOT)
        plane = api.new_plane()
        state = PartitionState("t1", (1, 2), (1, 2), 1)
        plane.seen = Observation({("orders", 0): state}, frozenset({1, 2, 3}))
        yield plane


def document(state: PlanState = PlanState.PROPOSED) -> PlanDocument:
    move = PlannedMove("orders", "t1", 0, (1, 2), (3, 2), "disk", "for disk", 10)
    made = new_document([move], Origin(PLAN, "pkc-000001", 1_000, "operator/root", "balance"))
    return replace(made, header=replace(made.header, state=state))


def test_a_plan_is_listed_and_explained(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
    plane.plans.add(document())

    assert json.loads(here("balance", "list", "-o", "json").out)[0]["id"] == PLAN
    explained = json.loads(here("balance", "explain", PLAN, "-o", "json").out)
    assert explained["move_list"][0]["reason"] == "for disk"


def test_a_plan_is_run_paced_and_cancelled(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
    plane.plans.add(document())

    assert here("balance", "run", PLAN, "--no-wait").code == Exit.FINE
    assert here("balance", "pace", PLAN, "20MB/s").code == Exit.FINE
    assert here("balance", "pace", PLAN, "20kB/s").code == Exit.USAGE
    assert here("balance", "cancel", PLAN, "--roll-back", "--no-wait").code == Exit.FINE
    assert here("balance", "run", "plan-000000").code == Exit.NOT_FOUND


def test_a_run_that_drops_moves_is_reported_as_unfinished(
    plane: InMemoryPlane, here: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.plans.add(document())
    ended = document(PlanState.DONE)
    decide = plane.decide

    async def decide_and_end(*arguments: object, **named: object) -> object:
        decided = await decide(*arguments, **named)  # type: ignore[arg-type] # passed on
        plane.plans.add(replace(ended, header=ended.header.with_dropped({0: "broker 3 is down"})))
        return decided

    monkeypatch.setattr(plane, "decide", decide_and_end)

    result = here("balance", "run", PLAN)

    assert result.code == PlanUnfinished.exit_code
    assert PlanUnfinished.code in result.err


def test_a_plan_is_made_and_printed_with_the_command_that_runs_it(
    plane: InMemoryPlane, here: Callable[..., CommandResult]
) -> None:
    placed: dict[tuple[str, int], tuple[int, ...]] = {("orders", number): (1,) for number in range(12)}
    plane.reading = reading(placed)
    plane.seen = plane.reading.seen

    result = here("balance", "plan", "home", "--moves-max", "2")

    assert result.code == Exit.FINE, result.err
    assert "move from broker 1 to broker" in " ".join(result.out.split())
    plan = next(iter(plane.plans.documents.headers))
    assert f"penstock balance run {plan}" in result.err
    assert "goals skipped: ingress, egress, load, leader-ingress" in result.err
    assert here("balance", "plan", "--relieve", "99").code == Exit.NOT_FOUND
    assert here("balance", "plan", "--exclude-topic", "orders", "-o", "json").code == Exit.FINE


def test_automatic_balancing_is_set_by_name(plane: InMemoryPlane, here: Callable[..., CommandResult]) -> None:
    assert here("balance", "set", "home", "advise").code == Exit.FINE
    (physical,) = plane.registry.all(PhysicalCluster)
    assert physical.balance_mode == "advise"
    assert f"{physical.id} (advise): balanced" in here("balance", "show").err
    assert here("balance", "set", "home", "fast").code == Exit.USAGE
    assert here("balance", "set", "elsewhere", "auto").code == Exit.NOT_FOUND
