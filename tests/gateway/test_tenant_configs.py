"""Settings: every one of this Kafka version is decided on, and a tenant's values hurt no shared broker."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from penstock.gateway.tenancy.cluster_view import broker_config
from penstock.gateway.tenancy.tenant_configs import (
    DELETE,
    GROUP_CONFIGS,
    REFUSED_CONFIGS,
    SHOWN_BROKER_CONFIGS,
    TENANT_CONFIGS,
    TOPIC_CONFIGS,
    config_refusal,
    may_conflict,
    tiering_refusal,
)
from penstock.kafka.admin.configs import ResourceKind
from penstock.kafka.connection import Connection
from penstock.wire.error_codes import Code
from tests.harness.gateway import wait_for_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access

HIDDEN_BROKER_CONFIGS = Path(__file__).with_name("broker_configs_hidden.txt").read_text().split()
SHOWN = "ConfigurationKeys"
HARMFUL = [
    ("segment.ms", "1"),
    ("segment.ms", "599999"),
    ("flush.messages", "1"),
    ("flush.ms", "0"),
    ("file.delete.delay.ms", str(2**63 - 1)),
    ("segment.index.bytes", "4"),
    ("segment.index.bytes", str(2**31 - 1)),
    ("segment.bytes", "1048576"),
    ("index.interval.bytes", "0"),
    ("preallocate", "TRUE"),
    ("min.cleanable.dirty.ratio", "0"),
    ("min.cleanable.dirty.ratio", "NaN"),
    ("max.compaction.lag.ms", "1"),
    ("max.message.bytes", str(2**31 - 1)),
    ("compression.zstd.level", "22"),
    ("cleanup.policy", "delete,shred"),
    ("segment.ms", "\u0661\u0661\u0661\u0661\u0661\u0661\u0661"),  # digits, but not ASCII's
    ("segment.ms", ""),
]


@pytest.mark.kafka
def test_every_setting_of_this_kafka_is_decided_on(java: Callable[..., str]) -> None:
    """A new setting goes into a table of `tenant_configs` or the list of hidden ones, whichever is right."""
    known: dict[str, dict[str, str]] = defaultdict(dict)
    for line in java("ConfigNames").splitlines():
        kind, name, _, default, _ = line.split("\t")
        known[kind][name] = default
    decided = broker_config({SHOWN: None, "ResourceName": "1"}, [], 3, 4)["Configs"]
    brokers = {*SHOWN_BROKER_CONFIGS, *HIDDEN_BROKER_CONFIGS, *(config["Name"] for config in decided)}

    assert set(known["topic"]) | set(known["group"]) == {*TENANT_CONFIGS, *REFUSED_CONFIGS}
    assert set(TOPIC_CONFIGS) <= set(known["topic"])
    assert set(GROUP_CONFIGS) <= set(known["group"])
    assert set(known["broker"]) == brokers
    assert not set(SHOWN_BROKER_CONFIGS) & set(HIDDEN_BROKER_CONFIGS)
    for name in TENANT_CONFIGS:  # what a broker does by default can be set
        default = (known["topic"] | known["group"])[name].strip("[]")
        assert config_refusal(name, default) is None


@pytest.mark.parametrize(("name", "value"), HARMFUL)
def test_a_value_that_hurts_shared_brokers_is_refused(name: str, value: str) -> None:
    text = config_refusal(name, value)

    assert text is not None
    assert name in text
    assert repr(value) in text
    assert str(TENANT_CONFIGS[name]) in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.ms", " 600000\n"),
        ("cleanup.policy", "compact, delete"),
        ("cleanup.policy", ""),
        ("segment.bytes", "52428800"),  # of Kafka Streams
        ("retention.ms", "-1"),
        ("min.cleanable.dirty.ratio", ".5"),
        ("remote.storage.enable", "True"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.delivery.count.limit", "3"),
    ],
)
def test_usual_values_pass(name: str, value: str) -> None:
    assert config_refusal(name, value) is None


def test_a_setting_that_is_removed_needs_no_value() -> None:
    assert config_refusal("segment.ms", "", DELETE) is None
    assert config_refusal("segment.ms", None) is None
    assert config_refusal("unclean.leader.election.enable", "", DELETE) is not None


@pytest.mark.kafka
async def test_values_are_checked_wherever_they_are_set(ada: Access, unique: Callable[[str], str]) -> None:
    harmful = {"Name": "segment.ms", "Value": "1"}
    topic: dict[str, Any] = {
        "Name": unique("orders"),
        "NumPartitions": 1,
        "ReplicationFactor": 1,
        "Assignments": [],
    }
    resource = {"ResourceType": ResourceKind.TOPIC, "ResourceName": topic["Name"]}
    bodies: dict[str, dict[str, Any]] = {
        "CreateTopics": {"Topics": [{**topic, "Configs": [harmful]}], "TimeoutMs": 10_000},
        "IncrementalAlterConfigs": {
            "Resources": [{**resource, "Configs": [{**harmful, "ConfigOperation": 0}]}]
        },
        "AlterConfigs": {"Resources": [{**resource, "Configs": [harmful]}]},
    }
    host, port = ada.bootstrap.split(",")[0].split(":")
    async with await Connection.open(host, int(port), ada.security()) as connection:
        created = await connection.call(
            "CreateTopics", {"Topics": [{**topic, "Configs": []}], "TimeoutMs": 10_000}
        )
        assert created["Topics"][0]["ErrorCode"] == Code.NONE
        await wait_for_topic(ada, topic["Name"])

        for api, body in bodies.items():
            response = await connection.call(api, body)

            (entry,) = response["Topics" if api == "CreateTopics" else "Responses"]
            assert entry["ErrorCode"] == Code.INVALID_CONFIG, api
            assert entry["ErrorMessage"] == "segment.ms cannot be '1': allowed is at least 600000.", api


@pytest.mark.kafka
def test_a_tenant_sees_the_rack_of_a_broker(ada: Access) -> None:
    client = AdminClient(ada.client_config())

    (described,) = client.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()

    assert described.result()["broker.rack"].value == "a"


@pytest.mark.kafka
def test_group_settings_of_this_version_can_be_set(ada: Access, unique: Callable[[str], str]) -> None:
    client = AdminClient(ada.client_config())
    settings = {
        "share.delivery.count.limit": "3",
        "share.partition.max.record.locks": "500",
        "share.renew.acknowledge.enable": "false",
        "share.assignment.interval.ms": "2000",
        "consumer.assignment.interval.ms": "2000",
    }
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    group = ConfigResource(ResourceType.GROUP, unique("readers"), incremental_configs=entries)

    (changed,) = client.incremental_alter_configs([group]).values()

    changed.result()


@pytest.mark.parametrize(
    ("tiered", "limit", "refused"),
    [
        ("true", "5", True),
        (" True ", " 0", True),
        ("true", "-1", False),
        ("true", None, False),
        ("false", "5", False),
        (None, "5", False),
    ],
)
def test_a_tiered_topic_has_no_retention_bytes(tiered: str | None, limit: str | None, refused: bool) -> None:
    changes = {"remote.storage.enable": tiered, "retention.bytes": limit}

    assert (tiering_refusal(changes) is not None) is refused


def test_only_changes_that_could_conflict_need_the_current_settings() -> None:
    assert may_conflict({"retention.bytes": "5"})
    assert may_conflict({"remote.storage.enable": "true"})
    assert not may_conflict({"retention.bytes": "-1", "remote.storage.enable": "false", "retention.ms": "5"})
