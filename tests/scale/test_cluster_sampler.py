"""Sampling rounds: one read for all groups, skipped groups, transaction markers fetched once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.wire import ApiUnsupported, BrokerUnreachable, KafkaBusy
from penstock.scale.decision.values import NO_COMMIT, GroupState, Log, offsets
from penstock.scale.sampler.cluster import GROUPS_PER_RECORD, ClusterSampler
from penstock.scale.sampler.source import GroupSnapshot, Position
from penstock.scale.watched_groups import WatchedGroups
from tests.scale.fakes import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.model.errors import PenstockError
    from penstock.scale.sampler.records import Sampled

MOVING = KafkaBusy(api="OffsetFetch", subject="group 'moving': ", detail="NOT_COORDINATOR")
UNSUPPORTED = ApiUnsupported(
    address="b:1", api="ShareGroupDescribe", offered="none", known="1", kafka_version="4.2"
)


def watched(*groups: str, **metadata: str) -> WatchedGroups:
    among = WatchedGroups({"default": 10.0})
    for group in groups:
        among.admit(f"shop/{group}", {"group": group, "topic": "orders", **metadata}, 0.0)
    return among


def sampler(cluster: object, among: WatchedGroups) -> ClusterSampler:
    return ClusterSampler("default", cluster, among, instance="one", interval=10.0)  # type: ignore[arg-type]  # a fake


async def test_all_groups_share_one_read_of_the_logs() -> None:
    groups = [f"g{n}" for n in range(GROUPS_PER_RECORD + 1)]
    cluster = FakeCluster()

    parts = await sampler(cluster, watched(*groups)).round(3, lambda: 50.0)

    assert cluster.rounds == 1
    assert [len(part.samples) for part in parts] == [GROUPS_PER_RECORD, 1]
    assert {(part.round, part.at, part.by) for part in parts} == {(3, 50.0, "one")}
    logs = {id(sample.logs["orders"]) for part in parts for sample in part.samples.values()}
    assert len(logs) == 1


async def test_a_round_fails_when_the_brokers_are_unreachable() -> None:
    with pytest.raises(BrokerUnreachable):
        await sampler(FakeCluster(reachable=False), watched("g")).round(1, lambda: 0.0)


class HalfSeen(FakeCluster):
    async def groups(
        self, names: Collection[str], *, share: bool
    ) -> dict[str, GroupSnapshot | PenstockError]:
        look = GroupSnapshot(GroupState.STABLE, 1, 1, {"orders": {0: Position(5)}})
        known: dict[str, GroupSnapshot | PenstockError] = {"seen": look, "moving": MOVING}
        return {name: known[name] for name in names if name in known}


async def test_a_group_with_an_unavailable_coordinator_has_no_sample_and_is_not_missing() -> None:
    (part,) = await sampler(HalfSeen(), watched("seen", "moving", "gone")).round(1, lambda: 0.0)

    assert "moving" not in part.samples
    assert not part.missing
    assert part.failures == {"moving": str(MOVING)}


async def test_a_group_that_does_not_exist_is_sampled_as_far_as_its_topic_goes() -> None:
    (part,) = await sampler(FakeCluster(group_exists=False), watched("gone")).round(1, lambda: 0.0)

    sample = part.samples["gone"]
    assert (sample.state, sample.members) == (GroupState.DEAD, 0)
    assert sample.progress["orders"].committed.tolist() == [NO_COMMIT, NO_COMMIT]


async def test_without_topics_a_group_that_does_not_exist_is_missing_until_its_topics_are_known() -> None:
    among = WatchedGroups({"default": 10.0})
    among.admit("shop/g", {"group": "g", "minReplicas": "0"}, 0.0)
    cluster, at = FakeCluster(group_exists=False), [0.0]
    cluster_sampler = sampler(cluster, among)

    async def samples() -> Sampled:
        at[0] += 10.0
        (part,) = await cluster_sampler.round(int(at[0]), lambda: at[0])
        among.take(part, at[0])
        return part

    never = await samples()
    cluster.group_exists = True
    await samples()
    cluster.group_exists = False  # its offsets expired
    expired = await samples()

    assert never.missing == {"g": "group"}
    assert list(expired.samples["g"].logs) == ["orders"]


async def test_a_partition_without_a_commit_is_marked() -> None:
    (part,) = await sampler(HalfSeen(), watched("seen")).round(1, lambda: 0.0)

    assert part.samples["seen"].progress["orders"].committed.tolist() == [5, NO_COMMIT]


async def test_an_unmoved_tail_is_fetched_once_for_markers() -> None:
    cluster = FakeCluster(end=[101, 100], committed=[100, 100], marker_count=1)
    cluster_sampler = sampler(cluster, watched("g"))

    first, second, third = [(await cluster_sampler.round(n, lambda: 0.0))[0].samples["g"] for n in range(3)]
    cluster.marker_count = 7  # not fetched again

    assert first.progress["orders"].markers is None
    assert second.progress["orders"].markers == third.progress["orders"].markers == offsets([1, 0])
    assert (await cluster_sampler.round(4, lambda: 0.0))[0].samples["g"].progress[
        "orders"
    ].markers == offsets([1, 0])


class ShareCluster(FakeCluster):
    async def groups(self, names: object, *, share: bool) -> dict[str, GroupSnapshot | PenstockError]:
        assert share
        return {
            "g": GroupSnapshot(
                GroupState.STABLE, 3, 1, {"orders": {0: Position(40, lag=25), 1: Position(60)}}
            )
        }


async def test_a_share_groups_lag_is_kafkas_own_number() -> None:
    among = watched("g", groupType="share")

    (part,) = await sampler(ShareCluster(end=[100, 100]), among).round(1, lambda: 0.0)

    assert part.samples["g"].progress["orders"].completed_beyond == offsets([35, 0])


class OldBroker(FakeCluster):
    """Without share groups; `billing` is a consumer group."""

    async def groups(
        self, names: Collection[str], *, share: bool
    ) -> dict[str, GroupSnapshot | PenstockError]:
        return dict.fromkeys(names, UNSUPPORTED) if share else await super().groups(names, share=False)


async def test_a_share_trigger_on_a_broker_without_share_groups_fails_alone() -> None:
    among = watched(*(f"g{number}" for number in range(100)))
    among.admit("other/x", {"group": "pool", "topic": "orders", "groupType": "share"}, 0.0)

    parts = await sampler(OldBroker(), among).round(1, lambda: 0.0)

    assert sum(len(part.samples) for part in parts) == 100
    assert [part.failures for part in parts if part.failures] == [{"pool": str(UNSUPPORTED)}]


async def test_a_wrong_group_type_in_one_trigger_does_not_hide_the_group_from_another() -> None:
    among = watched("billing")
    among.admit("other/x", {"group": "billing", "topic": "orders", "groupType": "share"}, 0.0)

    (part,) = await sampler(OldBroker(), among).round(1, lambda: 0.0)

    assert list(part.samples) == ["billing"]


class LostLeader(FakeCluster):
    async def markers(self, topic: str, partition: int, begin: int, end: int) -> int:
        raise BrokerUnreachable(address="b:1", reason="gone")


async def test_a_round_survives_markers_that_cannot_be_fetched() -> None:
    cluster_sampler = sampler(LostLeader(end=[101, 100]), watched("g"))
    await cluster_sampler.round(1, lambda: 0.0)

    (part,) = await cluster_sampler.round(2, lambda: 0.0)

    assert list(part.samples) == ["g"]


class TwoTopics(FakeCluster):
    async def groups(self, names: object, *, share: bool) -> dict[str, GroupSnapshot | PenstockError]:
        positions = {"orders": {0: Position(5)}, "refunds": {0: Position(6)}}
        return {"g": GroupSnapshot(GroupState.STABLE, 1, 1, positions)}

    async def logs(self, topics: object) -> dict[str, Log | PenstockError]:
        assert topics == {"orders", "refunds"}
        return {"orders": Log("a", offsets([0]), offsets([9])), "refunds": MOVING}


async def test_without_topics_all_topics_of_the_group_are_sampled_and_a_leaderless_one_fails_it() -> None:
    among = WatchedGroups({"default": 10.0})
    among.admit("shop/g", {"group": "g"}, 0.0)

    (part,) = await sampler(TwoTopics(), among).round(1, lambda: 0.0)

    assert not part.samples
    assert part.failures == {"g": str(MOVING)}
