"""The samples topic on real brokers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.model.errors import PenstockError
from penstock.scale.decision.values import GroupState, Log, Progress, Sample, offsets
from penstock.scale.sampler.records import Sampled, Watched
from penstock.scale.sampler.samples_topic import RETENTION_MS, SamplesTopic
from tests.harness.propagation import wait_for_topics
from tests.scale.fakes import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penstock.scale.sampler.samples_topic import Event
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.bootstrap, fleet.security()) as connected:
        yield connected


def watched(number: int) -> Watched:
    return Watched(f"shop/{number}", {"group": "g"})


async def followed(journal: SamplesTopic, count: int) -> list[tuple[Event, bool]]:
    seen: list[tuple[Event, bool]] = []
    enough = asyncio.Event()

    async def take(event: Event, live: bool) -> None:
        seen.append((event, live))
        if len(seen) >= count:
            enough.set()

    following = asyncio.create_task(journal.follow(take))
    async with asyncio.timeout(60):
        await enough.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return seen


async def test_every_instance_reads_the_same_events_and_a_new_one_the_history(
    client: Client, unique: Callable[[str], str]
) -> None:
    journal = SamplesTopic(client, unique("lag"), history_seconds=600)
    await journal.prepare()
    await journal.prepare()  # as a second instance does
    await journal.publish([watched(n) for n in range(5)])

    history = await followed(journal, 5)
    live = asyncio.create_task(followed(journal, 7))
    await journal.publish([watched(5), watched(6)])

    assert [(event, live) for event, live in history] == [(watched(n), False) for n in range(5)]
    assert [event for event, _ in await live] == [watched(n) for n in range(7)]


async def test_the_topic_has_a_short_retention(
    fleet: Fleet, client: Client, unique: Callable[[str], str]
) -> None:
    topic = unique("lag")
    await SamplesTopic(client, topic, history_seconds=600).prepare()
    await wait_for_topics(fleet, topic)

    described = await configs.describe(client, [configs.topic(topic)])

    (entries,) = described.values()
    assert not isinstance(entries, PenstockError)
    values = {entry.name: entry.value for entry in entries.values()}
    assert values["retention.ms"] == str(RETENTION_MS)


async def test_samples_have_the_brokers_time_whatever_the_clocks_of_their_writers_show(
    client: Client, unique: Callable[[str], str]
) -> None:
    topic = unique("lag")
    for number, clock in enumerate((50.0, 10**9, -(10.0**9))):
        journal = SamplesTopic(client, topic, history_seconds=600, clock=partial(float, clock))
        await journal.prepare()  # each is a new instance
        await journal.publish([Sampled("default", number, clock - 100, str(number))])

    events = [event for event, _ in await followed(journal, 3)]

    times = [event.at for event in events if isinstance(event, Sampled)]
    assert times == sorted(times)
    assert times[-1] - times[0] < 600  # seconds, and not the decades between their clocks


async def test_a_deleted_topic_is_created_again(client: Client, unique: Callable[[str], str]) -> None:
    topic = unique("lag")
    journal = SamplesTopic(client, topic, history_seconds=600)
    await journal.prepare()
    await journal.publish([watched(1)])
    seen: list[Event] = []

    async def take(event: Event, live: bool) -> None:
        seen.append(event)

    following = asyncio.create_task(journal.follow(take))
    await until(lambda: seen == [watched(1)], "the first record")
    before_deletion = (await topics.describe(client, [topic]))[topic]
    results_or_raise(await topics.delete(client, [topic]))

    await _recreated(client, topic, before_deletion)
    async with asyncio.timeout(60):
        while watched(2) not in seen:
            # A leader with old metadata appends to the deleted topic, and the record is lost.
            with suppress(PenstockError):
                await journal.publish([watched(2)])
            await asyncio.sleep(0.1)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def _recreated(client: Client, name: str, before: topics.Topic | PenstockError) -> None:
    """Waits until there is another topic of this name."""
    assert isinstance(before, topics.Topic)
    async with asyncio.timeout(60):
        while True:
            described = (await topics.describe(client, [name]))[name]
            if isinstance(described, topics.Topic) and described.id != before.id:
                return
            await asyncio.sleep(0.1)


async def test_a_group_whose_sample_exceeds_the_topics_limit_fails_alone(
    fleet: Fleet, client: Client, unique: Callable[[str], str]
) -> None:
    topic = unique("lag")
    journal = SamplesTopic(client, topic, history_seconds=600)
    await journal.prepare()
    limit = {configs.topic(topic): configs.changes({"max.message.bytes": "4000"})}
    results_or_raise(await configs.alter(client, limit))

    def sample(seed: int, partitions: int) -> Sample:
        ends = offsets([Random(seed + n).randrange(10**12) for n in range(partitions)])
        logs = {f"t{seed}": Log("id", offsets([0] * partitions), ends)}
        return Sample(0.0, GroupState.STABLE, 1, logs, {f"t{seed}": Progress(ends)})

    samples = {"small": sample(1, 3), "huge": sample(2, 2000), "other": sample(3, 3)}
    await journal.publish(
        [watched(0), Sampled("default", 1, 0.0, "one", samples, failures={"denied": "why"})]
    )

    events = [event for event, _ in await followed(journal, 5)]
    sampled = [event for event in events if isinstance(event, Sampled)]
    assert watched(0) in events
    assert sorted(group for event in sampled for group in event.samples) == ["other", "small"]
    failures = {group: why for event in sampled for group, why in event.failures.items()}
    assert sorted(failures) == ["denied", "huge"]
    assert "MESSAGE_TOO_LARGE" in failures["huge"]
