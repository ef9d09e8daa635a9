"""Scrubs of real brokers: what is wrong in one place is found there, and nothing else."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from penstock.audit import reading
from penstock.audit.live import LiveEngine
from penstock.audit.scrub.service import Scrubber
from penstock.audit.stores import StoreCollector, Stores, archives_of
from penstock.kafka.admin import topics as kafka_topics
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.append import append
from penstock.kafka.client import Client
from penstock.kafka.partition_log import ensure_topic
from penstock.model.durability import What
from penstock.tier.format import LOG
from penstock.tier.store import StoreSettings
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
RULES = ("one-value-per-offset", "offset-holes", "tier-object-wrong")
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
    """A flipped bit, a batch missing mid-log, and an object removed from the store; nothing else."""
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
            log = min(p for p in tier.directory.rglob(f"*{LOG}"))  # type: ignore[union-attr]  # a file store
            (segment,) = [
                each
                for state in auditor.engine.states.values()
                for each in state.segments.values()
                if each.segment.id in log.name
            ]
            log.unlink()
            await until(lambda: _in_sync(client, [flipped, holed, tiered]), "replicas in sync again")
            only = [flipped, holed]
            await Scrubber(CLUSTER, client, bytes_per_second=None, within_ms=0, only=only).run()

            async def all_raised() -> bool:
                return len({*RULES} & {each.rule for each in (await findings(client)).values()}) == 3

            await until(all_raised, "findings of all three rules")
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
            ("tier-object-wrong", subjects[2], segment.segment.start, segment.segment.end),
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


async def _in_sync(client: Client, names: list[str]) -> bool:
    described = (await kafka_topics.describe(client, names)).values()
    return all(
        isinstance(each, kafka_topics.Topic) and all(len(p.isr) == 3 for p in each.partitions)
        for each in described
    )
