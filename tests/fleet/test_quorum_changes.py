"""Which controllers may join and leave: never below a majority, and nothing that runs is cut off."""

from __future__ import annotations

import pytest

from penstock.fleet.rolls.quorum_changes import check_known, check_leaving, leaving_order, new_controllers
from penstock.model.errors.fleet import ControllerMajority, ControllersNotKnown

ZONES = ("a", "b", "c")


def test_new_controllers_go_to_the_zones_with_the_fewest() -> None:
    assert new_controllers({1001: "a"}, 2, ZONES) == {1002: "b", 1003: "c"}
    assert new_controllers({1001: "b", 1002: "c"}, 1, ZONES) == {1003: "a"}


def test_the_id_of_a_removed_controller_is_used_again() -> None:
    assert new_controllers({1001: "a", 1003: "c"}, 2, ZONES) == {1002: "b", 1004: "a"}


def test_those_that_serve_no_more_leave_first_and_the_active_one_last() -> None:
    assert leaving_order({1001, 1002, 1003}, {1001, 1002}, leader=1001) == [1003, 1002, 1001]


@pytest.mark.parametrize(
    ("voters", "caught_up", "leaving"),
    [
        ({1, 2, 3}, {1, 2, 3}, {2, 3}),
        ({1, 2, 3}, {1, 2, 3}, {1}),
        ({1, 2, 3}, {1, 2}, {3}),
        ({1, 2, 3}, {1, 2}, {2, 3}),
        ({1, 2, 3, 4, 5}, {1, 2, 3}, {4, 5}),
        ({1}, {1}, {9}),  # no voter: an observer, or one that never joined
    ],
)
def test_controllers_leave_while_a_majority_stays(
    voters: set[int], caught_up: set[int], leaving: set[int]
) -> None:
    check_leaving(voters, caught_up, 1, leaving)


@pytest.mark.parametrize(
    ("voters", "caught_up", "leaving"),
    [
        ({1}, {1}, {1}),
        ({1, 2, 3}, {1, 2}, {2}),  # of 1 and 3 only one would be caught up
        ({1, 2, 3}, {1, 2, 3}, {1, 2, 3}),
        ({1, 2, 3, 4, 5}, {1, 2, 3}, {1}),
    ],
)
def test_controllers_do_not_leave_below_a_majority(
    voters: set[int], caught_up: set[int], leaving: set[int]
) -> None:
    with pytest.raises(ControllerMajority):
        check_leaving(voters, caught_up, 1, leaving)


def test_a_node_that_knows_only_those_that_leave_is_named() -> None:
    known = {"b1": {"c1", "c2"}, "b2": {"c1"}, "b3": {"c1"}}
    check_known(known, {"c1", "c3"})
    with pytest.raises(ControllersNotKnown, match="b2, b3 would know none"):
        check_known(known, {"c2", "c3"})
