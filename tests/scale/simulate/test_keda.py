from __future__ import annotations

import pytest

from penstock.scale.simulate.hpa import recommended
from penstock.scale.simulate.keda import KafkaTrigger


@pytest.mark.parametrize("lag", [28, 29])
def test_the_cap_lets_one_replica_too_many_through_as_keda_does(lag: int) -> None:
    """KEDA issue 4483, reproduced with its own code: five partitions, threshold 5, lag 28 gives 28."""
    value = KafkaTrigger(lag_threshold=5).value([lag, 0, 0, 0, 0])

    assert value == lag
    assert recommended(5, value, 5) == 6


def test_far_above_the_cap_holds() -> None:
    assert KafkaTrigger(lag_threshold=5).value([30, 0, 0, 0, 0]) == 25


def test_idle_consumers_and_partitions_with_lag() -> None:
    assert KafkaTrigger(5, allow_idle_consumers=True).value([500, 0]) == 500
    assert KafkaTrigger(5, limit_to_partitions_with_lag=True).value([500, 0]) == 5
