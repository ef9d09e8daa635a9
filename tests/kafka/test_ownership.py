"""One owner among several processes: it keeps ownership until it leaves or loses the coordinator."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.kafka.client import Client
from penstock.kafka.ownership import Ownership
from penstock.model.errors.wire import KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.harness.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


class Member:
    def __init__(self, client: Client, group: str, topic: str) -> None:
        self.changes: list[bool] = []
        self.ownership = Ownership(client, group, topic, changed=self.changes.append)
        self.task = asyncio.create_task(self.ownership.run())

    @property
    def owns(self) -> bool:
        return self.ownership.is_owner()


@asynccontextmanager
async def member(fleet: Fleet, group: str, topic: str) -> AsyncIterator[Member]:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        one = Member(client, group, topic)
        try:
            yield one
        finally:
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)


async def owned(*members: Member) -> None:
    async def holds() -> bool:
        return any(one.owns for one in members)

    await eventually(holds)


async def test_the_owner_keeps_ownership_when_another_joins_and_hands_over_when_it_leaves(
    fleet: Fleet, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    group, topic = unique("group"), await make_topic()
    async with member(fleet, group, topic) as second, member(fleet, group, topic) as first:
        await owned(first, second)

        async def settled() -> bool:
            return first.ownership._generation == second.ownership._generation > 0

        await eventually(settled)
        await owned(first, second)
        assert first.owns is not second.owns
        before, after = (first, second) if first.owns else (second, first)
        before.task.cancel()
        await asyncio.gather(before.task, return_exceptions=True)

        await owned(after)

        assert before.changes == [True, False]
        assert after.changes == [True]


async def test_a_session_timeout_the_brokers_reject_is_an_error_at_once(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    ownership = Ownership(
        client, unique("group"), await make_topic(), changed=lambda _: None, session_seconds=0.01
    )

    with pytest.raises(KafkaRefused, match="INVALID_SESSION_TIMEOUT"):
        await ownership.run()


async def test_an_owner_without_a_recent_heartbeat_no_longer_counts_as_owner(
    fleet: Fleet, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    async with member(fleet, unique("group"), await make_topic()) as one:
        await owned(one)

        one.ownership._confirmed_at -= 60

        assert not one.owns
