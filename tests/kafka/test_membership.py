"""Partitions divided among members: evenly, with few moves, and passed on when one goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.client import Client
from penstock.kafka.membership import Membership, divided
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

CLAIMS = st.dictionaries(
    st.sampled_from("abcdef"), st.frozensets(st.integers(0, 9), max_size=10), min_size=1, max_size=6
)


@given(CLAIMS, st.integers(1, 8))
def test_everything_goes_to_somebody_and_nobody_has_more_than_one_beyond_another(
    had: dict[str, frozenset[int]], partitions: int
) -> None:
    given_out = divided(had, partitions)

    assert sorted(p for some in given_out.values() for p in some) == list(range(partitions))
    sizes = [len(some) for some in given_out.values()]
    assert max(sizes) - min(sizes) <= 1


@given(CLAIMS, st.integers(1, 8))
def test_what_was_divided_stays_as_it_is_while_the_members_do(
    had: dict[str, frozenset[int]], partitions: int
) -> None:
    before = divided(had, partitions)

    assert divided({member: frozenset(some) for member, some in before.items()}, partitions) == before


@given(st.integers(2, 6), st.integers(1, 12))
def test_when_a_member_goes_only_what_it_had_moves(members: int, partitions: int) -> None:
    before = divided({str(n): frozenset() for n in range(members)}, partitions)
    gone = before.pop("0")

    after = divided({member: frozenset(some) for member, some in before.items()}, partitions)

    moved = {p for member, some in after.items() for p in some if p not in before[member]}
    assert moved == set(gone)


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
            Membership(client, group, topic, partitions=4, changed=lambda _: None) for client in (one, other)
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
