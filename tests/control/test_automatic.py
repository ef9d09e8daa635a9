"""Automatic sizing: which advice becomes a growth or a shrinking, and what it waits for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.balance.advice import Advice, Verdict
from penstock.control.health.broker_states import set_status
from penstock.control.health.interventions import open_intervention
from penstock.control.registry import Put
from penstock.control.size import resizing
from penstock.control.size.automatic import (
    ACTOR,
    SHRINK_HISTORY_HOURS_MIN,
    History,
    Shrinking,
    Waiting,
    automatic_change,
    history_of,
    leaving_brokers,
)
from penstock.control.size.resizing import GrowRequest
from penstock.model.entities import (
    Actor,
    BrokerStatus,
    ConditionKind,
    OpenIntervention,
    Operation,
    OperationState,
    PhysicalCluster,
)
from penstock.model.errors.balance import ShrinkWithoutRoom
from penstock.model.events import LoadHour
from penstock.model.ids import BrokerId, PhysicalClusterId
from tests.control.in_memory_control import PHYSICAL, InMemoryControl, physical
from tests.control.test_sizing import CLUSTER, PATH, busy

if TYPE_CHECKING:
    from tests.control.in_memory_plane import Api

AUTO: dict[str, Any] = {"size_mode": "auto", "size_bounds": {"brokers_max": 12.0}}
LONG = SHRINK_HISTORY_HOURS_MIN
HOUR_MS = 3_600_000


def advice(brokers: int, target: int) -> Advice:
    verdict = Verdict.EXPAND if target >= brokers else Verdict.SHRINK
    return Advice(verdict, brokers, target, "the number", "what would change it")


def change(
    memory: InMemoryControl,
    target: int,
    *,
    history: History | None = None,
    brokers_max: int = 12,
    later_ms: int = 0,
) -> GrowRequest | Shrinking | Waiting | None:
    known = memory.registry.need(PhysicalCluster, PHYSICAL)
    brokers = len(known.brokers)
    return automatic_change(
        memory.registry,
        known,
        advice(brokers, target),
        history=history or History(brokers, LONG),
        brokers_max=brokers_max,
        now_ms=memory.now_ms + later_ms,
    )


def shrinking(*brokers: int) -> Shrinking:
    return Shrinking(tuple(BrokerId(broker) for broker in brokers))


def reason(outcome: object) -> str:
    assert isinstance(outcome, Waiting), outcome
    return outcome.reason


def test_advice_to_expand_becomes_a_growth_of_the_only_cell() -> None:
    assert change(InMemoryControl.with_cells(1, **AUTO), 6) == GrowRequest(3)


def test_a_cluster_of_several_cells_gets_whole_new_ones() -> None:
    memory = InMemoryControl.with_cells(2, brokers_each=6, **AUTO)

    assert change(memory, 15, brokers_max=18) == GrowRequest(6, new_cell=True)
    assert "a new cell has 6 brokers" in reason(change(memory, 15, brokers_max=15))


def test_advice_to_shrink_names_the_newest_brokers_as_many_in_every_zone() -> None:
    memory = InMemoryControl.with_cells(1, brokers_each=9, **AUTO)

    assert change(memory, 6) == shrinking(7, 8, 9)
    assert change(memory, 3) == shrinking(4, 5, 6, 7, 8, 9)


def test_the_mode_advise_and_a_size_that_fits_change_nothing() -> None:
    assert change(InMemoryControl.with_cells(1, size_bounds={"brokers_max": 12.0}), 6) is None
    assert change(InMemoryControl.with_cells(1, **AUTO), 3) is None


def test_growth_without_a_bound_is_not_automatic() -> None:
    memory = InMemoryControl.with_cells(1, size_mode="auto")

    assert "--brokers-max or --budget" in reason(change(memory, 6))


def test_a_cluster_shrinks_only_with_a_history_of_four_weeks() -> None:
    memory = InMemoryControl.with_cells(1, brokers_each=6, **AUTO)

    assert "26 days of load" in reason(change(memory, 3, history=History(6, LONG - 1)))
    assert change(memory, 3, history=History(6, LONG)) == shrinking(4, 5, 6)


@pytest.mark.parametrize("target", [3, 9])
def test_it_waits_for_the_load_of_the_present_size(target: int) -> None:
    memory = InMemoryControl.with_cells(1, brokers_each=6, **AUTO)

    assert "not known yet" in reason(change(memory, target, history=History(3, LONG)))


def test_an_old_hour_does_not_count_as_the_load_of_the_present_size() -> None:
    hour = LoadHour(PhysicalClusterId(PHYSICAL), 100, 3, 1.0, 1.0, 360)

    assert history_of({100: hour}, 101) == History(3, 1)
    assert history_of({100: hour}, 102) == History(0, 2)
    assert history_of({}, 102) == History(0, 0)


def test_it_waits_for_a_growth_that_is_under_way() -> None:
    memory = InMemoryControl.with_cells(1, **AUTO)
    memory.accept(resizing.grow(memory.registry, memory.context(), PHYSICAL, GrowRequest(3)))

    assert "fleet.grow is under way" in reason(change(memory, 6))


@pytest.mark.parametrize("actor", [Actor.ROLL, Actor.HEALTH, Actor.RESTORE, Actor.LINK])
def test_it_waits_for_every_other_intervention(actor: Actor) -> None:
    memory = InMemoryControl.with_cells(1, **AUTO)
    request = OpenIntervention(actor, "one", "a reason", memory.now_ms)
    memory.accept(open_intervention(memory.registry, memory.context(), PHYSICAL, request))

    assert reason(change(memory, 6)) == f"{actor} is at work (a reason)"


def test_it_waits_until_every_broker_is_normal() -> None:
    memory = InMemoryControl.with_cells(1, **AUTO)
    memory.accept(set_status(memory.registry, memory.context(), PHYSICAL, 2, BrokerStatus.DEMOTED, "slow"))

    assert reason(change(memory, 6)) == "broker 2 is demoted"


def test_brokers_that_run_elsewhere_are_left_to_their_owners() -> None:
    assert "run elsewhere" in reason(change(InMemoryControl.with_cells(1, adopted="east", **AUTO), 6))


def test_after_a_failure_it_waits_a_day_and_an_operator_need_not() -> None:
    memory = InMemoryControl.with_cells(1, **AUTO)
    decided = memory.accept(resizing.grow(memory.registry, memory.context(), PHYSICAL, GrowRequest(3)))
    failed = replace(
        decided.operation.changed(memory.now_ms, state=OperationState.FAILED, error="no disk"), actor=ACTOR
    )
    memory.registry.accept([Put(failed)])

    assert "its last change failed: no disk" in reason(change(memory, 6))
    assert change(memory, 6, later_ms=24 * HOUR_MS + 1) == GrowRequest(3)


def test_a_cell_with_tenants_keeps_a_broker_in_every_zone() -> None:
    two = physical(2)

    assert leaving_brokers(two, 3, {"cell-1", "cell-2"}) == ()
    assert leaving_brokers(two, 3, {"cell-1"}) == (4, 5, 6)
    assert leaving_brokers(two, 3, {"cell-2"}) == (1, 2, 3)
    assert leaving_brokers(two, 6, set()) == ()
    assert leaving_brokers(physical(2, 6), 3, {"cell-1", "cell-2"}) == (10, 11, 12)


def test_a_cell_that_lacks_a_zone_loses_no_broker() -> None:
    uneven = replace(physical(1, 6), brokers=physical(1, 6).brokers[:4])
    cells = tuple(replace(cell, brokers=cell.brokers[:4]) for cell in uneven.cells)

    assert leaving_brokers(replace(uneven, cells=cells), 3, {"cell-1"}) == ()


# Rounds


@dataclass
class RecordedResizer:
    """What a round asks for."""

    grown: list[tuple[GrowRequest, str]] = field(default_factory=list)
    shrunk: list[tuple[tuple[int, ...], str]] = field(default_factory=list)
    refusal: Exception | None = None

    async def grow(self, cluster: str, requested: GrowRequest, *, actor: str) -> None:
        self.grown.append((requested, actor))

    async def shrink(self, cluster: str, brokers: tuple[int, ...], *, actor: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.shrunk.append((brokers, actor))


@pytest.fixture
def resizer(api: Api, monkeypatch: pytest.MonkeyPatch) -> RecordedResizer:
    recorded = RecordedResizer()
    monkeypatch.setattr(api.plane, "resizer", recorded)
    return recorded


def condition(api: Api) -> str:
    known = api.plane.registry.need(PhysicalCluster, CLUSTER).condition(ConditionKind.SIZE_ADVISED)
    return "" if known is None else known.detail


def test_a_round_grows_a_cluster_within_its_bounds(api: Api, resizer: RecordedResizer) -> None:
    busy(api.plane, 6 * 0.9)
    api("PUT", f"{PATH}/sizing", {"mode": "auto", "brokers_max": 12})

    asyncio.run(api.plane.sizing.run_round(CLUSTER))

    (request, actor) = resizer.grown[0]
    assert (request.new_cell, actor) == (True, "sizing")
    assert request.brokers % 3 == 0
    assert 6 + request.brokers <= 12
    assert condition(api) == f"expand by {request.brokers} brokers"


def test_a_round_shrinks_a_cluster_and_reports_a_refusal(api: Api, resizer: RecordedResizer) -> None:
    busy(api.plane, 0.1, hours=29 * 24)
    api("PUT", f"{PATH}/sizing", {"mode": "auto", "brokers_min": 3, "brokers_max": 12})

    asyncio.run(api.plane.sizing.run_round(CLUSTER))
    resizer.refusal = ShrinkWithoutRoom(brokers="4, 5, 6", reasons="no disk")
    asyncio.run(api.plane.sizing.run_round(CLUSTER))

    assert resizer.shrunk == [((4, 5, 6), "sizing")]
    assert condition(api).startswith("shrink by 3 brokers; not done by itself: ")
    assert "no disk" in condition(api)


def test_a_round_without_a_provisioner_reports_that(api: Api) -> None:
    busy(api.plane, 6 * 0.9)
    api("PUT", f"{PATH}/sizing", {"mode": "auto", "brokers_max": 12})

    asyncio.run(api.plane.sizing.run_round(CLUSTER))

    assert [one for one in api.plane.registry.all(Operation) if one.action == resizing.GROW] == []
    assert "not done by itself: " in condition(api)
