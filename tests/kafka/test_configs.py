"""Configuration on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.kafka.admin import configs
from penstock.kafka.admin.configs import (
    CLUSTER_DEFAULT,
    Change,
    Entry,
    Operation,
    Resource,
    ResourceKind,
    Source,
)
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.model.errors.wire import KafkaMissing, KafkaRefused
from tests.kafka.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kafka.client import Client
    from tests.kafka.conftest import MakeTopic

pytestmark = pytest.mark.kafka


async def value(client: Client, resource: Resource, name: str) -> Entry | None:
    return results_or_raise(await configs.describe(client, [resource], names=[name]))[resource].get(name)


async def has(client: Client, resource: Resource, name: str, expected: str | None) -> bool:
    async def reached() -> bool:
        entry = await value(client, resource, name)
        return (entry.value if entry else None) == expected

    return await eventually(reached)


async def test_a_topic_config_is_set_and_deleted(client: Client, make_topic: MakeTopic) -> None:
    topic = configs.topic(await make_topic())

    results_or_raise(await configs.alter(client, {topic: configs.changes({"retention.ms": "60000"})}))
    assert await has(client, topic, "retention.ms", "60000")
    entry = await value(client, topic, "retention.ms")
    results_or_raise(await configs.alter(client, {topic: configs.changes({"retention.ms": None})}))

    assert entry == Entry("retention.ms", "60000", Source.TOPIC, read_only=False, sensitive=False)
    assert await has(client, topic, "retention.ms", "604800000")


async def test_a_list_config_can_be_appended_to(client: Client, make_topic: MakeTopic) -> None:
    topic = configs.topic(await make_topic())

    results_or_raise(
        await configs.alter(client, {topic: [Change("cleanup.policy", "compact", Operation.APPEND)]})
    )

    assert await has(client, topic, "cleanup.policy", "delete,compact")


async def test_the_cluster_default_is_one_resource_for_all_brokers(client: Client) -> None:
    name = "log.cleaner.backoff.ms"
    results_or_raise(await configs.alter(client, {CLUSTER_DEFAULT: configs.changes({name: "14321"})}))
    try:
        assert await has(client, CLUSTER_DEFAULT, name, "14321")
        assert await has(client, configs.broker(2), name, "14321")
    finally:
        results_or_raise(await configs.alter(client, {CLUSTER_DEFAULT: configs.changes({name: None})}))
    assert await has(client, CLUSTER_DEFAULT, name, None)


async def test_each_broker_describes_its_own_configs(client: Client) -> None:
    brokers = [configs.broker(i) for i in (1, 2, 3)]

    described = results_or_raise(await configs.describe(client, brokers, names=["node.id"]))

    assert {resource.name: entries["node.id"].value for resource, entries in described.items()} == {
        "1": "1",
        "2": "2",
        "3": "3",
    }
    assert all(entries["node.id"].read_only for entries in described.values())


async def test_an_invalid_value_is_rejected_and_a_missing_topic_named(
    client: Client, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, missing = configs.topic(await make_topic()), configs.topic(unique("orders"))
    change = configs.changes({"retention.ms": "soon"})

    altered = await configs.alter(client, {topic: change, missing: change}, validate_only=True)
    described = await configs.describe(client, [missing])

    assert isinstance(altered[topic], KafkaRefused)
    assert isinstance(described[missing], KafkaMissing)
    assert "topic" in str(described[missing])


async def test_resources_with_dynamic_configs_are_listed(
    client: Client, unique: Callable[[str], str]
) -> None:
    group = configs.group(unique("payments"))
    results_or_raise(
        await configs.alter(client, {group: configs.changes({"consumer.session.timeout.ms": "50000"})})
    )

    async def listed() -> bool:
        return group in await configs.list_resources(client, [ResourceKind.GROUP])

    assert await eventually(listed)
    assert await has(client, group, "consumer.session.timeout.ms", "50000")
