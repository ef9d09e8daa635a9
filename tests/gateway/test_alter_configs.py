"""Settings of topics on a real fleet: each resource by itself, and the platform's settings stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.kafka.admin import configs, topics
from penstock.kafka.admin.outcomes import results_or_raise
from penstock.kafka.client import Client
from penstock.wire.error_codes import Code
from tests.gateway.test_platform_requests import call, create, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka
THROTTLES = {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "*"}


async def settings(fleet: Fleet, access: Access, topic: str) -> dict[str, str | None]:
    """What is set on a topic, by anyone."""
    resource = configs.topic(access.prefix + topic)
    async with Client(fleet.bootstrap, fleet.security()) as client:
        entries = results_or_raise(await configs.describe(client, [resource]))[resource]
    return {name: entry.value for name, entry in entries.items() if entry.source == configs.Source.TOPIC}


async def throttled(fleet: Fleet, access: Access, topic: str) -> None:
    """The platform sets replication throttles and the tenant a setting."""
    async with Client(fleet.bootstrap, fleet.security()) as client:
        change = configs.changes({**THROTTLES, "segment.ms": "7200000"})
        results_or_raise(await configs.alter(client, {configs.topic(access.prefix + topic): change}))
    await until(lambda: settings(fleet, access, topic), {**THROTTLES, "segment.ms": "7200000"})


RETAINED = {"retention.ms": "86400000"}


def resource(name: str, values: dict[str, str], kind: int = 2) -> dict[str, Any]:
    entries = [{"Name": key, "Value": value} for key, value in values.items()]
    return {"ResourceType": kind, "ResourceName": name, "Configs": entries}


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_replacing_settings_keeps_those_of_the_platform(
    fleet: Fleet, ada: Access, unique: Callable[[str], str], version: int
) -> None:
    topic = unique("orders")
    await create(ada, topic)
    await throttled(fleet, ada, topic)

    for values in (RETAINED, {}):
        body = {"Resources": [resource(topic, values)], "ValidateOnly": False}
        response = await call(ada, "AlterConfigs", body, version)

        assert [(r["ErrorCode"], r["ResourceName"]) for r in response["Responses"]] == [(Code.NONE, topic)]
        await until(lambda: settings(fleet, ada, topic), THROTTLES | values)
    body = {"Resources": [resource(topic, {})], "ValidateOnly": False}
    again = await call(ada, "AlterConfigs", body, version)

    assert again["Responses"][0]["ErrorCode"] == Code.NONE


@pytest.mark.parametrize("api", ["AlterConfigs", "IncrementalAlterConfigs"])
async def test_each_resource_is_changed_or_refused_by_itself(
    fleet: Fleet, ada: Access, unique: Callable[[str], str], api: str
) -> None:
    good, bad = unique("orders"), unique("orders")
    await create(ada, good)
    await create(ada, bad)
    resources = [
        resource(good, RETAINED),
        resource(bad, THROTTLES),
        resource("1", {"log.retention.ms": "1"}, kind=4),
        resource(unique("missing"), RETAINED),
        resource("x" * 250, RETAINED),
    ]
    if api == "IncrementalAlterConfigs":
        for one in resources:
            one["Configs"] = [{**config, "ConfigOperation": 0} for config in one["Configs"]]

    response = await call(ada, api, {"Resources": resources, "ValidateOnly": False})

    codes = {r["ResourceName"]: r["ErrorCode"] for r in response["Responses"]}
    assert [codes[one["ResourceName"]] for one in resources] == [
        Code.NONE,
        Code.INVALID_CONFIG,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.INVALID_TOPIC_EXCEPTION,
    ]
    await until(lambda: settings(fleet, ada, good), RETAINED)
    assert await settings(fleet, ada, bad) == {}


async def test_retention_bytes_and_tiering_do_not_meet(
    fleet: Fleet, ada: Access, unique: Callable[[str], str]
) -> None:
    """KAFKA-20732: refused by gateways in any order of changes, and by controllers in one request."""
    topic = unique("orders")
    tiered, limited = {"remote.storage.enable": "true"}, {"retention.bytes": "1000000000"}

    async def created(values: dict[str, str]) -> int:
        new = {"Name": topic, "NumPartitions": 1, "ReplicationFactor": -1, "Assignments": []}
        new["Configs"] = resource(topic, values)["Configs"]
        response = await call(ada, "CreateTopics", {"Topics": [new], "TimeoutMs": 60_000})
        return int(response["Topics"][0]["ErrorCode"])

    async def changed(values: dict[str, str]) -> int:
        one = resource(topic, values)
        one["Configs"] = [{**config, "ConfigOperation": 0} for config in one["Configs"]]
        body = {"Resources": [one], "ValidateOnly": False}
        response = await call(ada, "IncrementalAlterConfigs", body)
        return int(response["Responses"][0]["ErrorCode"])

    assert await created(tiered | limited) == Code.INVALID_CONFIG
    assert await created(tiered) == Code.NONE
    await until(lambda: settings(fleet, ada, topic), tiered)
    assert await changed(limited) == Code.INVALID_CONFIG
    assert await changed({"retention.bytes": "-1"}) == Code.NONE
    body = {"Resources": [resource(topic, tiered | limited)], "ValidateOnly": False}
    replaced = await call(ada, "AlterConfigs", body)
    assert replaced["Responses"][0]["ErrorCode"] == Code.INVALID_CONFIG
    async with Client(fleet.bootstrap, fleet.security()) as client:
        both: dict[str, str | None] = {**tiered, **limited}
        new = topics.NewTopic(unique("direct"), 1, configs=both)
        (refusal,) = (await topics.create(client, [new])).values()
    assert "KAFKA-20732" in str(refusal)
