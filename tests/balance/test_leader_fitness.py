"""Which replicas must not be elected."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.balance import leader_fitness
from penstock.balance.executing import Observation, PartitionState
from penstock.balance.leader_fitness import ReplicaLog, unfit, unfit_leaders
from penstock.kafka.admin.offsets import OffsetSpec
from penstock.model.errors.wire import KafkaBusy

KEY = ("orders", 0)
BROKER_2_LEADS = PartitionState("t1", (1, 2, 3), (1, 2, 3), 2)
SEEN = Observation({KEY: BROKER_2_LEADS}, frozenset({1, 2, 3}))


def compared(candidate: ReplicaLog | None, leader: ReplicaLog | None) -> dict[Any, str]:
    logs = {(KEY, broker): log for broker, log in ((1, candidate), (2, leader)) if log is not None}
    return unfit(SEEN, [KEY], logs)


def test_a_replica_with_the_same_log_may_lead() -> None:
    assert compared(ReplicaLog(7, 3), ReplicaLog(7, 3)) == {}


def test_a_replica_with_more_of_the_beginning_may_lead() -> None:
    assert compared(ReplicaLog(5, 3), ReplicaLog(7, 3)) == {}


def test_a_replica_without_the_beginning_may_not_lead() -> None:
    assert compared(ReplicaLog(100, 3), ReplicaLog(0, 3)) == {
        KEY: "orders-0: the log of broker 1 lacks offsets 0 to 99, which the leader, broker 2, has"
    }


def test_a_replica_with_a_later_epoch_may_not_lead() -> None:
    assert compared(ReplicaLog(0, 4), ReplicaLog(0, 3)) == {
        KEY: "orders-0: the log of broker 1 has epoch 4, the leader, broker 2, has 3"
    }


@pytest.mark.parametrize(
    ("candidate", "leader", "silent"), [(None, ReplicaLog(0, 3), 1), (ReplicaLog(0, 3), None, 2)]
)
def test_nothing_is_elected_without_a_comparison(
    candidate: ReplicaLog | None, leader: ReplicaLog | None, silent: int
) -> None:
    reason = f"orders-0: broker {silent} does not report where its log starts"
    assert compared(candidate, leader) == {KEY: reason}


def test_a_partition_without_a_leader_has_nothing_to_compare_with() -> None:
    seen = Observation({KEY: PartitionState("t1", (1, 2), (1,), None)}, frozenset({1, 2}))
    assert unfit(seen, [KEY], {}) == {}


async def test_each_broker_reports_its_own_replicas_and_a_silent_one_elects_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = ("orders", 1)
    seen = Observation(
        {KEY: BROKER_2_LEADS, other: PartitionState("t1", (3, 2), (3, 2), 2)}, frozenset({1, 2, 3})
    )

    async def list_own(
        _: object, broker: int, of: list[Any], spec: OffsetSpec, **more: Any
    ) -> dict[Any, Any]:
        assert more["replica"] == -2
        if broker == 3:
            raise KafkaBusy(subject="", api="ListOffsets", detail="it restarts")
        start = 40 if broker == 1 else 0
        return dict.fromkeys(of, (start if spec is OffsetSpec.EARLIEST else 90, 5))

    monkeypatch.setattr(leader_fitness, "list_own_offsets", list_own)

    reasons = await unfit_leaders(cast("Any", None), seen, [KEY, other])

    assert reasons == {
        KEY: "orders-0: the log of broker 1 lacks offsets 0 to 39, which the leader, broker 2, has",
        other: "orders-1: broker 3 does not report where its log starts",
    }
