"""One owner among several: it stays where it is, and passes on when the owner goes or is not heard."""

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

    from tests.ground.fleet import Fleet
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


class Member:
    def __init__(self, client: Client, group: str, topic: str) -> None:
        self.told: list[bool] = []
        self.ownership = Ownership(client, group, topic, changed=self.told.append)
        self.task = asyncio.create_task(self.ownership.run())

    @property
    def owns(self) -> bool:
        return self.ownership.holds()


@asynccontextmanager
async def member(fleet: Fleet, group: str, topic: str) -> AsyncIterator[Member]:
    async with Client(fleet.bootstrap, fleet.security()) as client:
        one = Member(client, group, topic)
        try:
            yield one
        finally:
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)


async def owned(*some: Member) -> None:
    async def holds() -> bool:
        return any(one.owns for one in some)

    await eventually(holds)


async def test_the_owner_stays_the_owner_when_another_joins_and_passes_on_when_it_leaves(
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

        assert before.told == [True, False]
        assert after.told == [True]


async def test_a_session_that_the_brokers_do_not_allow_is_an_error_at_once(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    ownership = Ownership(
        client, unique("group"), await make_topic(), changed=lambda _: None, session_seconds=0.01
    )

    with pytest.raises(KafkaRefused, match="INVALID_SESSION_TIMEOUT"):
        await ownership.run()


async def test_an_owner_that_the_coordinator_does_not_hear_is_none_by_its_own_clock(
    fleet: Fleet, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    async with member(fleet, unique("group"), await make_topic()) as one:
        await owned(one)

        one.ownership._heard -= 60

        assert not one.owns
