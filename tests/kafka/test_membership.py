"""Partitions are spread evenly over the members, with few moves, and taken over when a member leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.client import Client
from penstock.kafka.membership import GroupMembership, assign
from penstock.wire.codec import encode
from tests.kafka.fake_broker import FakeBroker, fake_broker
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

CLAIMS = st.dictionaries(
    st.sampled_from("abcdef"), st.frozensets(st.integers(0, 9), max_size=10), min_size=1, max_size=6
)


@given(CLAIMS, st.integers(1, 8))
def test_every_partition_is_assigned_and_shares_differ_by_at_most_one(
    owned: dict[str, frozenset[int]], partitions: int
) -> None:
    assignment = assign(owned, partitions)

    assert sorted(p for share in assignment.values() for p in share) == list(range(partitions))
    sizes = [len(share) for share in assignment.values()]
    assert max(sizes) - min(sizes) <= 1


@given(CLAIMS, st.integers(1, 8))
def test_the_assignment_is_stable_while_the_members_stay(
    owned: dict[str, frozenset[int]], partitions: int
) -> None:
    before = assign(owned, partitions)

    after = assign({member: frozenset(share) for member, share in before.items()}, partitions)

    assert after == before


@given(st.integers(2, 6), st.integers(1, 12))
def test_only_the_partitions_of_a_member_that_leaves_move(members: int, partitions: int) -> None:
    before = assign({str(n): frozenset() for n in range(members)}, partitions)
    orphaned = before.pop("0")

    after = assign({member: frozenset(share) for member, share in before.items()}, partitions)

    moved = {p for member, share in after.items() for p in share if p not in before[member]}
    assert moved == set(orphaned)


def coordinate(broker: FakeBroker, topic: str) -> asyncio.Event:
    """The fake broker coordinates a group of one member, and is silent while the event is cleared."""
    responsive = asyncio.Event()
    responsive.set()
    node = {"NodeId": 1, "Host": broker.host, "Port": broker.port}
    assignment = {"AssignedPartitions": [{"Topic": topic, "Partitions": [0]}], "UserData": None}
    encoded = (0).to_bytes(2) + encode("ConsumerProtocolAssignment", 0, assignment)

    async def heartbeat(_: object) -> dict[str, Any]:
        await responsive.wait()
        return {"ErrorCode": 0}

    async def join(_: object) -> dict[str, Any]:
        await responsive.wait()
        return {"ErrorCode": 0, "GenerationId": 1, "Leader": "other", "MemberId": "member", "Members": []}

    broker.responses |= {
        "Metadata": lambda _: {"Brokers": [node], "ControllerId": 1, "ClusterId": "fake", "Topics": []},
        "FindCoordinator": lambda _: {"Coordinators": [{"Key": "group", "ErrorCode": 0, **node}]},
        "JoinGroup": join,
        "SyncGroup": lambda _: {"ErrorCode": 0, "Assignment": encoded},
        "Heartbeat": heartbeat,
        "LeaveGroup": lambda _: {"ErrorCode": 0},
    }
    return responsive


async def test_a_member_that_gave_up_its_partitions_joins_again_although_the_group_still_knows_it() -> None:
    changes: list[frozenset[int]] = []
    async with fake_broker() as broker, Client(broker.address) as client:
        responsive = coordinate(broker, "topic")
        member = GroupMembership(
            client, "group", "topic", partitions=1, changed=changes.append, session_seconds=1.0
        )
        running = asyncio.create_task(member.run())

        async def owns() -> bool:
            return bool(member.owned())

        async def owns_nothing() -> bool:
            return changes[-1] == frozenset()

        await eventually(owns)
        responsive.clear()
        await eventually(owns_nothing)
        responsive.set()

        await eventually(owns)

        assert changes[-1] == frozenset({0})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.kafka
async def test_two_members_share_the_partitions_and_one_takes_all_when_the_other_leaves(
    fleet: Fleet, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    group, topic = unique("group"), await make_topic()
    async with (
        Client(fleet.bootstrap, fleet.security()) as one,
        Client(fleet.bootstrap, fleet.security()) as other,
    ):
        members = [
            GroupMembership(client, group, topic, partitions=4, changed=lambda _: None)
            for client in (one, other)
        ]
        tasks = [asyncio.create_task(member.run()) for member in members]

        async def shared() -> bool:
            first, second = (member.owned() for member in members)
            return len(first) == len(second) == 2 and not first & second

        await eventually(shared)
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)

        async def taken_over() -> bool:
            return members[1].owned() == frozenset(range(4))

        await eventually(taken_over)
        assert members[0].owned() == frozenset()
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
