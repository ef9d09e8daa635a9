"""The HPA's model against the examples Kubernetes documents."""

from __future__ import annotations

import pytest

from penstock.scale.simulate.hpa import Autoscaler, ScalingPolicy, ScalingRules, recommended


@pytest.mark.parametrize(
    ("current", "value", "target", "expected"),
    [
        (1, 200, 100, 2),  # "if the current value is 200m and the desired one 100m, replicas are doubled"
        (4, 200, 100, 2),  # "if the current value is instead 50m (each), the replica count is halved"
        (10, 1090, 100, 10),  # within a tenth: no scaling
        (10, 1100, 100, 11),  # 1 - 1.1 is a little more than a tenth, to Go as to us
        (11, 1200, 100, 11),
        (10, 1111, 100, 12),
        (10, 899, 100, 9),
        (5, 28, 5, 6),  # KEDA issue 4483: five partitions, lag 28, threshold 5
    ],
)
def test_the_average_value_rule(current: int, value: float, target: float, expected: int) -> None:
    assert recommended(current, value, target) == expected


def follow(hpa: Autoscaler, current: int, expected: int, *, every: int, times: int) -> list[int]:
    seen = []
    for step in range(times):
        current = hpa.sync(step * every, current, expected, 1.0)
        seen.append(current)
    return seen


def test_the_documented_scale_down_from_80_to_10() -> None:
    """Policies 4 pods and 10 % a minute: 8 of 80 go first, 4 at a time below 40."""
    down = ScalingRules(0, (ScalingPolicy(4, 60), ScalingPolicy(10, 60, percent=True)))
    seen = follow(Autoscaler(1, 100, down=down), 80, 10, every=60, times=14)

    assert seen[:2] == [72, 64]  # 10 % of 80, then of 72, rounded up to 8
    assert [count for count in seen if count < 40] == [36, 32, 28, 24, 20, 16, 12, 10]


def test_the_documented_fast_scale_up() -> None:
    """900 % a minute: 1, 10, 100, 1000."""
    up = ScalingRules(0, (ScalingPolicy(900, 60, percent=True),))

    assert follow(Autoscaler(1, 1000, up=up), 1, 1000, every=60, times=3) == [10, 100, 1000]


def test_the_documented_slow_scale_up() -> None:
    """One pod a minute: 1, 2, 3, 4."""
    up = ScalingRules(0, (ScalingPolicy(1, 60),))

    assert follow(Autoscaler(1, 1000, up=up), 1, 1000, every=60, times=4) == [2, 3, 4, 5]


def test_by_default_four_pods_or_double_every_15_seconds() -> None:
    assert follow(Autoscaler(1, 100), 1, 100, every=15, times=5) == [5, 10, 20, 40, 80]


def test_scaling_down_waits_five_minutes_for_the_highest_recommendation() -> None:
    hpa = Autoscaler(1, 100)
    assert hpa.sync(0, 10, 10.0, 1.0) == 10

    seen = {second: hpa.sync(second, 10, 2.0, 1.0) for second in range(15, 316, 15)}

    assert {second for second, replicas in seen.items() if replicas == 10} == set(range(15, 300, 15))
    assert seen[300] == 2


def test_a_window_for_scaling_up_takes_the_lowest_recommendation() -> None:
    hpa = Autoscaler(1, 100, up=ScalingRules(120, (ScalingPolicy(100, 15),)))
    hpa.sync(0, 2, 2.0, 1.0)

    seen = [hpa.sync(second, 2, 50.0, 1.0) for second in range(15, 136, 15)]

    assert seen == [2] * 7 + [50, 50]


def test_an_unavailable_metric_changes_nothing() -> None:
    assert Autoscaler(1, 100).sync(0, 7, None, 1.0) == 7


def test_limits_come_last() -> None:
    assert Autoscaler(3, 8, up=ScalingRules(0, (ScalingPolicy(100, 15),))).sync(0, 4, 50.0, 1.0) == 8
    assert (
        Autoscaler(3, 8, down=ScalingRules(0, (ScalingPolicy(100, 15, percent=True),))).sync(0, 4, 0.0, 1.0)
        == 3
    )
