"""Growing and shrinking a physical cluster: requests, refusals, and what they change in the registry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.balance.plan_document import PlanHeader, PlanProgress, PlanState
from penstock.control import operations
from penstock.control.health.broker_states import set_status, state_of
from penstock.control.load import planning
from penstock.control.physical import local
from penstock.control.physical.cluster_access import BrokerSelection, Clusters, ProvidedCluster
from penstock.control.registration import registration
from penstock.control.registry import Put
from penstock.control.size import resize_steps, resizing
from penstock.control.size.resize_steps import ResizeSteps, _progress, carries_share, holdings
from penstock.control.size.resizer import Resizer
from penstock.control.size.resizing import GrowRequest
from penstock.control.step_outcome import Pending
from penstock.fleet.credentials.passwords import PlatformKey
from penstock.kafka.admin import brokers
from penstock.kafka.admin.brokers import Description
from penstock.model.entities import (
    BrokerEndpoint,
    BrokerStatus,
    CellMembers,
    ClusterState,
    MissingCapability,
    Operation,
    OperationState,
    PhysicalCluster,
)
from penstock.model.errors.balance import (
    BrokerNotEmpty,
    BrokerNotStarted,
    CellUnknown,
    GrowthImpossible,
    GrowthUneven,
    ResizePlanCancelled,
    ResizeUnderWay,
    ShrinkOfZone,
)
from penstock.model.errors.control import RequestInvalid, StateConflict
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone
from tests.control.in_memory_control import PHYSICAL, InMemoryControl, physical
from tests.control.test_planning import BROKERS, GB, reading

if TYPE_CHECKING:
    from penstock.balance.executing import Observation
    from tests.control.in_memory_plane import Api

NEW = [BrokerEndpoint(BrokerId(n), Zone("abc"[n % 3 - 1]), "127.0.0.1", 9000 + n) for n in (4, 5, 6)]


def grow(memory: InMemoryControl, request: GrowRequest) -> Operation:
    return memory.accept(resizing.grow(memory.registry, memory.context(), PHYSICAL, request)).operation


def shrink(memory: InMemoryControl, *brokers: int) -> Operation:
    return memory.accept(resizing.shrink(memory.registry, memory.context(), PHYSICAL, brokers)).operation


def started(memory: InMemoryControl, operation: Operation, *endpoints: BrokerEndpoint) -> PhysicalCluster:
    memory.registry.accept(resizing.grown(memory.registry, operation, endpoints or NEW, "new:1", 5_000))
    return memory.registry.need(PhysicalCluster, PHYSICAL)


def claims(memory: InMemoryControl, broker: int) -> list[str]:
    return [str(status) for status in state_of(memory.registry, PHYSICAL, broker).statuses]


# Growing


def test_a_growth_adds_as_many_brokers_in_every_zone_to_the_only_cell() -> None:
    memory = InMemoryControl.with_cells(1)

    operation = grow(memory, GrowRequest(brokers=3))
    after = started(memory, operation)

    assert resizing.brokers_of(operation) == {4: "a", 5: "b", 6: "c"}
    assert after.cells == (CellMembers("cell-1", tuple(map(BrokerId, range(1, 7)))),)
    assert [broker.id for broker in after.brokers] == [1, 2, 3, 4, 5, 6]
    assert after.bootstrap == "new:1"
    assert [claims(memory, broker) for broker in (3, 4, 6)] == [["normal"], ["joining"], ["joining"]]


def test_filled_brokers_are_normal_and_claims_of_others_stay() -> None:
    memory = InMemoryControl.with_cells(1)
    operation = grow(memory, GrowRequest(brokers=3))
    started(memory, operation)
    cordon = set_status(memory.registry, memory.context(), PHYSICAL, 5, BrokerStatus.CORDONED, "")
    memory.accept(cordon)

    memory.registry.accept(resizing.filled(memory.registry, operation, 6_000))

    assert [claims(memory, broker) for broker in (4, 5)] == [["normal"], ["cordoned"]]


def test_one_of_several_cells_grows_or_new_cells_are_formed() -> None:
    memory = InMemoryControl.with_cells(2)
    more = [replace(broker, id=BrokerId(broker.id + 3)) for broker in NEW]

    named = grow(memory, GrowRequest(3, cell="cell-2"))
    grown = started(memory, named, *more)
    other = InMemoryControl.with_cells(2)
    formed = started(other, grow(other, GrowRequest(new_cell=True)), *more)

    assert [len(cell.brokers) for cell in grown.cells] == [3, 6]
    assert [(cell.id, len(cell.brokers)) for cell in formed.cells] == [
        ("cell-1", 3), ("cell-2", 3), ("cell-3", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cells", "request_", "error"),
    [
        (1, GrowRequest(4), GrowthUneven),
        (1, GrowRequest(3, cell="cell-9"), CellUnknown),
        (2, GrowRequest(4), RequestInvalid),
    ],
)
def test_a_growth_that_does_not_fit_the_zones_or_the_cells_is_refused(
    cells: int, request_: GrowRequest, error: type[Exception]
) -> None:
    memory = InMemoryControl.with_cells(cells)

    with pytest.raises(error):
        grow(memory, request_)

    assert not memory.registry.running()


def test_one_growth_or_shrinking_at_a_time() -> None:
    memory = InMemoryControl.with_cells(2)
    first = grow(memory, GrowRequest(3, cell="cell-1"))

    with pytest.raises(ResizeUnderWay, match=first.id):
        grow(memory, GrowRequest(3, cell="cell-1"))
    with pytest.raises(ResizeUnderWay, match=r"fleet\.grow"):
        shrink(memory, 4)


def test_a_cluster_that_is_not_ready_is_left_alone() -> None:
    memory = InMemoryControl.with_cells(1, state=ClusterState.PROVISIONING)

    with pytest.raises(StateConflict):
        grow(memory, GrowRequest())


# Shrinking


def test_a_shrinking_marks_brokers_at_once_and_drops_them_in_the_end() -> None:
    memory = InMemoryControl.with_cells(2)

    operation = shrink(memory, 4, 5, 6)
    marked = [claims(memory, broker) for broker in (3, 4)]
    memory.registry.accept(resizing.shrunk(memory.registry, operation, "", 7_000))

    after = memory.registry.need(PhysicalCluster, PHYSICAL)
    assert marked == [["normal"], ["leaving"]]
    assert [cell.id for cell in after.cells] == ["cell-1"]
    assert [broker.id for broker in after.brokers] == [1, 2, 3]
    assert memory.registry.broker_states(PHYSICAL) == {}


@pytest.mark.parametrize("brokers", [(1,), (1, 4), (4, 5, 6)])
def test_a_zone_of_a_cell_with_tenants_keeps_a_broker(brokers: tuple[int, ...]) -> None:
    memory = InMemoryControl.with_cells(2)
    shop = memory.cluster("shop")
    assert shop.cell in ("cell-1", "cell-2")
    if shop.cell == "cell-1":
        brokers = tuple({1: 4, 4: 1, 5: 2, 6: 3}[broker] for broker in brokers)
        brokers = brokers if len(brokers) < 3 else (1, 2, 3)

    in_cell = {1, 2, 3} if shop.cell == "cell-1" else {4, 5, 6}
    if not in_cell & set(brokers):
        brokers = (min(in_cell),)
    with pytest.raises(ShrinkOfZone):
        shrink(memory, *brokers)

    assert memory.registry.broker_states(PHYSICAL) == {}


def test_a_shrinking_that_failed_early_gives_its_brokers_back() -> None:
    memory = InMemoryControl.with_cells(2)
    operation = shrink(memory, 6)
    early = replace(operation, steps_done=2, state=OperationState.FAILED)
    late = replace(early, steps_done=operations.STEPS["fleet.shrink"].index(operations.Step.UNREGISTER))

    follow_up = resizing.after_failure(early, 9_000)

    assert [change.entity.action for change in follow_up] == ["fleet.keep"]  # type: ignore[attr-defined]  # Put
    assert resizing.after_failure(late, 9_000) == ()
    assert resizing.after_failure(operation, 9_000) == ()
    memory.registry.accept(follow_up)
    memory.registry.accept(resizing.kept(memory.registry, operation, 9_001))
    assert claims(memory, 6) == ["normal"]


# Registration


def provided(*brokers: BrokerEndpoint, selection: BrokerSelection | None = None) -> ProvidedCluster:
    return ProvidedCluster(
        PhysicalClusterId(PHYSICAL), "home", "adopted" if selection else "local", "b:1",
        PlatformKey(b"k" * 32), brokers=brokers, selection=selection,
    )  # fmt: skip


def test_brokers_of_a_growth_are_registered_by_its_steps_only() -> None:
    memory = InMemoryControl.with_cells(1)
    before = memory.registry.need(PhysicalCluster, PHYSICAL)
    operation = grow(memory, GrowRequest(3))

    during = registration(memory.registry, provided(*before.brokers, *NEW), 2_000)
    for change in during:
        memory.registry.accept([change])
    kept = memory.registry.need(PhysicalCluster, PHYSICAL)
    after = started(memory, operation)

    assert [broker.id for broker in kept.brokers] == [1, 2, 3]
    assert [cell.id for cell in after.cells] == ["cell-1"]


def test_brokers_of_a_shrinking_stay_registered_until_its_steps_remove_them() -> None:
    memory = InMemoryControl.with_cells(2)
    before = memory.registry.need(PhysicalCluster, PHYSICAL)
    shrink(memory, 4, 5, 6)

    memory.registry.accept(registration(memory.registry, provided(*before.brokers[:3]), 2_000))

    kept = memory.registry.need(PhysicalCluster, PHYSICAL)
    assert (kept.brokers, kept.cells) == (before.brokers, before.cells)


def test_brokers_new_to_an_adopted_cluster_are_joining_and_can_be_filled() -> None:
    memory = InMemoryControl.with_cells(1, provider="adopted")
    before = memory.registry.need(PhysicalCluster, PHYSICAL)
    selection = BrokerSelection()
    with pytest.raises(GrowthImpossible):
        resizing.fill(memory.registry, memory.context(), PHYSICAL)

    changes = registration(memory.registry, provided(*before.brokers, *NEW, selection=selection), 2_000)
    memory.registry.accept(changes)
    filling = resizing.fill(memory.registry, memory.context(), PHYSICAL).operation

    assert [claims(memory, broker) for broker in (3, 4, 5, 6)] == [["normal"], *[["joining"]] * 3]
    assert (filling.action, [*resizing.brokers_of(filling)]) == ("fleet.fill", [4, 5, 6])
    assert len(memory.registry.need(PhysicalCluster, PHYSICAL).cells[0].brokers) == 6


# The API, with everything that is checked before anything changes


@dataclass
class Fleet:
    """A provisioner that only reports whether brokers can be added."""

    refusal: Exception | None = None

    def check_growth(self, cluster: PhysicalCluster) -> None:
        del cluster
        if self.refusal is not None:
            raise self.refusal


def post(api: Api, action: str, **body: Any) -> Any:
    return api("POST", f"/physical-clusters/{PHYSICAL}/{action}", body)


def code(response: Any) -> str:
    assert response.status_code >= 400, response.text
    return str(response.json()["code"])


def with_provisioner(api: Api, refusal: Exception | None = None) -> None:
    api.plane.completes = False
    api.plane.resizer = Resizer(api.plane, Fleet(refusal))  # type: ignore[arg-type]  # one call of it is used


def test_growing_through_the_api_starts_an_operation(api: Api) -> None:
    with_provisioner(api)

    response = post(api, "grow", brokers=3, cell="cell-1")

    assert response.status_code == 202, response.text
    assert response.json()["operation"]["action"] == "fleet.grow"
    assert code(post(api, "grow", brokers=3, cell="cell-1")) == "PEN-5440"


def test_refused_growth_names_its_reason(api: Api) -> None:
    assert code(post(api, "grow", brokers=3)) == "PEN-5015"
    with_provisioner(api, GrowthImpossible(cluster="home", reason="no", way_out="none"))
    assert code(post(api, "grow", brokers=3)) == "PEN-5441"
    with_provisioner(api)
    assert code(post(api, "grow", brokers=4, cell="cell-1")) == "PEN-5442"
    assert code(post(api, "grow", brokers=3, cell="cell-9")) == "PEN-5428"
    assert code(post(api, "grow", brokers=-1)) == "PEN-5013"


def spread(count: int = 12, size: int = GB) -> Any:
    """Three replicas of each partition, over all six brokers of one cell."""
    placed = {("orders", n): tuple(BROKERS[(n + i) % 6] for i in (0, 1, 2)) for n in range(count)}
    return reading(placed, size)


def one_cell(api: Api) -> None:
    api.plane.memory.registry.accept([Put(replace(physical(1, 6), version=2))])


def test_shrinking_through_the_api_starts_an_operation(api: Api) -> None:
    with_provisioner(api)
    one_cell(api)
    api.plane.reading = spread()

    response = post(api, "shrink", brokers=[4, 5, 6])

    assert response.status_code == 202, response.text
    registry = api.plane.registry
    assert [str(state_of(registry, PHYSICAL, b).statuses[0]) for b in (1, 4)] == ["normal", "leaving"]


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ([9], "PEN-5410"),  # unknown
        ([1, 4], "PEN-5443"),  # the last of its zone
        ([], "PEN-5013"),
    ],
)
def test_shrinking_by_the_wrong_brokers_is_refused(api: Api, brokers: list[int], expected: str) -> None:
    with_provisioner(api)
    one_cell(api)
    api.plane.reading = spread()

    assert code(post(api, "shrink", brokers=brokers)) == expected
    assert api.plane.registry.broker_states(PHYSICAL) == {}


def test_shrinking_below_the_replication_factor_is_refused(api: Api) -> None:
    with_provisioner(api)
    one_cell(api)
    api.plane.reading = reading({("wide", 0): (1, 2, 3, 4)})

    assert code(post(api, "shrink", brokers=[4, 5, 6])) == "PEN-5444"


def test_shrinking_without_room_on_disk_is_refused_with_the_number_of_brokers_missing(api: Api) -> None:
    with_provisioner(api)
    one_cell(api)
    api.plane.reading = spread(size=150 * GB)

    response = post(api, "shrink", brokers=[4, 5, 6])

    assert code(response) == "PEN-5445"
    assert "disk" in response.json()["detail"]
    assert api.plane.registry.broker_states(PHYSICAL) == {}


def test_shrinking_by_a_dead_broker_reports_how_to_empty_it(api: Api) -> None:
    with_provisioner(api)
    one_cell(api)
    known = spread()
    api.plane.reading = replace(known, seen=replace(known.seen, alive=frozenset({1, 2, 3, 4, 5})))

    response = post(api, "shrink", brokers=[6])

    assert code(response) == "PEN-5446"
    assert "balance plan --empty 6" in response.text


def test_a_cluster_that_allows_no_reassignments_is_neither_grown_nor_shrunk(api: Api) -> None:
    with_provisioner(api)
    missing = (MissingCapability("reassignments", "moves", "no right"),)
    api.plane.memory.registry.accept([Put(replace(physical(1, 6), version=2, missing=missing))])

    assert code(post(api, "grow", brokers=3)) == "PEN-2022"
    assert code(post(api, "shrink", brokers=[6])) == "PEN-2022"


# Plans


def test_a_cordoned_broker_is_not_filled(api: Api) -> None:
    one_cell(api)
    api.plane.reading = spread()
    context = api.plane.memory.context()
    api.plane.memory.accept(set_status(api.plane.registry, context, PHYSICAL, 4, BrokerStatus.CORDONED, ""))

    response = api("POST", "/plans", {"physical_cluster": PHYSICAL, "purpose": "fill", "broker": 4})

    assert code(response) == "PEN-5450"


def test_a_cluster_that_does_not_fit_into_memory_is_not_planned(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "REPLICAS_MAX", 35)
    one_cell(api)
    api.plane.reading = spread(12)

    response = api("POST", "/plans", {"physical_cluster": PHYSICAL})

    assert code(response) == "PEN-5452"
    assert "36 replicas" in response.json()["detail"]


@pytest.mark.parametrize(
    ("cell", "joining", "filled"),
    [
        ([0.5, 0.5, 0.46], [0.46], True),
        ([0.5, 0.5, 0.2], [0.2], False),
        ([0.5, 0.5, None], [None], False),  # not measured yet
        ([0.1, 0.1, 0.0], [0.0], True),  # too little to matter
    ],
)
def test_a_new_broker_is_filled_when_it_carries_its_share(
    cell: list[float | None], joining: list[float | None], filled: bool
) -> None:
    assert carries_share(cell, joining) is filled


# Progress


def test_holdings_count_replicas_that_are_still_being_added() -> None:
    seen = spread(6).seen
    key = next(iter(seen.partitions))
    moving = replace(seen.partitions[key], adding=(6,), replicas=(*seen.partitions[key].replicas, 6))
    seen = replace(seen, partitions={key: moving})

    assert holdings(seen, [6]) == {6: [("orders", 0)]}
    assert str(BrokerNotEmpty(broker=6, replicas=1, partition="orders-0")).startswith("broker 6 still has")


def test_holdings_count_mirrors_that_only_their_link_can_move() -> None:
    seen = replace(spread(6).seen, mirrors={("mirrored", 0): (5, 6)})

    assert ("mirrored", 0) in holdings(seen, [6])[6]
    assert ("mirrored", 0) not in holdings(seen, [1])[1]


async def test_a_broker_whose_tenant_is_being_moved_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = InMemoryControl.with_cells(1, brokers_each=6)
    operation = shrink(memory, 6)
    cluster = memory.cluster("shop")
    memory.registry.accept([Put(cluster.changed(2_000, moving_from="cell-2"))])
    state = next(iter(spread(6).seen.partitions.values()))
    seen: Observation = replace(
        spread(6).seen, partitions={(f"{cluster.id}_orders", 0): replace(state, replicas=(6,))}
    )

    async def observed(_client: object) -> Observation:
        return seen

    class Plans:
        async def latest(self, *_: object) -> None:
            """No plan was made yet."""

    monkeypatch.setattr(resize_steps, "observe", observed)
    monkeypatch.setattr(Clusters, "client", lambda *_: None)
    steps = ResizeSteps(Clusters(()), lambda: memory.registry, None)
    steps.plans = Plans()  # type: ignore[assignment]  # only its latest plan is read

    outcome = await steps.empty(operation)

    assert isinstance(outcome, Pending)
    assert cluster.id in outcome.detail


def test_progress_shows_bytes_and_the_time_left() -> None:
    progress = PlanProgress(done=3, bytes_done=1_000_000)
    header = PlanHeader(
        id="plan-1", cluster=PHYSICAL, created_ms=0, actor="growth", purpose="fill", state=PlanState.RUNNING,
        moves=12, size_bytes=4_000_000, changed_ms=10_000, progress=progress,
    )  # fmt: skip

    assert _progress(header, 20_000) == "plan-1: 3 of 12 moves, 1.0 of 4.0 MB, about 30 s left"
    paused = replace(header, progress=replace(progress, waiting="a roll is under way"))
    assert _progress(paused, 20_000).endswith("; a roll is under way")


# Steps


async def test_a_growth_whose_plan_was_cancelled_fails() -> None:
    steps = ResizeSteps(Clusters(()), InMemoryControl.with_cells(1).registry.copy, None)
    steps.plans = object()  # type: ignore[assignment]  # not called for a cancelled plan
    header = PlanHeader(
        id="plan-1", cluster=PHYSICAL, created_ms=0, actor="a", purpose="fill", state=PlanState.CANCELLED
    )

    with pytest.raises(ResizePlanCancelled):
        await steps._follow(header)


async def test_a_broker_that_does_not_join_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(client: object) -> Description:
        del client
        return Description("k", 1, {})

    monkeypatch.setattr(local, "START_SECONDS_MAX", 0.0)
    monkeypatch.setattr(brokers, "describe", nothing)

    with pytest.raises(BrokerNotStarted, match="broker 4"):
        await local._until_listed(provided(), [4])
