"""A shadow beside producers: what it claims as a follower, and what it responds to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.kafka.metadata_image import PartitionId, PartitionState
from penstock.model.shadow_ids import SHADOW_IDS
from penstock.shadow.following import FOLLOW_POLL_SECONDS, Followed, follow
from penstock.shadow.partition import LedPartition
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
