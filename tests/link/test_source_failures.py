"""What a source can do to its link: die for good, truncate after an unclean election, be created again."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from penstock.kafka.admin import acls, configs, quotas, topics
from penstock.kafka.admin.acls import Acl, Operation, ResourceType
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.link import commands
from penstock.link.runner import LinkRunner
from penstock.link.states import Action, State
from penstock.model.errors import PenstockError
from tests.harness.shadow import controllers_of, shadow_settings
from tests.link.test_with_kafka import differing, kill, produce, read_values, until_mirrored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.fleet import Fleet

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

WAIT_SECONDS = 150.0
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


async def until(row_has: Callable[[dict[str, Any]], bool], client: Client, task: asyncio.Task[None]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not row_has(row := await commands.show(client, "east")):
        assert "keyed-0" not in row["failed"], row["failed"]
        assert not task.done(), f"the link ended: {task.exception()}"
        assert time.monotonic() < deadline, row
        await asyncio.sleep(0.2)


async def test_a_mirror_follows_a_truncated_source_and_survives_its_loss(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    there = await asyncio.to_thread(make_fleet, brokers=2, zones=["a", "b"])
    here = await asyncio.to_thread(make_fleet, brokers=2, zones=["a", "b"], tls=True)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(Client(there.bootstrap, there.security()))
        client = await stack.enter_async_context(Client(here.bootstrap, here.security()))
        controllers = await stack.enter_async_context(controllers_of(here))
        new = [
            topics.NewTopic("keyed", replicas={0: [node.spec.id for node in there.brokers]},
                            configs=UNCLEAN),
            topics.NewTopic("brief", 1, 2),
        ]  # fmt: skip
        results_or_raise(await topics.create(source, new))
        for name in ("keyed", "brief"):
            await asyncio.to_thread(there.wait_for_leaders, name)
        await asyncio.to_thread(produce, there, "keyed", 0, 100)
        await asyncio.to_thread(produce, there, "brief", 0, 20)
        await asyncio.to_thread(read_values, there, "billing", "keyed", 40)
        await commands.create(source, client, "east", ["keyed", "brief"])
        settings = shadow_settings(here, tmp_path / "shadow")

        def start() -> asyncio.Task[None]:
            return asyncio.create_task(LinkRunner("east", source, client, controllers, settings).run())

        task = start()
        await until_mirrored(client, task, 120)

        await metadata_follows(source, client, task)
        await truncation_follows(there, source, client, task)
        await other_topic_does_not_follow(there, source, client, task)

        # The source is lost, the process dies, and a new one fails over without the source.
        await asyncio.to_thread(there.destroy)
        await kill(task)
        task = start()
        row = await commands.request(client, "east", Action.FAILOVER, seconds=WAIT_SECONDS)
        await task
        assert row["state"] == State.ACTIVE
        rest = await asyncio.to_thread(read_values, here, "billing", "keyed", 140)
        values = [value for _, _, value in rest]
        assert values == [b"value %d" % n for n in (*range(40, 100), *range(2000, 2080))]
        described = results_or_raise(await topics.describe(client, ["keyed"]))["keyed"]
        assert all(settings.broker_id not in partition.replicas for partition in described.partitions)


async def metadata_follows(source: Client, client: Client, task: asyncio.Task[None]) -> None:
    """Configs, ACLs and quotas."""
    resource = configs.topic("keyed")
    altered = configs.changes({"retention.ms": "987654321", "segment.ms": "7654321"})
    results_or_raise(await configs.alter(source, {resource: altered}))
    allow = Acl("User:app", Operation.READ, ResourceType.TOPIC, "keyed")
    results_or_raise(await acls.create(source, [allow]))
    entity = quotas.entity(user="app")
    results_or_raise(await quotas.alter(source, {entity: {quotas.PRODUCER_BYTES: 12345.0}}))
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        entries = results_or_raise(await configs.describe(client, [resource]))[resource]
        followed = (
            entries["retention.ms"].value == "987654321"
            and entries["segment.ms"].value == "7654321"
            and allow in await acls.describe(client)
            and (await quotas.describe(client)).get(entity) == {quotas.PRODUCER_BYTES: 12345.0}
        )
        if followed:
            break
        assert time.monotonic() < deadline, await commands.show(client, "east")
        assert not task.done(), f"the link ended: {task.exception()}"
        await asyncio.sleep(0.5)


async def truncation_follows(there: Fleet, source: Client, client: Client, task: asyncio.Task[None]) -> None:
    """An unclean election on the source: 50 mirrored records are gone there, others take their offsets."""
    first, second = (node.name for node in there.brokers)
    await asyncio.to_thread(there.kill, second)
    await asyncio.to_thread(produce, there, "keyed", 1000, 50, acks="1")
    await until(lambda row: row["progress"]["keyed-0"]["end"] >= 150, client, task)
    await until(lambda row: row["progress"]["keyed-0"]["lag"] == 0, client, task)
    await asyncio.to_thread(there.kill, first)
    await asyncio.to_thread(there.start_node, second)
    await asyncio.to_thread(produce, there, "keyed", 2000, 80)
    await asyncio.to_thread(there.start_node, first)
    await until(
        lambda row: row["progress"]["keyed-0"]["end"] == 180 and row["progress"]["keyed-0"]["lag"] == 0,
        client,
        task,
    )
    assert await differing(source, client, ["keyed", "brief"]) == []


async def other_topic_does_not_follow(
    there: Fleet, source: Client, client: Client, task: asyncio.Task[None]
) -> None:
    """A topic that is created again under the same name is another one: its mirror stops."""
    results_or_raise(await topics.delete(source, ["brief"]))
    await recreate(source, "brief")
    await asyncio.to_thread(there.wait_for_leaders, "brief")
    await asyncio.to_thread(produce, there, "brief", 5000, 60)
    await until(lambda row: bool(row["failed"].get("brief-0")), client, task)
    row = await commands.show(client, "east")
    assert row["progress"]["brief-0"]["end"] == 20
    assert not row["failed"].get("keyed-0")


async def recreate(client: Client, name: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            results_or_raise(await topics.create(client, [topics.NewTopic(name, 1, 2)]))
        except PenstockError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        else:
            return
