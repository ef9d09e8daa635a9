"""A link between two real clusters: mirror, compare, survive a crash, promote, continue."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.kafka.admin import acls, topics, users
from penstock.kafka.admin.acls import Acl, AclFilter, Operation, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.admin.partitions import TopicPartition as KafkaPartition
from penstock.kafka.client import Client
from penstock.link import commands
from penstock.link.mirror_topics import closing_acl
from penstock.link.runner import LinkRunner
from penstock.link.source import log_range
from penstock.link.states import Action, State, Step
from penstock.link.verify import Comparison, compare
from penstock.model.errors.link import LinkExists, LinkStateConflict, LinkUnknown, MirrorTopicTaken
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


def produce_transactions(fleet: Fleet, topic: str) -> Producer:
    """One committed, one aborted, and one that stays open."""
    producer = Producer(fleet.client_config(**{"transactional.id": "payments-1"}))
    producer.init_transactions(60)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction, None)):
        producer.begin_transaction()
        for row in range(5):
            producer.produce(topic, value=b"%d-%d" % (number, row))
        producer.flush(60)
        if end is not None:
            end(60)
    return producer


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


async def until_mirrored(client: Client, task: asyncio.Task[None], source_ends: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        row = await commands.show(client, "east")
        ends = sum(max(0, one["source_end"]) for one in row["progress"].values())
        if row["state"] == State.MIRRORING and row["lag"] == 0 and ends >= source_ends:
            return
        assert not task.done(), f"the link ended: {task.exception()}"
        assert time.monotonic() < deadline, row
        await asyncio.sleep(0.1)


async def differing(source: Client, client: Client, names: list[str]) -> list[Comparison]:
    """Partitions whose batches differ. Nothing compared would be no success."""
    compared = [one for name in names for one in await compare(source, client, name)]
    assert all(one.end > one.start for one in compared)
    return [one for one in compared if not one.same]


async def kill(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_mirror_is_identical_survives_a_crash_and_is_promoted(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    there = await asyncio.to_thread(make_fleet)
    here = await asyncio.to_thread(make_fleet, brokers=2, tls=True)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(Client(there.bootstrap, there.security()))
        client = await stack.enter_async_context(Client(here.bootstrap, here.security()))
        controllers = await stack.enter_async_context(controllers_of(here))
        results_or_raise(await topics.create(source, [
            topics.NewTopic("keyed", 2, 1), topics.NewTopic("payments", 1, 1),
            topics.NewTopic("latest", 1, 1, configs={"cleanup.policy": "compact"}),
        ]))  # fmt: skip
        for name in NAMES:
            await asyncio.to_thread(there.wait_for_leaders, name)
        await asyncio.to_thread(produce, there, "keyed", 0, 500, **{"compression.type": "zstd"})
        await asyncio.to_thread(produce, there, "latest", 0, 100)
        open_producer = await asyncio.to_thread(produce_transactions, there, "payments")
        await asyncio.to_thread(read_values, there, "billing", "keyed", 200)

        await commands.create(source, client, "east", NAMES)
        with pytest.raises(LinkExists):
            await commands.create(source, client, "east", ["others"])
        with pytest.raises(LinkUnknown):
            await commands.show(client, "west")
        settings = shadow_settings(here, tmp_path / "shadow")
        task = asyncio.create_task(LinkRunner("east", source, client, controllers, settings).run())
        await until_mirrored(client, task, 600)
        assert await differing(source, client, NAMES) == []
        with pytest.raises(MirrorTopicTaken):
            await commands.create(source, client, "second", ["keyed"])
        with pytest.raises(LinkStateConflict):
            await commands.delete(client, "east")

        # The process dies: a real broker leads, and users still may not write.
        await kill(task)
        await users.alter(client, upsert=[users.Credential("app", "secret-of-app")])
        allow = Acl("User:app", Operation.ALL, ResourceType.TOPIC, "keyed")
        assert not any((await acls.create(client, [allow])).values())
        await asyncio.to_thread(here.wait_for_leaders, "keyed", 2)
        assert await asyncio.to_thread(write_as_user, here) == "TOPIC_AUTHORIZATION_FAILED"

        # A successor catches up, leads again and continues where the mirror ends.
        await asyncio.to_thread(produce, there, "keyed", 500, 100)
        task = asyncio.create_task(LinkRunner("east", source, client, controllers, settings).run())
        await until_mirrored(client, task, 700)
        assert closing_acl("keyed") in await acls.describe(client, AclFilter())

        # A transaction that the source commits during the promotion is not lost; the lag is 0 only then.
        requested = asyncio.create_task(commands.request(client, "east", Action.PROMOTE))
        await until_step(client, task, Step.FENCED)
        await asyncio.to_thread(open_producer.commit_transaction, 60)
        row = await requested
        await task
        assert row["state"] == State.ACTIVE
        assert await differing(source, client, ["keyed", "latest"]) == []
        described = results_or_raise(await topics.describe(client, NAMES))
        assert all(settings.broker_id not in p.replicas for t in described.values() for p in t.partitions)
        assert await asyncio.to_thread(write_as_user, here) == ""
        await check_clients(here, client)
        await commands.delete(client, "east")
        assert await commands.links(client) == []


async def check_clients(here: Fleet, client: Client) -> None:
    """What consumers and producers find after the promotion."""
    # The group continues at its offsets: 600 records, of which it has read 200, and one new.
    rest = await asyncio.to_thread(read_values, here, "billing", "keyed", 401)
    assert len({value for _, _, value in rest}) == 401
    committed = await asyncio.to_thread(read_values, here, "audit", "payments", 10)
    assert [value for _, _, value in committed] == [b"%d-%d" % (n, row) for n in (0, 2) for row in range(5)]
    # New producers get ids that no mirrored one has: their first batches are not taken for repetitions.
    before = await end_of(client, "latest")
    await asyncio.to_thread(produce_idempotent, here, "latest", 8)
    assert await end_of(client, "latest") == before + 8


def produce_idempotent(fleet: Fleet, topic: str, producers: int) -> None:
    """One record each, from producers that each get an id."""
    for number in range(producers):
        produce(fleet, topic, number, 1, **{"enable.idempotence": True})


async def end_of(client: Client, topic: str) -> int:
    return (await log_range(client, KafkaPartition(topic, 0)))[1]


async def until_step(client: Client, task: asyncio.Task[None], step: Step) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (await commands.show(client, "east"))["step"] != step:
        assert not task.done(), f"the link ended: {task.exception()}"
        assert time.monotonic() < deadline, f"waited for {step}"
        await asyncio.sleep(0.1)


def write_as_user(fleet: Fleet) -> str:
    """The name of the error, or nothing."""
    config = fleet.client_config(**{"sasl.username": "app", "sasl.password": "secret-of-app"})
    producer = Producer(config | {"message.timeout.ms": 90_000})
    errors: list[str] = []
    producer.produce(
        "keyed",
        value=b"written here",
        on_delivery=lambda error, _: errors.append(error.name() if error else ""),
    )
    assert producer.flush(90) == 0
    return errors[0]
