"""Rounds: one look for all, skipped where a coordinator cannot tell, markers asked for once."""

from __future__ import annotations

import pytest

from penstock.model.errors.wire import BrokerUnreachable
from penstock.scale.sampler import GROUPS_A_PART, Sampler
from penstock.scale.source import GroupLook, Position
from penstock.scale.values import NO_COMMIT, GroupState, Log, offsets
from penstock.scale.watches import Watches
from tests.scale.pretend import PretendCluster


def watched(*groups: str, **metadata: str) -> Watches:
    among = Watches({"default": 10.0})
    for group in groups:
        among.admit(f"shop/{group}", {"group": group, "topic": "orders", **metadata}, 0.0)
    return among


def sampler(cluster: object, among: Watches) -> Sampler:
    return Sampler("default", cluster, among, instance="one", interval=10.0)  # type: ignore[arg-type]  # a pretence


async def test_all_groups_share_one_look_at_the_logs() -> None:
    groups = [f"g{n}" for n in range(GROUPS_A_PART + 1)]
    cluster = PretendCluster()

    parts = await sampler(cluster, watched(*groups)).round(3, lambda: 50.0)

    assert cluster.looks == 1
    assert [len(part.samples) for part in parts] == [GROUPS_A_PART, 1]
    assert {(part.slot, part.at, part.by) for part in parts} == {(3, 50.0, "one")}
    logs = {id(sample.logs["orders"]) for part in parts for sample in part.samples.values()}
    assert len(logs) == 1


async def test_a_round_fails_when_the_brokers_cannot_be_seen() -> None:
    with pytest.raises(BrokerUnreachable):
        await sampler(PretendCluster(reachable=False), watched("g")).round(1, lambda: 0.0)


class HalfSeen(PretendCluster):
    async def groups(self, names: object, *, share: bool) -> dict[str, GroupLook | None]:
        look = GroupLook(GroupState.STABLE, 1, 1, {"orders": {0: Position(5)}})
        return {"seen": look, "moving": None}


async def test_a_group_whose_coordinator_cannot_tell_has_no_sample_and_is_not_missing() -> None:
    (part,) = await sampler(HalfSeen(), watched("seen", "moving", "gone")).round(1, lambda: 0.0)

    assert list(part.samples) == ["seen"]
    assert part.missing == {"gone": "group"}


async def test_a_partition_never_committed_is_told_apart() -> None:
    (part,) = await sampler(HalfSeen(), watched("seen")).round(1, lambda: 0.0)

    assert part.samples["seen"].progress["orders"].committed.tolist() == [5, NO_COMMIT]


async def test_a_tail_that_stands_still_is_looked_at_once_for_markers() -> None:
    cluster = PretendCluster(end=[101, 100], committed=[100, 100], marked=1)
    looking = sampler(cluster, watched("g"))

    first, second, third = [(await looking.round(n, lambda: 0.0))[0].samples["g"] for n in range(3)]
    cluster.marked = 7  # not asked again

    assert first.progress["orders"].markers is None
    assert second.progress["orders"].markers == third.progress["orders"].markers == offsets([1, 0])
    assert (await looking.round(4, lambda: 0.0))[0].samples["g"].progress["orders"].markers == offsets([1, 0])


class ShareCluster(PretendCluster):
    async def groups(self, names: object, *, share: bool) -> dict[str, GroupLook | None]:
        assert share
        return {
            "g": GroupLook(GroupState.STABLE, 3, 1, {"orders": {0: Position(40, lag=25), 1: Position(60)}})
        }


async def test_a_share_groups_lag_is_kafkas_own_number() -> None:
    among = watched("g", groupType="share")

    (part,) = await sampler(ShareCluster(end=[100, 100]), among).round(1, lambda: 0.0)

    assert part.samples["g"].progress["orders"].beyond == offsets([35, 0])


class TwoTopics(PretendCluster):
    async def groups(self, names: object, *, share: bool) -> dict[str, GroupLook | None]:
        positions = {"orders": {0: Position(5)}, "refunds": {0: Position(6)}}
        return {"g": GroupLook(GroupState.STABLE, 1, 1, positions)}

    async def logs(self, topics: object) -> dict[str, Log | None]:
        assert topics == {"orders", "refunds"}
        return {"orders": Log("a", offsets([0]), offsets([9])), "refunds": None}


async def test_without_topics_all_the_group_has_are_sampled_and_a_leaderless_one_delays() -> None:
    among = Watches({"default": 10.0})
    among.admit("shop/g", {"group": "g"}, 0.0)

    (part,) = await sampler(TwoTopics(), among).round(1, lambda: 0.0)

    assert not part.samples
    assert not part.missing
