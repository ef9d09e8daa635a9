"""A live topic gets back what was deleted from it, on real brokers, while producers keep writing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from penstock.backup.archive import Archive
from penstock.backup.archiver import Archiver
from penstock.backup.catalogue import Catalogue
from penstock.backup.in_place.plan import InPlaceRequest
from penstock.backup.in_place.restorer import InPlaceRestorer
from penstock.backup.planning import make_in_place_plan
from penstock.kafka.admin import offsets, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition
from penstock.kafka.client import Client
from penstock.link.source import log_range
from penstock.model.errors.backup import RestoreYielded
from penstock.tier.store import Store, StoreSettings
from tests.backup.live_topic import Writer, check_writers, records_of, writing
from tests.backup.test_with_kafka import archived
from tests.harness.shadow import controllers_of, shadow_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

RECORDS = 5000
EXPIRED = 207  # of partition 1, before the backup began
CUT = 1003  # within a batch


def produce(fleet: Fleet, topic: str, count: int) -> None:
    producer = Producer(fleet.client_config(**{"linger.ms": 5, "batch.num.messages": 40}))
    for number in range(count):
        producer.produce(topic, value=b"old %d" % number, partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0


async def test_a_deleted_prefix_returns_while_producers_keep_writing(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=3)
    store = Store(StoreSettings("file", "east", tmp_path / "store"))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(fleet.bootstrap, fleet.security()))
        controllers = await stack.enter_async_context(controllers_of(fleet))
        new = topics.NewTopic("orders", 2, 3, configs={"min.insync.replicas": "2"})
        results_or_raise(await topics.create(client, [new]))
        await asyncio.to_thread(fleet.wait_for_leaders, "orders")
        await asyncio.to_thread(produce, fleet, "orders", RECORDS)
        results_or_raise(await offsets.delete_before(client, {TopicPartition("orders", 1): EXPIRED}))
        before = await asyncio.to_thread(records_of, fleet, "orders", 2)
        assert len(before) == RECORDS - EXPIRED
        original = results_or_raise(await topics.describe(client, ["orders"]))["orders"]
        archiver = Archiver(client, store, selects=lambda name: name == "orders")
        await archiver.resume()
        await archived(client, archiver)
        cut = {TopicPartition("orders", index): CUT for index in range(2)}
        results_or_raise(await offsets.delete_before(client, cut))

        archive, catalogue = Archive(archiver.cluster, [store]), Catalogue(store, archiver.cluster)
        plan = await make_in_place_plan(client, archive, catalogue, InPlaceRequest("orders"))
        assert plan.refusals == ()
        assert [one.end for one in plan.partitions] == [CUT, CUT]
        first, second = (one.start for one in plan.partitions)
        assert first == 0 < second <= EXPIRED, "whole batches are archived"
        settings = shadow_settings(fleet, tmp_path / "shadow")
        restorer = InPlaceRestorer(client, controllers, archive, catalogue, settings)
        inside = Writer("orders", "inside", fleet.client_config())
        gateway = fleet.client_config(bootstrap_servers=fleet.gateway_bootstrap)
        outside = Writer("orders", "outside", gateway)
        committing = Writer("orders", "committing", fleet.client_config(), transactional=True)
        writers = [inside, outside, committing]
        with writing(*writers):
            impatient = replace(plan, request=replace(plan.request, pause_seconds=0.0))
            await restorer.begin(impatient, "restore-1")
            with pytest.raises(RestoreYielded, match="producers have waited"):
                await restorer.run()
            undone = results_or_raise(await topics.describe(client, ["orders"]))["orders"]
            assert [one.replicas for one in undone.partitions] == [
                one.replicas for one in original.partitions
            ]
            assert (await log_range(client, TopicPartition("orders", 0)))[0] == CUT
            restorer = InPlaceRestorer(client, controllers, archive, catalogue, settings)
            await restorer.begin(plan, "restore-2")
            document = await restorer.run()
        for one in writers:
            print(one.name, len(one.acknowledged), "acknowledged, longest gap", round(one.gap_seconds, 2))

        assert document["step"] == "proved"
        assert document["report"]["replicas_proved"] == 6
        after = await asyncio.to_thread(records_of, fleet, "orders", 2)
        assert {place: after.get(place) for place in before} == before
        check_writers(after, writers)
        restored = results_or_raise(await topics.describe(client, ["orders"]))["orders"]
        assert [one.replicas for one in restored.partitions] == [one.replicas for one in original.partitions]
