"""The samples topic on real brokers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from penstock.kafka import configs, topics
from penstock.kafka.client import Client
from penstock.kafka.outcomes import all_done
from penstock.model.errors import PenstockError
from penstock.scale.journal import RETENTION_MS, TopicJournal
from penstock.scale.records import Watched
from tests.ground.heard import topics_heard
from tests.scale.pretend import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.scale.journal import Told
    from tests.ground.fleet import Fleet

pytestmark = pytest.mark.kafka


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.bootstrap, fleet.security()) as one:
        yield one


def watched(number: int) -> Watched:
    return Watched(f"shop/{number}", {"group": "g"}, float(number))


async def followed(journal: TopicJournal, count: int) -> list[tuple[Told, bool]]:
    seen: list[tuple[Told, bool]] = []
    enough = asyncio.Event()

    async def take(told: Told, live: bool) -> None:
        seen.append((told, live))
        if len(seen) >= count:
            enough.set()

    following = asyncio.create_task(journal.follow(take))
    async with asyncio.timeout(60):
        await enough.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return seen


async def test_every_instance_reads_the_same_and_a_new_one_the_history(
    client: Client, unique: Callable[[str], str]
) -> None:
    journal = TopicJournal(client, unique("lag"), history_seconds=600)
    await journal.prepare()
    await journal.prepare()  # as a second instance does
    await journal.publish([watched(n) for n in range(5)])

    history = await followed(journal, 5)
    live = asyncio.create_task(followed(journal, 7))
    await journal.publish([watched(5), watched(6)])

    assert [(told, live) for told, live in history] == [(watched(n), False) for n in range(5)]
    assert [told for told, _ in await live] == [watched(n) for n in range(7)]


async def test_the_topic_keeps_little(fleet: Fleet, client: Client, unique: Callable[[str], str]) -> None:
    topic = unique("lag")
    await TopicJournal(client, topic, history_seconds=600).prepare()
    await topics_heard(fleet, topic)

    found = await configs.describe(client, [configs.topic(topic)])

    (entries,) = found.values()
    assert not isinstance(entries, PenstockError)
    values = {entry.name: entry.value for entry in entries.values()}
    assert values["retention.ms"] == str(RETENTION_MS)


async def test_a_topic_that_is_deleted_is_made_again(client: Client, unique: Callable[[str], str]) -> None:
    topic = unique("lag")
    journal = TopicJournal(client, topic, history_seconds=600)
    await journal.prepare()
    await journal.publish([watched(1)])
    seen: list[Told] = []

    async def take(told: Told, live: bool) -> None:
        seen.append(told)

    following = asyncio.create_task(journal.follow(take))
    await until(lambda: seen == [watched(1)], "the first record")
    made = (await topics.describe(client, [topic]))[topic]
    all_done(await topics.delete(client, [topic]))

    await _made_again(client, topic, made)
    async with asyncio.timeout(60):
        while watched(2) not in seen:
            # A leader that has not heard yet takes it for the old topic, and loses it with that.
            with suppress(PenstockError):
                await journal.publish([watched(2)])
            await asyncio.sleep(0.1)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def _made_again(client: Client, name: str, before: topics.Topic | PenstockError) -> None:
    """Waits until there is another topic of this name."""
    assert isinstance(before, topics.Topic)
    async with asyncio.timeout(60):
        while True:
            found = (await topics.describe(client, [name]))[name]
            if isinstance(found, topics.Topic) and found.id != before.id:
                return
            await asyncio.sleep(0.1)
