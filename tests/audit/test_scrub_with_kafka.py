"""Scrubs of real brokers: what is wrong in one place is found there, and nothing else."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from penstock.audit import reading
from penstock.audit.live import LiveEngine
from penstock.audit.rules.facts import DELETE_FINISHED, DELETE_STARTED
from penstock.audit.scrub.service import Scrubber
from penstock.audit.service import TIER_TOPIC
from penstock.audit.stores import StoreCollector, Stores, archives_of
from penstock.audit.topic_ids import id_text
from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import ensure_topic, read
from penstock.model.durability import What
from penstock.tier.format import LOG
from penstock.tier.store import StoreSettings
from penstock.wire.logs import TIER, Entry, read_framed, write_framed
from tests.audit.damage import first_segment, flip_bit, remove_batch
from tests.audit.test_live_with_kafka import auditor_of, findings, running, topic_id, until
from tests.harness.tiering import FAST, create_tiered, produce, wait_tiered

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

CLUSTER = "pkc-000000"
BATCHES = 20
REPLICAS = {0: (1, 2, 3)}
RULES = ("one-value-per-offset", "offset-holes", "tier-coverage", "tier-object-wrong")
RECORD = os.urandom(2_000)


async def filled(client: Client, topic: str) -> str:
    """A topic with one batch for each offset; returns its subject."""
    await ensure_topic(client, kafka_topics.NewTopic(topic, replicas=REPLICAS))
    for number in range(BATCHES):
        await append(client, TopicPartition(topic, 0), [(None, RECORD + bytes([number]))])
    return f"partition/{await topic_id(client, topic)}/0"


async def test_a_flipped_bit_in_one_replica_is_reported_with_its_offset(
    fleet: Fleet, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    async with Client(fleet.bootstrap, fleet.security()) as client:
        subject = await filled(client, topic)
        sound = Scrubber(CLUSTER, client, bytes_per_second=None, only=[topic])
        (first,) = await sound.run()
        assert await sound.run() == []  # read within the last seven days
        await asyncio.to_thread(flip_bit, first_segment(fleet, "b2", topic), 7)

        (second,) = await Scrubber(CLUSTER, client, bytes_per_second=None, within_ms=0, only=[topic]).run()

        engine = LiveEngine()
        history = await reading.read_history(client, CLUSTER, subject)
        engine.fold(history)
        engine.advance(history[-1].time_ms + 60_000)
        await kafka_topics.delete(client, names=[topic])

    assert (first.first, first.last, first.problems) == (0, BATCHES - 1, [])
    assert first.places == {"broker 1", "broker 2", "broker 3"}
    assert [(each.place, each.first, each.last) for each in second.problems] == [("broker 2", 7, 7)]
    (finding,) = engine.findings.values()
    assert (finding.rule, finding.first, finding.last) == ("one-value-per-offset", 7, 7)
    assert finding.evidence["places"] == ["broker 2"]


@pytest.mark.soak
async def test_damage_of_replicas_and_tier_is_reported_by_the_running_audit(
    make_fleet: Callable[..., Fleet], unique: Callable[[str], str]
) -> None:
    """A flipped bit, a batch missing mid-log, an object removed from the store, and the metadata of a segment
    deleted; nothing else."""
    fleet = await asyncio.to_thread(make_fleet, brokers=3, config=FAST)
    flipped, holed, tiered = unique("flipped"), unique("holed"), unique("tiered")
    tier = StoreSettings("file", "tier", fleet.node("b1").layout.home / "tier")
    async with Client(fleet.bootstrap, fleet.security()) as client:
        auditor = auditor_of(fleet, client)
        auditor.stores = StoreCollector(Stores(tier=tier), period_seconds=2.0)
        async with running(auditor):
            subjects = [await filled(client, flipped), await filled(client, holed)]
            await asyncio.to_thread(create_tiered, fleet, tiered)
            await asyncio.to_thread(produce, fleet, tiered, 600)
            await asyncio.to_thread(wait_tiered, fleet, tiered, 300)
            subjects.append(f"partition/{await topic_id(client, tiered)}/0")
            cluster = (await client.cluster()).id or ""
            stores = archives_of(Stores(tier=tier), cluster)
            clean = await Scrubber(CLUSTER, client, archives=stores, bytes_per_second=None).run()
            assert not [each.problems for each in clean if each.problems]
            assert "tier" in next(each for each in clean if each.topic == tiered).places

            await asyncio.to_thread(_damage, fleet, flipped, holed)
            state = auditor.engine.states[f"{CLUSTER}/{subjects[2]}".encode()]
            segments = sorted((each.segment for each in state.segments.values()), key=lambda s: s.start)
            first, second = segments[:2]
            next(tier.directory.rglob(f"*{first.id}{LOG}")).unlink()  # type: ignore[union-attr]  # a file store
            await _delete_metadata(client, subjects[2], second.id)
            await until(lambda: _in_sync(client, [flipped, holed, tiered]), "replicas in sync again")
            only = [flipped, holed]
            await Scrubber(CLUSTER, client, bytes_per_second=None, within_ms=0, only=only).run()

            async def all_raised() -> bool:
                return len({*RULES} & {each.rule for each in (await findings(client)).values()}) == len(RULES)

            await until(all_raised, "findings of every rule")
            folded = await reading.read_history(client, CLUSTER, subjects[0])
        raised = list((await findings(client)).values())

    stored = sorted((f.rule, f.subject, f.first, f.last) for f in raised if f.rule in RULES)
    others = {(f.rule, f.subject) for f in raised if f.rule not in RULES}
    places = {f.rule: f.evidence.get("places") for f in raised}

    assert any(each.what is What.SCRUBBED for each in folded)
    assert stored == sorted(
        [
            ("one-value-per-offset", subjects[0], 5, 5),
            ("offset-holes", subjects[1], 9, 9),
            ("tier-coverage", subjects[2], second.start, second.end),
            ("tier-object-wrong", subjects[2], first.start, first.end),
        ]
    )
    assert places["one-value-per-offset"] == ["broker 3"]
    # Sweeps may observe that this replica is smaller.
    assert others <= {("replicas-disagree", subjects[1])}


def _damage(fleet: Fleet, flipped: str, holed: str) -> None:
    fleet.stop_node("b3")
    flip_bit(first_segment(fleet, "b3", flipped), 5)
    remove_batch(first_segment(fleet, "b3", holed), 9)
    fleet.start_node("b3")


async def _delete_metadata(client: Client, subject: str, segment: str) -> None:
    """As a broker that deletes a segment would, in the topic of tier metadata (Kora, table 1)."""
    _, topic_id, partition = subject.split("/")
    for number in sorted({each[1] for each in await client.leaders([TIER_TOPIC])}):
        place = TopicPartition(TIER_TOPIC, number)
        records = (await read(client, place, 0)).records
        entries = [read_framed(TIER, each.value) for each in records if each.value is not None]
        for entry in entries:
            values = entry.values
            if "StartOffset" in values and id_text(values["RemoteLogSegmentId"]["Id"]) == segment:
                assert id_text(values["RemoteLogSegmentId"]["TopicIdPartition"]["Id"]) == topic_id, partition
                for state in (DELETE_STARTED, DELETE_FINISHED):
                    update = {
                        "RemoteLogSegmentId": values["RemoteLogSegmentId"],
                        "BrokerId": 1,
                        "EventTimestampMs": values["EventTimestampMs"] + state,
                        "CustomMetadata": None,
                        "RemoteLogSegmentState": state,
                    }
                    row = write_framed(Entry("RemoteLogSegmentMetadataUpdateRecord", 0, update))
                    await append(client, place, [(None, row)])
                return
    raise AssertionError(f"no metadata of {segment}")


async def _in_sync(client: Client, names: list[str]) -> bool:
    described = (await kafka_topics.describe(client, names)).values()
    return all(
        isinstance(each, kafka_topics.Topic) and all(len(p.isr) == 3 for p in each.partitions)
        for each in described
    )
