"""The Java clients as two tenants at once, with default settings, and Kafka's own tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
TOPICS = "org.apache.kafka.tools.TopicCommand"


def test_java_clients_of_two_tenants_work_at_once_under_the_same_names(
    java: Callable[..., str], ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")

    printed = java("TwoTenants", ada.bootstrap, topic, group, ada.key, ada.secret, bob.key, bob.secret)

    # name | values | own topic listed | own group listed | partitions | committed | cluster | others' names
    lines = [line.split("|") for line in printed.splitlines() if "|" in line]
    for line, access, name in zip(lines, (ada, bob), ("t0", "t1"), strict=True):
        assert line[:2] == [name, ",".join(f"{name}-{n}" for n in range(10))]
        assert line[2:5] == ["true", "true", "2"]
        assert int(line[5]) >= 10  # records, and the transactions' markers
        assert line[6:] == [access.tenant.id, "false"]


def test_kafkas_own_topic_tool_sees_one_tenants_cluster(
    java: Callable[..., str], ada: Access, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} required username="{ada.key}" password="{ada.secret}";\n'
    )
    place = ("--bootstrap-server", ada.bootstrap, "--command-config", str(properties))

    java(TOPICS, *place, "--create", "--topic", topic, "--partitions", "4")
    described = java(TOPICS, *place, "--describe")

    assert f"Topic: {topic}" in described
    assert "PartitionCount: 4" in described
    assert "lkc-" not in described
