"""A backup of a real cluster: archive, resume, delete topics, restore them at their offsets."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.backup.archive import Archive
from penstock.backup.archiver import Archiver
from penstock.backup.catalogue import Catalogue
from penstock.backup.cataloguer import Cataloguer
from penstock.backup.planning import Selection, make_plan
from penstock.backup.restorer import Restorer
from penstock.kafka.admin import acls, configs, groups, topics
from penstock.kafka.admin.acls import Acl, AclFilter, Operation, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.link.source import log_range
from penstock.tier.format import id_text
from penstock.tier.store import Store, StoreSettings
from tests.harness.shadow import controllers_of, shadow_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

WAIT_SECONDS = 120.0
NAMES = ["keyed", "payments", "latest"]


def produce(fleet: Fleet, topic: str, first: int, count: int, **config: Any) -> None:
    producer = Producer(fleet.client_config(**config))
    for number in range(first, first + count):
        producer.produce(topic, key=b"k%d" % (number % 7), value=b"value %d" % number)
    assert producer.flush(60) == 0


def produce_transactions(fleet: Fleet, topic: str) -> None:
    """One committed, one aborted."""
    producer = Producer(fleet.client_config(**{"transactional.id": "payments-1"}))
    producer.init_transactions(60)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        for row in range(5):
            producer.produce(topic, value=b"%d-%d" % (number, row))
        producer.flush(60)
        end(60)


def read_values(fleet: Fleet, group: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    """Partition, offset and value of the next records of a group, committed."""
    consumer = Consumer(
        fleet.client_config(
            **{"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
    )
    consumer.subscribe([topic])
    rows: list[tuple[Any, ...]] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(rows) < count:
        assert time.monotonic() < deadline, f"{len(rows)} of {count} records"
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            rows.append((message.partition(), message.offset(), message.value()))
    offsets: dict[int, int] = {}
    for partition, offset, _ in rows:
        offsets[partition] = offset + 1
    consumer.commit(offsets=[TopicPartition(topic, p, o) for p, o in offsets.items()], asynchronous=False)
    consumer.close()
    return rows


async def until_gone(client: Client, names: list[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while set(names) & set(await topics.describe(client)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def archived(client: Client, archiver: Archiver) -> None:
    """Rounds until everything is stored: a follower learns the high watermark a moment later."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        await archiver.round()
        behind = [
            one for one in archiver.logs.values() if one.stored < (await log_range(client, one.place))[1]
        ]
        if archiver.logs and not behind:
            return
        assert time.monotonic() < deadline, behind
        await asyncio.sleep(0.05)


async def test_deleted_topics_come_back_at_their_offsets(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = await asyncio.to_thread(make_fleet, brokers=2)
    store = Store(StoreSettings("file", "east", tmp_path / "store"))
    await store.probe()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(fleet.bootstrap, fleet.security()))
        controllers = await stack.enter_async_context(controllers_of(fleet))
        results_or_raise(await topics.create(client, [
            topics.NewTopic("keyed", 2, 2, configs={"retention.ms": "86400000"}),
            topics.NewTopic("payments", 1, 2),
            topics.NewTopic("latest", 1, 2, configs={"cleanup.policy": "compact"}),
        ]))  # fmt: skip
        for name in NAMES:
            await asyncio.to_thread(fleet.wait_for_leaders, name)
        allow = Acl("User:app", Operation.READ, ResourceType.TOPIC, "keyed")
        assert not any((await acls.create(client, [allow])).values())
        await asyncio.to_thread(produce, fleet, "keyed", 0, 500, **{"compression.type": "zstd"})
        await asyncio.to_thread(produce, fleet, "latest", 0, 100)
        await asyncio.to_thread(produce_transactions, fleet, "payments")
        before = await asyncio.to_thread(read_values, fleet, "billing", "keyed", 200)

        archiver = Archiver(client, store, selects=lambda name: name in NAMES)
        await archiver.resume()
        await archived(client, archiver)
        first = archiver.totals.segments
        await asyncio.to_thread(produce, fleet, "keyed", 500, 100)
        # Another process continues from the store alone.
        archiver = Archiver(client, store, selects=lambda name: name in NAMES)
        await archiver.resume()
        await archived(client, archiver)
        assert 0 < archiver.totals.segments <= 2 < first
        catalogue = Catalogue(store, archiver.cluster)
        cataloguer = Cataloguer(client, catalogue, archiver, interval_ms=60_000)
        assert await cataloguer.round()
        assert not await cataloguer.round()

        described = results_or_raise(await topics.describe(client, NAMES))
        ids = {name: id_text(topic.id) for name, topic in described.items()}
        assert not any((await topics.delete(client, NAMES)).values())
        await until_gone(client, NAMES)
        assert not any((await groups.delete(client, ["billing"])).values())
        assert await cataloguer.round()
        await acls.delete(client, [acls.exactly(allow)])

        settings = shadow_settings(fleet, tmp_path / "shadow")
        for name in NAMES:
            archive = Archive(archiver.cluster, [store])
            plan = await make_plan(client, archive, catalogue, Selection(topic=name))
            assert plan.refusals == ()
            assert plan.request.topic_id == ids[name]
            restorer = Restorer(client, controllers, archive, catalogue, settings)
            await restorer.begin(plan, f"restore-{name}")
            document = await restorer.run()
            assert document["step"] == "opened"
            assert document["report"]["replicas_proved"] == 2 * len(plan.partitions)
        assert allow in await acls.describe(client, AclFilter())
        resource = configs.topic("keyed")
        entries = results_or_raise(await configs.describe(client, [resource]))[resource]
        assert entries["retention.ms"].value == "86400000"
        await asyncio.to_thread(check_clients, fleet, before)


def check_clients(fleet: Fleet, before: list[tuple[Any, ...]]) -> None:
    """The group continues where it was, no record differs, and producers continue."""
    rest = read_values(fleet, "billing", "keyed", 400)
    assert {value for *_, value in before + rest} == {b"value %d" % n for n in range(600)}
    committed = read_values(fleet, "audit", "payments", 5)
    assert [value for *_, value in committed] == [b"0-%d" % row for row in range(5)]
    produce(fleet, "keyed", 600, 10)
    again = read_values(fleet, "billing", "keyed", 10)
    assert {value for *_, value in again} == {b"value %d" % n for n in range(600, 610)}
