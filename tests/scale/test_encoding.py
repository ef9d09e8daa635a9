from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.scale.encoding import TARGET, value_for, visible_lowering, visible_raise
from penstock.scale.simulate.hpa import recommended

replicas = st.integers(1, 2000)


@given(current=replicas, wanted=replicas)
def test_the_hpa_does_what_was_asked(current: int, wanted: int) -> None:
    """Over the HPA's own rule, tolerance included: every visible step arrives, exactly."""
    if wanted > current:
        asked = visible_raise(current, wanted, 0.1)
        assert recommended(current, value_for(asked, current), TARGET) == asked >= wanted
    elif wanted < current and visible_lowering(current, wanted, 0.1):
        assert recommended(current, value_for(wanted, current), TARGET) == wanted


@given(current=replicas)
def test_holding_holds(current: int) -> None:
    assert recommended(current, value_for(current, current), TARGET) == current


def test_one_more_is_seen_from_ten_up_only_when_the_step_is_widened() -> None:
    assert recommended(20, 21.0, TARGET) == 20  # what a plain count would do
    assert visible_raise(20, 21, 0.1) == 23
    assert visible_raise(20, 21, 0.0) == 21
    assert visible_raise(4, 5, 0.1) == 5


def test_one_fewer_is_seen_up_to_nineteen_and_waits_above() -> None:
    assert visible_lowering(10, 9, 0.1)
    assert visible_lowering(19, 18, 0.1)
    assert not visible_lowering(21, 20, 0.1)
    assert visible_lowering(21, 20, 0.0)


def test_an_hpa_that_has_followed_already_is_not_pushed_further() -> None:
    still_told_the_low_end = value_for(9, 10)

    assert recommended(9, still_told_the_low_end, TARGET) == 9
