"""Requests to the control plane: what they change, and which are rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.control import decisions
from penstock.control.cluster_placement import brokers_of
from penstock.control.decisions import ClusterRequest
from penstock.control.operations import (
    ATTEMPTS_MAX,
    BACKOFF,
    ENDED_RETENTION_MS,
    STEPS,
    Step,
    advanced,
    expired_operations,
    failed,
    next_step,
)
from penstock.control.registry import Put
from penstock.model.entities import (
    ApiKey,
    ClusterState,
    Grant,
    LogicalCluster,
    NetworkRule,
    Operation,
    OperationState,
    OperatorRole,
    PhysicalCluster,
    Role,
    Tenancy,
    Zones,
)
from penstock.model.errors.control import (
    EntityMissing,
    LimitReached,
    NameTaken,
    NoRoom,
    ProvisionerMissing,
    RequestInvalid,
    RequestReused,
    SizeTooLarge,
    StateConflict,
    VersionConflict,
)
from penstock.model.errors.wire import KafkaBusy
from penstock.model.ids import Zone
from tests.control.in_memory_control import PHYSICAL, InMemoryControl, physical

KEY, SHA = "K" * 16, "ab" * 32


def with_key(memory: InMemoryControl, name: str = "shop") -> ApiKey:
    decision = decisions.create_key(memory.registry, memory.context(), name, None, KEY, SHA, "")
    memory.complete(memory.accept(decision).operation)
    return memory.registry.need(ApiKey, KEY)


def test_a_new_cluster_is_provisioning_until_its_access_is_granted() -> None:
    memory = InMemoryControl.with_cells()
    decision = memory.accept(
        decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shop"))
    )
    assert memory.registry.cluster("shop").state is ClusterState.PROVISIONING

    ended = memory.complete(decision.operation)

    assert ended.state is OperationState.DONE
    assert memory.registry.cluster("shop").state is ClusterState.READY
    (account,) = memory.registry.accounts(memory.registry.cluster("shop").id)
    assert (account.name, account.role, account.ready) == ("owner", Role.OWNER, True)


def test_a_name_can_be_used_once() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster("shop")

    with pytest.raises(NameTaken):
        decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shop"))


@pytest.mark.parametrize(
    "invalid",
    [
        ClusterRequest("Shop"),
        ClusterRequest("x" * 64),
        ClusterRequest("shop", units=0),
        ClusterRequest("shop", network=NetworkRule(allow=("10.0.0.0/99",))),
        ClusterRequest("shop", network=NetworkRule(deny=tuple(f"10.0.0.{n}" for n in range(101)))),
        ClusterRequest("shop", overrides={"speed": 1.0}),
        ClusterRequest("shop", overrides={"requests": -1.0}),
    ],
)
def test_an_invalid_request_is_rejected(invalid: ClusterRequest) -> None:
    memory = InMemoryControl.with_cells()

    with pytest.raises(RequestInvalid):
        decisions.create_cluster(memory.registry, memory.context(), invalid)


def test_a_shared_cluster_that_is_too_large_is_rejected_and_a_dedicated_one_is_not() -> None:
    memory = InMemoryControl.with_cells()
    with pytest.raises(SizeTooLarge):
        decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shop", units=11))

    dedicated = ClusterRequest("shop", units=11, tenancy=Tenancy.DEDICATED)
    memory.accept(decisions.create_cluster(memory.registry, memory.context(), dedicated))

    assert memory.registry.count(PhysicalCluster) == 2


def test_a_dedicated_cluster_needs_a_provisioner() -> None:
    memory = InMemoryControl.with_cells()

    with pytest.raises(ProvisionerMissing):
        decisions.create_cluster(
            memory.registry,
            memory.context(provisions=False),
            ClusterRequest("own", tenancy=Tenancy.DEDICATED),
        )


def test_without_a_physical_cluster_there_is_no_room() -> None:
    with pytest.raises(NoRoom):
        decisions.create_cluster(
            InMemoryControl().registry, InMemoryControl().context(), ClusterRequest("shop")
        )


def test_several_zones_need_a_physical_cluster_that_has_them() -> None:
    memory = InMemoryControl()
    only_a = physical()
    in_one = replace(only_a, brokers=tuple(replace(b, zone=Zone("a")) for b in only_a.brokers))
    memory.registry.accept([Put(in_one)])

    with pytest.raises(NoRoom):
        decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shop"))
    assert memory.cluster("shop", zones=Zones.SINGLE).cluster == PHYSICAL


def test_placement_depends_on_load_and_never_on_quotas_sold() -> None:
    memory = InMemoryControl.with_cells(2)
    loads = {"cell-1": 0.1, "cell-2": 0.7}
    for number in range(50):  # five times the capacity of both cells
        request = ClusterRequest(f"shop-{number}", units=10)
        memory.accept(decisions.create_cluster(memory.registry, memory.context(loads=loads), request))

    assert {memory.registry.cluster(f"shop-{n}").cell for n in range(50)} == {"cell-1"}


def test_when_every_cell_is_full_there_is_no_room() -> None:
    memory = InMemoryControl.with_cells(2)

    with pytest.raises(NoRoom, match="no cell is below"):
        decisions.create_cluster(
            memory.registry, memory.context(loads={"cell-1": 0.9, "cell-2": 0.99}), ClusterRequest("shop")
        )


def test_a_repeated_request_gets_the_first_decision_and_changes_nothing() -> None:
    memory = InMemoryControl.with_cells()
    context = memory.context(request="r1", fingerprint="f1")
    first = memory.accept(decisions.create_cluster(memory.registry, context, ClusterRequest("shop")))

    again = decisions.decided_before(memory.registry, context, LogicalCluster)

    assert again is not None
    assert again.repeated
    assert (again.operation.id, again.changes) == (first.operation.id, ())
    with pytest.raises(RequestReused):
        decisions.decided_before(
            memory.registry, memory.context(request="r1", fingerprint="other"), LogicalCluster
        )


def test_a_change_based_on_another_version_is_rejected() -> None:
    memory = InMemoryControl.with_cells()
    before = memory.cluster()
    memory.accept(
        decisions.update_cluster(memory.registry, memory.context(), before.id, before.version, {"units": 2})
    )
    memory.complete(memory.registry.running()[0])

    with pytest.raises(VersionConflict):
        decisions.update_cluster(memory.registry, memory.context(), before.id, before.version, {"units": 3})


def test_an_update_is_checked_like_a_creation() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster("taken")
    before = memory.cluster()

    for values, error in (
        ({"units": 99}, SizeTooLarge),
        ({"name": "taken"}, NameTaken),
        ({"name": "NO"}, RequestInvalid),
        ({"network": NetworkRule(allow=("x",))}, RequestInvalid),
        ({"overrides": {"x": 1.0}}, RequestInvalid),
    ):
        with pytest.raises(error):
            decisions.update_cluster(memory.registry, memory.context(), before.id, None, values)


def test_a_cluster_has_one_operation_at_a_time() -> None:
    memory = InMemoryControl.with_cells()
    memory.accept(decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shop")))

    with pytest.raises(StateConflict, match=r"cluster\.create is running"):
        decisions.delete_cluster(memory.registry, memory.context(), "shop", None)


def test_deleting_a_cluster_deletes_everything_in_it() -> None:
    memory = InMemoryControl.with_cells()
    cluster = memory.cluster()
    with_key(memory)
    decision = memory.accept(decisions.delete_cluster(memory.registry, memory.context(), "shop", None))
    with pytest.raises(StateConflict):
        decisions.create_account(memory.registry, memory.context(), "shop", "app", Role.LIMITED, ())
    with pytest.raises(StateConflict):
        decisions.delete_cluster(memory.registry, memory.context(), "shop", None)

    memory.complete(decision.operation)

    assert memory.registry.cluster_named("shop") is None
    assert (memory.registry.accounts(cluster.id), memory.registry.keys(cluster.id)) == ([], [])


def test_deleting_a_dedicated_cluster_deletes_its_physical_one() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster("own", tenancy=Tenancy.DEDICATED)

    decision = memory.accept(decisions.delete_cluster(memory.registry, memory.context(), "own", None))
    memory.complete(decision.operation)

    assert [p.id for p in memory.registry.all(PhysicalCluster)] == [PHYSICAL]


def test_account_names_are_unique_and_their_number_is_limited() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()
    for number in range(decisions.ACCOUNTS_MAX - 1):
        made = decisions.create_account(
            memory.registry, memory.context(), "shop", f"app-{number}", Role.LIMITED, ()
        )
        memory.accept(made)

    with pytest.raises(LimitReached):
        decisions.create_account(memory.registry, memory.context(), "shop", "one-more", Role.LIMITED, ())
    with pytest.raises(NameTaken):
        decisions.create_account(memory.registry, memory.context(), "shop", "owner", Role.LIMITED, ())


@pytest.mark.parametrize(
    "grant",
    [
        Grant("cluster", "x", "read"),
        Grant("topic", "x", "cluster-action"),
        Grant("topic", "x", "read", "match"),
        Grant("topic", "", "read"),
    ],
)
def test_a_grant_beyond_the_tenants_prefix_is_rejected(grant: Grant) -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()

    with pytest.raises(RequestInvalid):
        decisions.create_account(memory.registry, memory.context(), "shop", "app", Role.LIMITED, (grant,))


def test_too_many_grants_are_rejected() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()
    (account,) = memory.registry.accounts(memory.registry.cluster("shop").id)
    grants = [Grant("topic", f"t{n}", "read") for n in range(decisions.GRANTS_MAX + 1)]

    with pytest.raises(RequestInvalid):
        decisions.update_account(memory.registry, memory.context(), account.id, None, grants)


def test_grants_of_an_account_are_replaced_as_a_whole() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()
    (account,) = memory.registry.accounts(memory.registry.cluster("shop").id)
    grant = Grant("topic", "orders", "read")

    decision = decisions.update_account(
        memory.registry, memory.context(), account.id, account.version, [grant]
    )
    memory.complete(memory.accept(decision).operation)

    assert memory.registry.accounts(account.tenant)[0].grants == (grant,)


def test_deleting_an_account_deletes_its_keys() -> None:
    memory = InMemoryControl.with_cells()
    cluster = memory.cluster()
    with_key(memory)
    (account,) = memory.registry.accounts(cluster.id)

    memory.accept(decisions.delete_account(memory.registry, memory.context(), account.id, None))

    assert memory.registry.keys(cluster.id) == []


def test_a_key_needs_an_existing_account() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()

    with pytest.raises(EntityMissing):
        decisions.create_key(memory.registry, memory.context(), "shop", "sa-zzzzzz", KEY, SHA, "")


def test_the_number_of_keys_is_limited() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()
    for number in range(decisions.KEYS_MAX):
        context = memory.context()
        memory.accept(decisions.create_key(memory.registry, context, "shop", None, f"{number:016}", SHA, ""))

    with pytest.raises(LimitReached):
        decisions.create_key(memory.registry, memory.context(), "shop", None, KEY, SHA, "")


def test_a_rotated_key_stays_valid_during_the_grace_period() -> None:
    memory = InMemoryControl.with_cells()
    cluster = memory.cluster()
    with_key(memory)
    new = "N" * 16
    decision = memory.accept(
        decisions.rotate_key(memory.registry, memory.context(), KEY, new, "cd" * 32, 5_000)
    )
    assert {key.id for key in memory.registry.keys(cluster.id)} == {KEY, new}
    with pytest.raises(StateConflict):
        decisions.rotate_key(memory.registry, memory.context(), KEY, "M" * 16, "cd" * 32, 0)

    memory.complete(decision.operation)

    assert [key.id for key in memory.registry.keys(cluster.id)] == [new]


def test_a_key_can_be_revoked_during_its_rotation() -> None:
    memory = InMemoryControl.with_cells()
    cluster = memory.cluster()
    with_key(memory)
    decision = memory.accept(
        decisions.rotate_key(memory.registry, memory.context(), KEY, "N" * 16, "cd" * 32, 0)
    )
    memory.accept(decisions.revoke_key(memory.registry, memory.context(), KEY, None))

    memory.complete(decision.operation)

    assert [key.id for key in memory.registry.keys(cluster.id)] == ["N" * 16]


def test_a_moving_cluster_may_use_both_cells_and_then_only_the_new_one() -> None:
    memory = InMemoryControl.with_cells(2)
    before = memory.cluster()
    home = memory.registry.need(PhysicalCluster, PHYSICAL)
    decision = memory.accept(decisions.move_cluster(memory.registry, memory.context(), "shop", None))
    moving = memory.registry.cluster("shop")
    assert brokers_of(moving, home) == (1, 2, 3, 4, 5, 6)

    memory.complete(decision.operation)

    after = memory.registry.cluster("shop")
    assert after.cell != before.cell
    assert len(brokers_of(after, home)) == 3
    assert after.state is ClusterState.READY


def test_a_move_needs_another_cell_that_exists() -> None:
    memory = InMemoryControl.with_cells(1)
    before = memory.cluster()

    with pytest.raises(RequestInvalid, match="no cell besides cell-1"):
        decisions.move_cluster(memory.registry, memory.context(), "shop", None)
    with pytest.raises(EntityMissing):
        decisions.move_cluster(memory.registry, memory.context(), "shop", "cell-9")
    with pytest.raises(StateConflict):
        decisions.move_cluster(memory.registry, memory.context(), "shop", before.cell)


def test_a_single_zone_cluster_stays_in_its_zone() -> None:
    memory = InMemoryControl.with_cells(1, brokers_each=6)
    cluster = memory.cluster(zones=Zones.SINGLE)
    home = memory.registry.need(PhysicalCluster, PHYSICAL)

    zones = {b.zone for b in home.brokers if b.id in brokers_of(cluster, home)}

    assert len(zones) == 1


def test_tokens_are_created_and_deleted_by_name() -> None:
    memory = InMemoryControl.with_cells()
    cluster = memory.cluster()
    role = OperatorRole.CLUSTER_ADMIN
    memory.accept(decisions.create_token(memory.registry, memory.context(), "ci", role, ["shop"], SHA))
    with pytest.raises(NameTaken):
        decisions.create_token(memory.registry, memory.context(), "ci", role, [], SHA)
    token = memory.registry.token(SHA)
    assert token is not None
    assert token.clusters == (cluster.id,)

    memory.accept(decisions.delete_token(memory.registry, memory.context(), "ci"))

    assert memory.registry.token(SHA) is None


def test_a_failing_step_is_retried_until_the_operation_fails() -> None:
    memory = InMemoryControl.with_cells()
    decision = memory.accept(
        decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shop"))
    )
    error = KafkaBusy(subject="", api="CreateAcls", detail="busy")
    for attempt in range(ATTEMPTS_MAX):
        operation = memory.registry.need(Operation, decision.operation.id)
        assert (operation.state, operation.attempts) == (OperationState.RUNNING, attempt)
        memory.registry.accept([failed(operation, error, memory.now_ms)])

    after = memory.registry.need(Operation, decision.operation.id)

    assert (after.state, after.error_code) == (OperationState.FAILED, "PEN-3023")
    memory.complete(
        memory.accept(decisions.delete_cluster(memory.registry, memory.context(), "shop", None)).operation
    )


def test_backoff_between_attempts_grows_up_to_a_bound() -> None:
    waits = [BACKOFF.seconds(attempt + 1) for attempt in range(40)]

    assert waits == sorted(waits)
    assert waits[-1] == 5.0


def test_operations_expire_a_day_after_they_ended() -> None:
    memory = InMemoryControl.with_cells()
    memory.cluster()
    (operation,) = memory.registry.all(Operation)

    assert expired_operations(memory.registry, memory.now_ms) == ()
    (change,) = expired_operations(memory.registry, memory.now_ms + ENDED_RETENTION_MS + 1)

    assert change.entity == operation


def test_an_operation_advances_one_step_at_a_time() -> None:
    memory = InMemoryControl.with_cells()
    decision = memory.accept(
        decisions.create_cluster(memory.registry, memory.context(), ClusterRequest("shop"))
    )
    assert next_step(decision.operation) is Step.BROKERS

    after = advanced(memory.registry, decision.operation, 5)[0].entity

    assert isinstance(after, Operation)
    assert (after.steps_done, after.step) == (1, Step.ACCESS)
    assert after.steps_total == len(STEPS["cluster.create"])
