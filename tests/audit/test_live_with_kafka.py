"""The live audit on three real brokers: incidents of Kora's table 1, and legal changes beside them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

import pytest

from penstock.audit import intents, topics
from penstock.audit.intents import IntentLog
from penstock.audit.service import Auditor
from penstock.fleet.credentials.passwords import PLATFORM_USER
from penstock.fleet.spec import Listener
from penstock.kafka.admin import configs, reassignments
from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.admin.offsets import delete_before
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import bounds, ensure_topic
from penstock.kafka.security import Login, Mechanism, Security
from penstock.model.durability import FindingRecord, LogEvent, What, partition_subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

# Retention is checked every second, and a broker that comes back leads again only if it is elected.
CONFIG = {
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "auto.leader.rebalance.enable": "false",
}
SEGMENT_BYTES = 1 << 20
RECORD = os.urandom(100_000)  # which no compression shrinks
RECORDS = 50
RAISED_TO = 25
SECONDS_MAX = 90.0


@pytest.fixture
def brokers(make_fleet: Callable[..., Fleet]) -> Fleet:
    return make_fleet(brokers=3, config=CONFIG)


def auditor_of(fleet: Fleet, client: Client) -> Auditor:
    node = fleet.nodes[0]
    login = Login(PLATFORM_USER, node.access.credentials.platform, Mechanism.PLAIN)
    bootstrap = node.cluster.spec.bootstrap(Listener.CONTROLLER)

    async def controllers() -> Client:
        return Client(bootstrap, Security(login), controllers=True)

    return Auditor("pkc-000000", client, controllers, sweep_seconds=1.0, snapshot_seconds=2.0)


@contextlib.asynccontextmanager
async def running(auditor: Auditor) -> AsyncIterator[Auditor]:
    task = asyncio.create_task(auditor.run())
    try:
        yield auditor
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], Awaitable[object]], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not await condition():
        assert time.monotonic() < deadline, f"no {what} in {SECONDS_MAX} s"
        await asyncio.sleep(0.1)


async def topic_id(client: Client, name: str) -> str:
    from penstock.audit.topic_ids import id_text

    return id_text((await kafka_topics.describe(client, [name]))[name].id)  # type: ignore[union-attr]  # exists


async def filled(client: Client, name: str, **config: str) -> str:
    """A topic of three replicas with several segments; returns its subject."""
    values = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
    values |= {key.replace("_", "."): value for key, value in config.items()}
    await ensure_topic(client, kafka_topics.NewTopic(name, replicas={0: (1, 2, 3)}, configs=values))
    for _ in range(RECORDS):
        await append(client, TopicPartition(name, 0), [(None, RECORD)])
    return partition_subject(await topic_id(client, name), 0)


async def findings(client: Client) -> dict[str, FindingRecord]:
    stored = await topics.read_compacted(client, topics.FINDINGS)
    return {key.decode(): FindingRecord.from_bytes(value) for key, value in stored.items()}


async def seen(auditor: Auditor, *subjects: str) -> None:
    """Every replica of these partitions was observed in the ISR, with all records."""

    async def observed() -> bool:
        states = {state.subject: state for state in auditor.engine.states.values()}
        return all(
            each in states
            and len([r for r in states[each].replicas.values() if r.replica.end == RECORDS]) == 3
            for each in subjects
        )

    await until(observed, "observation of every replica")


async def test_incidents_are_reported_with_their_offsets_and_legal_changes_are_not(brokers: Fleet) -> None:
    async with Client(brokers.bootstrap, brokers.security()) as client:
        async with running(auditor_of(brokers, client)) as auditor:
            trimmed, raced = await filled(client, "trimmed"), await filled(client, "raced")
            cut = await filled(client, "cut")
            expired = await filled(client, "expired", retention_bytes=str(3 * SEGMENT_BYTES))
            mirror = await filled(client, "mirror")
            intended = await filled(client, "intended")
            await seen(auditor, trimmed, raced, cut, mirror, intended)

            # Legal: size retention, and what the platform does after it has recorded its intent.
            await _expired_by_size(client)
            await _act_with_intent(client)
            # Table 1, line 3: retention is cut, and reverted as soon as it has deleted something.
            cut_to = await _cut_and_revert(client, "cut")

            async def drift() -> bool:
                return any(each.last == cut_to - 1 for each in (await findings(client)).values())

            await until(drift, "finding of the cut")
            # Lines 1 and 4: files are lost, and a log start is raised too far.
            await asyncio.to_thread(_damage, brokers, "b1")

        # Another auditor takes over.
        async with running(auditor_of(brokers, client)):

            async def three() -> bool:
                return len(await findings(client)) >= 3

            await until(three, "finding of both replicas")
            # It leads, and drags its followers along.
            places = [TopicPartition("trimmed", 0), TopicPartition("raced", 0)]
            await reassignments.elect(client, places)
            for place in places:
                await append(client, place, [(None, b"next")])
            start = (await bounds(client, places[0]))[0]

            async def dragged() -> bool:
                return await starts_everywhere(client, trimmed, start) and await starts_everywhere(
                    client, raced, RAISED_TO
                )

            await until(dragged, "rise on every follower")

        stored = sorted((f.rule, f.subject, f.first, f.last) for f in (await findings(client)).values())

    assert expired
    assert stored == sorted(
        [
            ("config-drift", cut, 0, cut_to - 1),
            ("log-start-unexplained", trimmed, 0, start - 1),
            ("log-start-unexplained", raced, 0, RAISED_TO - 1),
        ]
    )


async def starts_everywhere(client: Client, subject: str, start: int) -> bool:
    """Whether every replica has been observed to start there."""
    every = await events(client, subject)
    return {1, 2, 3} <= {each.facts["broker"] for each in every if each.facts.get("start") == start}


async def events(client: Client, subject: str) -> list[LogEvent]:
    """The positions of replicas of one subject, as collected."""
    from penstock.kafka.partition_log import read

    key = f"pkc-000000/{subject}".encode()
    partition = topics.durability_partition(key)
    position, end = await bounds(client, partition)
    result = []
    while position < end:
        fetched = await read(client, partition, position)
        result += [LogEvent.from_bytes(record.value) for record in fetched.records if record.key == key]
        position = fetched.position
    return [each for each in result if each.what is What.REPLICA]


async def _expired_by_size(client: Client) -> None:
    async def shrunk() -> bool:
        return (await bounds(client, TopicPartition("expired", 0)))[0] > 0

    await until(shrunk, "deletion by size")


async def _act_with_intent(client: Client) -> None:
    """As a link does: a log start follows the source, retention is cut, a topic is created again."""
    recorded = IntentLog(client)
    described = (await kafka_topics.describe(client, ["mirror"]))["mirror"]
    assert isinstance(described, kafka_topics.Topic)
    await recorded.record(intents.log_start(described.id, 0, 20, "link west"))
    assert (await delete_before(client, {TopicPartition("mirror", 0): 20}))[TopicPartition("mirror", 0)] == 20
    await recorded.record(intents.config_change(["intended"], "link west"))
    await _cut_and_revert(client, "intended")
    for _ in range(2):
        await ensure_topic(client, kafka_topics.NewTopic("again", replicas={0: (1, 2, 3)}))
        await recorded.record(intents.topic_deletion(["again"], "calibration"))
        assert await kafka_topics.delete(client, names=["again"]) == {"again": None}


async def _cut_and_revert(client: Client, topic: str) -> int:
    """Returns the log start that the cut left behind."""
    resource = configs.topic(topic)
    await configs.alter(client, {resource: configs.changes({"retention.bytes": str(SEGMENT_BYTES)})})

    async def cut() -> bool:
        return (await bounds(client, TopicPartition(topic, 0)))[0] > 0

    await until(cut, "deletion after the cut")
    await configs.alter(client, {resource: configs.changes({"retention.bytes": None})})
    return (await bounds(client, TopicPartition(topic, 0)))[0]


def _damage(fleet: Fleet, name: str) -> None:
    """The first two segments of `trimmed` are gone when the broker starts, as of a disk that loses files.
    The log start of `raced` is raised, as by an update that another one should have preceded."""
    fleet.stop_node(name)
    data = fleet.node(name).layout.data
    directory = next(data.glob("trimmed-0"))
    for log in sorted(directory.glob("*.log"))[:2]:
        for file in directory.glob(f"{log.stem}.*"):
            file.unlink()
    (data / "log-start-offset-checkpoint").write_text(f"0\n1\nraced 0 {RAISED_TO}\n")
    fleet.start_node(name)
