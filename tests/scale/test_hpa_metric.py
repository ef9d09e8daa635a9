from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.scale.decision.hpa_metric import TARGET, is_visible_scale_down, value_for, visible_scale_up
from penstock.scale.simulate.hpa import recommended

replicas = st.integers(1, 2000)


@given(current=replicas, target=replicas)
def test_the_hpa_reaches_the_requested_count(current: int, target: int) -> None:
    """With the HPA's own rule and tolerance, every visible step arrives exactly."""
    if target > current:
        requested = visible_scale_up(current, target, 0.1)
        assert recommended(current, value_for(requested, current), TARGET) == requested >= target
    elif target < current and is_visible_scale_down(current, target, 0.1):
        assert recommended(current, value_for(target, current), TARGET) == target


@given(current=replicas)
def test_an_unchanged_request_changes_nothing(current: int) -> None:
    assert recommended(current, value_for(current, current), TARGET) == current


def test_from_ten_replicas_up_one_more_is_visible_only_in_a_wider_step() -> None:
    assert recommended(20, 21.0, TARGET) == 20  # what a plain count would do
    assert visible_scale_up(20, 21, 0.1) == 23
    assert visible_scale_up(20, 21, 0.0) == 21
    assert visible_scale_up(4, 5, 0.1) == 5


def test_one_fewer_is_visible_up_to_nineteen_replicas() -> None:
    assert is_visible_scale_down(10, 9, 0.1)
    assert is_visible_scale_down(19, 18, 0.1)
    assert not is_visible_scale_down(21, 20, 0.1)
    assert is_visible_scale_down(21, 20, 0.0)


def test_an_hpa_that_has_scaled_down_already_goes_no_further() -> None:
    value_of_the_scale_down = value_for(9, 10)

    assert recommended(9, value_of_the_scale_down, TARGET) == 9
