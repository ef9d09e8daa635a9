"""What may be asked, what it changes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.control import decisions
from penstock.control.decisions import ClusterAsk
from penstock.control.operations import (
    ATTEMPTS_MAX,
    ENDED_KEPT_MS,
    STEPS,
    Step,
    advanced,
    backoff_seconds,
    failed,
    forgotten,
    next_step,
)
from penstock.control.placing import brokers_of
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
from tests.control.ground import PHYSICAL, Paper, physical

KEY, SHA = "K" * 16, "ab" * 32


def with_key(paper: Paper, name: str = "shop") -> ApiKey:
    decided = decisions.create_key(paper.registry, paper.ask(), name, None, KEY, SHA, "")
    paper.carry_out(paper.accept(decided).operation)
    return paper.registry.need(ApiKey, KEY)


def test_a_new_cluster_is_provisioning_until_its_rights_are_there() -> None:
    paper = Paper.with_cells()
    decided = paper.accept(decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shop")))
    assert paper.registry.cluster("shop").state is ClusterState.PROVISIONING

    ended = paper.carry_out(decided.operation)

    assert ended.state is OperationState.DONE
    assert paper.registry.cluster("shop").state is ClusterState.READY
    (account,) = paper.registry.accounts(paper.registry.cluster("shop").id)
    assert (account.name, account.role, account.ready) == ("owner", Role.OWNER, True)


def test_a_name_is_taken_once() -> None:
    paper = Paper.with_cells()
    paper.cluster("shop")

    with pytest.raises(NameTaken):
        decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shop"))


@pytest.mark.parametrize(
    "wanted",
    [
        ClusterAsk("Shop"),
        ClusterAsk("x" * 64),
        ClusterAsk("shop", units=0),
        ClusterAsk("shop", network=NetworkRule(allow=("10.0.0.0/99",))),
        ClusterAsk("shop", network=NetworkRule(deny=tuple(f"10.0.0.{n}" for n in range(101)))),
        ClusterAsk("shop", overrides={"speed": 1.0}),
        ClusterAsk("shop", overrides={"requests": -1.0}),
    ],
)
def test_an_ask_that_cannot_be_is_refused_by_name(wanted: ClusterAsk) -> None:
    paper = Paper.with_cells()

    with pytest.raises(RequestInvalid):
        decisions.create_cluster(paper.registry, paper.ask(), wanted)


def test_a_shared_cluster_that_is_too_large_is_refused_and_a_dedicated_one_is_not() -> None:
    paper = Paper.with_cells()
    with pytest.raises(SizeTooLarge):
        decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shop", units=11))

    dedicated = ClusterAsk("shop", units=11, tenancy=Tenancy.DEDICATED)
    paper.accept(decisions.create_cluster(paper.registry, paper.ask(), dedicated))

    assert paper.registry.count(PhysicalCluster) == 2


def test_a_dedicated_cluster_needs_somebody_who_can_make_brokers() -> None:
    paper = Paper.with_cells()

    with pytest.raises(ProvisionerMissing):
        decisions.create_cluster(
            paper.registry, paper.ask(provisions=False), ClusterAsk("own", tenancy=Tenancy.DEDICATED)
        )


def test_without_a_physical_cluster_there_is_no_room() -> None:
    with pytest.raises(NoRoom):
        decisions.create_cluster(Paper().registry, Paper().ask(), ClusterAsk("shop"))


def test_several_zones_need_a_physical_cluster_that_has_them() -> None:
    paper = Paper()
    only_a = physical()
    in_one = replace(only_a, brokers=tuple(replace(b, zone=Zone("a")) for b in only_a.brokers))
    paper.registry.accept([Put(in_one)])

    with pytest.raises(NoRoom):
        decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shop"))
    assert paper.cluster("shop", zones=Zones.SINGLE).cluster == PHYSICAL


def test_placement_looks_at_the_load_and_never_at_what_was_sold() -> None:
    paper = Paper.with_cells(2)
    loads = {"cell-1": 0.1, "cell-2": 0.7}
    for number in range(50):  # five times what ten units a cell would allow
        wanted = ClusterAsk(f"shop-{number}", units=10)
        paper.accept(decisions.create_cluster(paper.registry, paper.ask(loads=loads), wanted))

    assert {paper.registry.cluster(f"shop-{n}").cell for n in range(50)} == {"cell-1"}


def test_when_every_cell_is_full_there_is_no_room() -> None:
    paper = Paper.with_cells(2)

    with pytest.raises(NoRoom, match="no cell is below"):
        decisions.create_cluster(
            paper.registry, paper.ask(loads={"cell-1": 0.9, "cell-2": 0.99}), ClusterAsk("shop")
        )


def test_a_repeated_request_gets_the_first_answer_and_changes_nothing() -> None:
    paper = Paper.with_cells()
    ask = paper.ask(request="r1", fingerprint="f1")
    first = paper.accept(decisions.create_cluster(paper.registry, ask, ClusterAsk("shop")))

    again = decisions.decided_before(paper.registry, ask, LogicalCluster)

    assert again is not None
    assert again.repeated
    assert (again.operation.id, again.changes) == (first.operation.id, ())
    with pytest.raises(RequestReused):
        decisions.decided_before(paper.registry, paper.ask(request="r1", fingerprint="other"), LogicalCluster)


def test_a_change_for_another_version_is_refused() -> None:
    paper = Paper.with_cells()
    seen = paper.cluster()
    paper.accept(decisions.update_cluster(paper.registry, paper.ask(), seen.id, seen.version, {"units": 2}))
    paper.carry_out(paper.registry.running()[0])

    with pytest.raises(VersionConflict):
        decisions.update_cluster(paper.registry, paper.ask(), seen.id, seen.version, {"units": 3})


def test_an_update_is_checked_like_a_new_one() -> None:
    paper = Paper.with_cells()
    paper.cluster("taken")
    seen = paper.cluster()

    for values, error in (
        ({"units": 99}, SizeTooLarge),
        ({"name": "taken"}, NameTaken),
        ({"name": "NO"}, RequestInvalid),
        ({"network": NetworkRule(allow=("x",))}, RequestInvalid),
        ({"overrides": {"x": 1.0}}, RequestInvalid),
    ):
        with pytest.raises(error):
            decisions.update_cluster(paper.registry, paper.ask(), seen.id, None, values)


def test_one_thing_at_a_time_is_done_to_a_cluster() -> None:
    paper = Paper.with_cells()
    paper.accept(decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shop")))

    with pytest.raises(StateConflict, match=r"cluster\.create is under way"):
        decisions.delete_cluster(paper.registry, paper.ask(), "shop", None)


def test_a_deleted_cluster_takes_everything_in_it_along() -> None:
    paper = Paper.with_cells()
    cluster = paper.cluster()
    with_key(paper)
    decided = paper.accept(decisions.delete_cluster(paper.registry, paper.ask(), "shop", None))
    with pytest.raises(StateConflict):
        decisions.create_account(paper.registry, paper.ask(), "shop", "app", Role.LIMITED, ())
    with pytest.raises(StateConflict):
        decisions.delete_cluster(paper.registry, paper.ask(), "shop", None)

    paper.carry_out(decided.operation)

    assert paper.registry.cluster_named("shop") is None
    assert (paper.registry.accounts(cluster.id), paper.registry.keys(cluster.id)) == ([], [])


def test_a_deleted_dedicated_cluster_takes_its_physical_one_along() -> None:
    paper = Paper.with_cells()
    paper.cluster("own", tenancy=Tenancy.DEDICATED)

    decided = paper.accept(decisions.delete_cluster(paper.registry, paper.ask(), "own", None))
    paper.carry_out(decided.operation)

    assert [p.id for p in paper.registry.all(PhysicalCluster)] == [PHYSICAL]


def test_accounts_have_names_of_their_own_and_a_limit() -> None:
    paper = Paper.with_cells()
    paper.cluster()
    for number in range(decisions.ACCOUNTS_MAX - 1):
        made = decisions.create_account(
            paper.registry, paper.ask(), "shop", f"app-{number}", Role.LIMITED, ()
        )
        paper.accept(made)

    with pytest.raises(LimitReached):
        decisions.create_account(paper.registry, paper.ask(), "shop", "one-more", Role.LIMITED, ())
    with pytest.raises(NameTaken):
        decisions.create_account(paper.registry, paper.ask(), "shop", "owner", Role.LIMITED, ())


@pytest.mark.parametrize(
    "grant",
    [
        Grant("cluster", "x", "read"),
        Grant("topic", "x", "cluster-action"),
        Grant("topic", "x", "read", "match"),
        Grant("topic", "", "read"),
    ],
)
def test_a_grant_that_would_reach_beyond_the_prefix_is_refused(grant: Grant) -> None:
    paper = Paper.with_cells()
    paper.cluster()

    with pytest.raises(RequestInvalid):
        decisions.create_account(paper.registry, paper.ask(), "shop", "app", Role.LIMITED, (grant,))


def test_too_many_grants_are_refused() -> None:
    paper = Paper.with_cells()
    paper.cluster()
    (account,) = paper.registry.accounts(paper.registry.cluster("shop").id)
    grants = [Grant("topic", f"t{n}", "read") for n in range(decisions.GRANTS_MAX + 1)]

    with pytest.raises(RequestInvalid):
        decisions.update_account(paper.registry, paper.ask(), account.id, None, grants)


def test_grants_of_an_account_change_as_a_whole() -> None:
    paper = Paper.with_cells()
    paper.cluster()
    (account,) = paper.registry.accounts(paper.registry.cluster("shop").id)
    grant = Grant("topic", "orders", "read")

    decided = decisions.update_account(paper.registry, paper.ask(), account.id, account.version, [grant])
    paper.carry_out(paper.accept(decided).operation)

    assert paper.registry.accounts(account.tenant)[0].grants == (grant,)


def test_an_account_s_keys_go_with_it() -> None:
    paper = Paper.with_cells()
    cluster = paper.cluster()
    with_key(paper)
    (account,) = paper.registry.accounts(cluster.id)

    paper.accept(decisions.delete_account(paper.registry, paper.ask(), account.id, None))

    assert paper.registry.keys(cluster.id) == []


def test_a_key_needs_an_account_that_is_there() -> None:
    paper = Paper.with_cells()
    paper.cluster()

    with pytest.raises(EntityMissing):
        decisions.create_key(paper.registry, paper.ask(), "shop", "sa-zzzzzz", KEY, SHA, "")


def test_keys_have_a_limit() -> None:
    paper = Paper.with_cells()
    paper.cluster()
    for number in range(decisions.KEYS_MAX):
        ask = paper.ask()
        paper.accept(decisions.create_key(paper.registry, ask, "shop", None, f"{number:016}", SHA, ""))

    with pytest.raises(LimitReached):
        decisions.create_key(paper.registry, paper.ask(), "shop", None, KEY, SHA, "")


def test_a_rotated_key_stays_until_the_grace_is_over() -> None:
    paper = Paper.with_cells()
    cluster = paper.cluster()
    with_key(paper)
    new = "N" * 16
    decided = paper.accept(decisions.rotate_key(paper.registry, paper.ask(), KEY, new, "cd" * 32, 5_000))
    assert {key.id for key in paper.registry.keys(cluster.id)} == {KEY, new}
    with pytest.raises(StateConflict):
        decisions.rotate_key(paper.registry, paper.ask(), KEY, "M" * 16, "cd" * 32, 0)

    paper.carry_out(decided.operation)

    assert [key.id for key in paper.registry.keys(cluster.id)] == [new]


def test_a_key_revoked_during_its_rotation_is_simply_gone() -> None:
    paper = Paper.with_cells()
    cluster = paper.cluster()
    with_key(paper)
    decided = paper.accept(decisions.rotate_key(paper.registry, paper.ask(), KEY, "N" * 16, "cd" * 32, 0))
    paper.accept(decisions.revoke_key(paper.registry, paper.ask(), KEY, None))

    paper.carry_out(decided.operation)

    assert [key.id for key in paper.registry.keys(cluster.id)] == ["N" * 16]


def test_a_moving_cluster_may_lie_on_both_cells_and_then_on_the_new_one() -> None:
    paper = Paper.with_cells(2)
    before = paper.cluster()
    home = paper.registry.need(PhysicalCluster, PHYSICAL)
    decided = paper.accept(decisions.move_cluster(paper.registry, paper.ask(), "shop", None))
    moving = paper.registry.cluster("shop")
    assert brokers_of(moving, home) == (1, 2, 3, 4, 5, 6)

    paper.carry_out(decided.operation)

    after = paper.registry.cluster("shop")
    assert after.cell != before.cell
    assert len(brokers_of(after, home)) == 3
    assert after.state is ClusterState.READY


def test_a_move_needs_another_cell_that_exists() -> None:
    paper = Paper.with_cells(1)
    seen = paper.cluster()

    with pytest.raises(RequestInvalid, match="none besides cell-1"):
        decisions.move_cluster(paper.registry, paper.ask(), "shop", None)
    with pytest.raises(EntityMissing):
        decisions.move_cluster(paper.registry, paper.ask(), "shop", "cell-9")
    with pytest.raises(StateConflict):
        decisions.move_cluster(paper.registry, paper.ask(), "shop", seen.cell)


def test_a_single_zone_cluster_stays_in_its_zone() -> None:
    paper = Paper.with_cells(1, brokers_each=6)
    cluster = paper.cluster(zones=Zones.SINGLE)
    home = paper.registry.need(PhysicalCluster, PHYSICAL)

    zones = {b.zone for b in home.brokers if b.id in brokers_of(cluster, home)}

    assert len(zones) == 1


def test_tokens_are_made_and_deleted_by_name() -> None:
    paper = Paper.with_cells()
    cluster = paper.cluster()
    role = OperatorRole.CLUSTER_ADMIN
    paper.accept(decisions.create_token(paper.registry, paper.ask(), "ci", role, ["shop"], SHA))
    with pytest.raises(NameTaken):
        decisions.create_token(paper.registry, paper.ask(), "ci", role, [], SHA)
    found = paper.registry.token(SHA)
    assert found is not None
    assert found.clusters == (cluster.id,)

    paper.accept(decisions.delete_token(paper.registry, paper.ask(), "ci"))

    assert paper.registry.token(SHA) is None


def test_a_step_that_fails_is_tried_again_and_given_up_in_the_end() -> None:
    paper = Paper.with_cells()
    decided = paper.accept(decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shop")))
    error = KafkaBusy(subject="", api="CreateAcls", said="busy")
    for attempt in range(ATTEMPTS_MAX):
        operation = paper.registry.need(Operation, decided.operation.id)
        assert (operation.state, operation.attempts) == (OperationState.RUNNING, attempt)
        paper.registry.accept(failed(paper.registry, operation, error, paper.now_ms).changes)

    after = paper.registry.need(Operation, decided.operation.id)

    assert (after.state, after.error_code) == (OperationState.FAILED, "PEN-3023")
    paper.carry_out(
        paper.accept(decisions.delete_cluster(paper.registry, paper.ask(), "shop", None)).operation
    )


def test_waiting_between_attempts_grows_up_to_a_bound() -> None:
    waits = [backoff_seconds(attempt) for attempt in range(40)]

    assert waits == sorted(waits)
    assert waits[-1] == 5.0


def test_operations_are_forgotten_a_day_after_they_ended() -> None:
    paper = Paper.with_cells()
    paper.cluster()
    (operation,) = paper.registry.all(Operation)

    assert forgotten(paper.registry, paper.now_ms) == ()
    (change,) = forgotten(paper.registry, paper.now_ms + ENDED_KEPT_MS + 1)

    assert change.entity == operation


def test_progress_is_one_step_at_a_time() -> None:
    paper = Paper.with_cells()
    decided = paper.accept(decisions.create_cluster(paper.registry, paper.ask(), ClusterAsk("shop")))
    assert next_step(decided.operation) is Step.BROKERS

    after = advanced(paper.registry, decided.operation, 5).operation

    assert (after.steps_done, after.step) == (1, Step.RIGHTS)
    assert after.steps_total == len(STEPS["cluster.create"])
