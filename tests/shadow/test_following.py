"""A shadow beside producers: what it claims as a follower, and what it responds to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.kafka.admin import reassignments
from penstock.kafka.metadata_image import PartitionId, PartitionState
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow import following
from penstock.shadow.following import FOLLOW_POLL_SECONDS, Followed, follow
from penstock.shadow.partition import LedPartition, RawBatch
from penstock.shadow.requests import Requests
from penstock.wire.error_codes import Code
from penstock.wire.frames import Request

SHADOW = SHADOW_IDS[0]
KEY = PartitionId(UUID(int=9), 0)
STATE = PartitionState((1, 2, 3, SHADOW), (1, 2, 3), 1, 4, 9)


ELECTED_MEANWHILE = 99


class Cluster:
    """Replicas' ends, round by round, and the offsets that the shadow fetches from."""

    def __init__(self, rounds: list[tuple[PartitionState, dict[int, int]]]) -> None:
        self.rounds = rounds
        self.fetched: list[int] = []
        self.image = SimpleNamespace(partitions=self)
        self.id = SHADOW
        self.session = SimpleNamespace(broker_epoch=5)

    def get(self, _: PartitionId) -> PartitionState:
        return self.rounds[0][0] if self.rounds else replace(STATE, leader=SHADOW)

    async def end_on(self, replica: int, *_: object) -> int:
        end = self.rounds[0][1][replica]
        if end == ELECTED_MEANWHILE:
            self.rounds.clear()
        return end

    async def call(self, _: str, body: dict[str, Any], **__: object) -> None:
        self.fetched.append(body["Topics"][0]["Partitions"][0]["FetchOffset"])
        self.rounds.pop(0)


async def claimed(*rounds: tuple[PartitionState, dict[int, int]], needed: int = 2) -> list[int]:
    """The offsets that a shadow fetches from; a round in which it fetches nothing lasts."""
    cluster: Any = Cluster(list(rounds))
    task = asyncio.create_task(follow(cluster, cluster, "orders", KEY, Followed(needed)))
    await asyncio.wait([task], timeout=4 * FOLLOW_POLL_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    fetched: list[int] = cluster.fetched
    return fetched


async def test_a_shadow_claims_what_every_real_in_sync_replica_has() -> None:
    rounds = [(STATE, {1: 50, 2: 40, 3: 45}), (STATE, {1: 60, 2: 60, 3: 55})]
    assert await claimed(*rounds) == [40, 55]


@pytest.mark.parametrize("isr", [(1, SHADOW), (1, 2, SHADOW)])
async def test_it_claims_nothing_more_beside_too_few_replicas(isr: tuple[int, ...]) -> None:
    ends = {1: 50, 2: 50, 3: 50}
    assert await claimed((replace(STATE, isr=isr), ends), needed=len(isr)) == []


async def test_it_claims_nothing_more_while_a_new_in_sync_replica_has_less() -> None:
    without = replace(STATE, isr=(1, 2, SHADOW))
    assert await claimed((without, {1: 50, 2: 50}), (STATE, {1: 60, 2: 60, 3: 45})) == [50]


async def test_it_claims_nothing_once_it_is_elected() -> None:
    assert await claimed((STATE, {1: 60, 2: 60, 3: ELECTED_MEANWHILE})) == []


async def test_it_waits_while_the_partition_has_no_leader() -> None:
    assert await claimed((replace(STATE, leader=-1), {})) == []


def produce_request(acks: int) -> Request:
    topics = [{"Name": "", "TopicId": KEY.topic_id, "PartitionData": [{"Index": 0}, {"Index": 1}]}]
    body = {"Acks": acks, "TopicData": topics}
    return Request("Produce", 13, 1, "writer", body)


async def produce_errors(partition: LedPartition) -> list[int]:
    known = {partition.id: partition}
    host: Any = SimpleNamespace(led=known.get, image=SimpleNamespace(topics={}))
    async with asyncio.timeout(5):
        response = await Requests(host).respond(produce_request(-1))
    assert response is not None
    return [row["ErrorCode"] for row in response["Responses"][0]["PartitionResponses"]]


async def test_producers_of_a_mirror_are_rejected_and_others_wait_for_a_real_leader() -> None:
    async def older(*_: object) -> list[Any]:
        return []

    mirror = LedPartition(KEY, "orders", 0, 0, older)
    assert await produce_errors(mirror) == [Code.POLICY_VIOLATION, Code.NOT_LEADER_OR_FOLLOWER]
    mirror.produce_error = Code.NOT_LEADER_OR_FOLLOWER
    assert await produce_errors(mirror) == [Code.NOT_LEADER_OR_FOLLOWER] * 2


def fetch_request(offset: int) -> Request:
    partition = {
        "Partition": 0, "CurrentLeaderEpoch": 4, "FetchOffset": offset, "LastFetchedEpoch": -1,
        "PartitionMaxBytes": 1 << 20,
    }  # fmt: skip
    body = {
        "ReplicaState": {"ReplicaId": 1, "ReplicaEpoch": 11}, "MaxWaitMs": 0, "MaxBytes": 1 << 20,
        "Topics": [{"TopicId": KEY.topic_id, "Partitions": [partition]}],
    }  # fmt: skip
    return Request("Fetch", 18, 1, "1", body)


async def test_records_that_arrive_after_the_term_are_not_sent() -> None:
    """They may be truncated by now, and the high watermark of no term is 0."""
    ended = [False, True]

    async def older(*_: object) -> list[RawBatch]:
        if ended.pop(0):
            led.end_term()
        return [RawBatch(0, 9, bytes(20))]

    led = LedPartition(KEY, "orders", 0, 50, older)
    led.begin_term(replace(STATE, leader=SHADOW, isr=(1, SHADOW)))
    assert led.leadership is not None
    led.leadership.fetched(1, 20, 50, 0.0)
    host: Any = SimpleNamespace(
        led={KEY: led}.get, image=SimpleNamespace(topics={}), changed=asyncio.Event, announce=lambda: None
    )
    rows = []
    for _ in range(2):
        response = await Requests(host).respond(fetch_request(0))
        assert response is not None
        rows += response["Responses"][0]["Partitions"]
    assert [(row["ErrorCode"], row["HighWatermark"], len(row["Records"])) for row in rows] == [
        (Code.NONE, 20, 20),
        (Code.NOT_LEADER_OR_FOLLOWER, -1, 0),
    ]


async def test_a_shadow_is_not_elected_while_an_end_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that gives no end is not one that ends like the others."""
    ends: list[dict[int, int | None]] = [{1: None, 2: None}, {1: 5, 2: None}, {1: 5, 2: 6}, {1: 6, 2: 6}]
    elected: list[dict[int, int | None]] = []
    state = replace(STATE, replicas=(SHADOW, 1, 2), isr=(1, 2, SHADOW))
    partitions = {KEY: state}

    async def end_on(replica: int, *_: object) -> int | None:
        return ends[0][replica]

    async def elect(*_: object) -> None:
        elected.append(ends[0])
        partitions[KEY] = replace(state, leader=SHADOW)

    async def nothing(*_: object, **__: object) -> None:
        if len(ends) > 1:
            ends.pop(0)

    monkeypatch.setattr(following, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(following, "_fetch_at_end", nothing)
    monkeypatch.setattr(reassignments, "elect", elect)
    shadow: Any = SimpleNamespace(
        id=SHADOW, end_on=end_on, image=SimpleNamespace(partitions=partitions), is_stepping_down=False
    )
    ends.insert(0, {})
    await following.regain(shadow, shadow, "orders", KEY)
    assert elected == [{1: 6, 2: 6}]
