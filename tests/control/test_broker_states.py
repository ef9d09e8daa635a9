"""Broker states: claims coexist, each component clears its own, and everything that places obeys them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.control import decisions
from penstock.control.decisions import ClusterRequest
from penstock.control.desired_state import tenant_state
from penstock.control.health.broker_states import clear_status, set_status, state_of
from penstock.gateway.process.tenant_source import tenant_of
from penstock.model.entities import BrokerState, BrokerStatus, LogicalCluster, OperatorRole
from penstock.model.errors.balance import BrokerMissing, NoLeaderLeft, StatusNotClaimed, StatusNotSettable
from penstock.model.errors.control import NoRoom
from tests.control.in_memory_control import PHYSICAL, InMemoryControl
from tests.control.in_memory_plane import code

if TYPE_CHECKING:
    from tests.control.in_memory_plane import Api

DEMOTED, CORDONED, LEAVING = BrokerStatus.DEMOTED, BrokerStatus.CORDONED, BrokerStatus.LEAVING
BROKERS = f"/physical-clusters/{PHYSICAL}/brokers"


def claim(
    memory: InMemoryControl, broker: int, status: BrokerStatus, actor: str = "operator/root", reason: str = ""
) -> BrokerState:
    context = replace(memory.context(), actor=actor)
    memory.accept(set_status(memory.registry, context, PHYSICAL, broker, status, reason))
    return state_of(memory.registry, PHYSICAL, broker)


def clear(
    memory: InMemoryControl, broker: int, status: BrokerStatus, actor: str = "operator/root"
) -> BrokerState:
    context = replace(memory.context(), actor=actor)
    memory.accept(clear_status(memory.registry, context, PHYSICAL, broker, status))
    return state_of(memory.registry, PHYSICAL, broker)


def test_a_broker_stays_demoted_until_every_component_has_restored_it() -> None:
    memory = InMemoryControl.with_cells()
    claim(memory, 2, DEMOTED, "operator/ann")
    both = claim(memory, 2, DEMOTED, "health")
    assert [each.actor for each in both.claims] == ["operator/ann", "health"]

    after_health = clear(memory, 2, DEMOTED, "health")
    restored = clear(memory, 2, DEMOTED, "operator/bob")  # all operators are one component

    assert not after_health.leads
    assert restored.statuses == (BrokerStatus.NORMAL,)
    assert memory.registry.count(BrokerState) == 0


def test_a_component_clears_only_its_own_claims() -> None:
    memory = InMemoryControl.with_cells()
    claim(memory, 2, DEMOTED, "health", "slow")

    with pytest.raises(StatusNotClaimed, match="health has"):
        clear(memory, 2, DEMOTED)
    with pytest.raises(StatusNotClaimed, match="it is demoted"):
        clear(memory, 2, CORDONED)

    assert not state_of(memory.registry, PHYSICAL, 2).leads


def test_the_audit_log_has_the_state_before_unless_there_was_none() -> None:
    memory = InMemoryControl.with_cells()
    context = replace(memory.context(), actor="operator/root")

    first = memory.accept(set_status(memory.registry, context, PHYSICAL, 2, DEMOTED, ""))
    second = set_status(memory.registry, context, PHYSICAL, 2, CORDONED, "")

    assert first.before is None  # a record of version 0 cannot be written
    assert second.before == first.subject


def test_a_repeated_claim_keeps_its_start_and_takes_the_new_reason() -> None:
    memory = InMemoryControl.with_cells()
    first = claim(memory, 2, DEMOTED, reason="slow")

    second = claim(memory, 2, DEMOTED, reason="slow disk")

    (one,) = second.claims
    assert (one.reason, one.since_ms) == ("slow disk", first.claims[0].since_ms)
    assert second.version == 2


def test_several_states_of_one_broker_add_up() -> None:
    memory = InMemoryControl.with_cells()
    claim(memory, 2, BrokerStatus.JOINING, "growth")
    assert state_of(memory.registry, PHYSICAL, 2).takes_load

    state = claim(memory, 2, CORDONED)

    assert state.statuses == (BrokerStatus.JOINING, CORDONED)
    assert (state.takes_replicas, state.leads, state.takes_load) == (False, True, False)


def test_unknown_brokers_and_states_of_other_components_are_rejected() -> None:
    memory = InMemoryControl.with_cells()

    with pytest.raises(BrokerMissing, match="no broker 9; it has 1, 2, 3"):
        claim(memory, 9, DEMOTED)
    with pytest.raises(StatusNotSettable):
        claim(memory, 1, LEAVING)
    with pytest.raises(StatusNotSettable):
        claim(memory, 1, BrokerStatus.NORMAL, "health")


def test_the_last_broker_of_a_cell_that_may_lead_cannot_be_demoted() -> None:
    memory = InMemoryControl.with_cells(2)
    claim(memory, 1, DEMOTED)
    claim(memory, 2, BrokerStatus.EXCLUDED, "health")

    with pytest.raises(NoLeaderLeft, match="1 is demoted, 2 is excluded"):
        claim(memory, 3, DEMOTED)

    claim(memory, 4, DEMOTED)  # of another cell


def test_a_broker_state_survives_export_and_replay() -> None:
    memory = InMemoryControl.with_cells()
    state = claim(memory, 2, CORDONED, reason="old")

    record = state.to_record()

    assert BrokerState.from_record(record) == state
    assert memory.registry.copy().broker_states(PHYSICAL) == {2: state}
    assert memory.registry.broker_states("pkc-00000") == {}


def test_gateways_are_given_which_brokers_take_replicas_and_which_lead() -> None:
    memory = InMemoryControl.with_cells(2)
    cluster = memory.cluster()
    inside = [1, 2, 3] if cluster.cell == "cell-1" else [4, 5, 6]
    outside = 4 if cluster.cell == "cell-1" else 1
    before = tenant_state(memory.registry, cluster.id)
    claim(memory, outside, CORDONED)
    assert tenant_state(memory.registry, cluster.id) == before

    claim(memory, inside[0], CORDONED)
    claim(memory, inside[1], DEMOTED)

    state = tenant_state(memory.registry, cluster.id)
    assert state is not None
    assert before is not None
    assert state.content() != before.content()
    assert state.brokers == tuple(inside)  # clients still see them all
    tenant = tenant_of(state)
    assert (list(tenant.cordoned), list(tenant.demoted)) == ([inside[0]], [inside[1]])


def test_a_new_tenant_avoids_cells_with_a_cordoned_broker() -> None:
    memory = InMemoryControl.with_cells(2)
    claim(memory, 1, CORDONED)

    cells = {memory.cluster(f"shop-{n}").cell for n in range(8)}

    assert cells == {"cell-2"}
    claim(memory, 4, LEAVING, "shrink")
    with pytest.raises(NoRoom, match="take no new replicas: cell-1, cell-2"):
        memory.cluster("late")


def test_a_cell_that_was_never_measured_counts_as_full() -> None:
    memory = InMemoryControl.with_cells(2)
    measured = {"cell-1": 0.7}
    for number in range(8):
        request = ClusterRequest(f"shop-{number}")
        memory.accept(decisions.create_cluster(memory.registry, memory.context(loads=measured), request))
    assert {cluster.cell for cluster in memory.registry.all(LogicalCluster)} == {"cell-1"}

    with pytest.raises(NoRoom):
        decisions.create_cluster(
            memory.registry, memory.context(loads={"cell-1": 0.85}), ClusterRequest("late")
        )


def test_states_are_set_listed_and_cleared_through_the_api(api: Api) -> None:
    made = api("PUT", f"{BROKERS}/2/states/demoted", {"reason": "slow disk"})
    assert made.status_code == 202, made.text
    assert api("GET", made.headers["Location"].removeprefix("/v1")).json()["state"] == "done"

    rows = api("GET", BROKERS).json()["items"]
    shown = api("GET", f"{BROKERS}/2").json()

    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[1] == shown == made.json()["broker"]
    assert (shown["states"], shown["cell"], shown["zone"]) == (["demoted"], "cell-1", "b")
    (one,) = shown["claims"]
    assert (one["actor"], one["reason"]) == ("operator/root", "slow disk")
    cleared = api("DELETE", f"{BROKERS}/2/states/demoted")
    assert cleared.json()["broker"]["states"] == ["normal"]


def test_mistakes_with_brokers_are_explained(api: Api) -> None:
    assert code(api("GET", f"{BROKERS}/9"), 404) == "PEN-5410"
    assert code(api("PUT", f"{BROKERS}/1/states/leaving", {}), 422) == "PEN-5411"
    assert code(api("DELETE", f"{BROKERS}/1/states/demoted"), 409) == "PEN-5412"
    assert code(api("PUT", f"{BROKERS}/1/states/asleep", {}), 422) == "PEN-5013"
    assert code(api("GET", "/physical-clusters/pkc-zzzzzz/brokers"), 404) == "PEN-5001"


def test_pages_of_brokers_follow_their_numbers(api: Api) -> None:
    first = api("GET", f"{BROKERS}?limit=4").json()

    second = api("GET", f"{BROKERS}?limit=4&cursor={first['cursor']}").json()

    assert [row["id"] for row in first["items"] + second["items"]] == [1, 2, 3, 4, 5, 6]
    assert second["cursor"] is None


def test_only_admins_change_brokers(api: Api) -> None:
    api.plane.add_token("view", OperatorRole.VIEWER, "viewer-secret")
    api.secret = "viewer-secret"

    assert api("GET", BROKERS).status_code == 200
    assert code(api("PUT", f"{BROKERS}/1/states/cordoned", {}), 403) == "PEN-5011"
