"""The Java clients as two tenants at once, with their own defaults, and Kafka's own tools."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.fleet.jars import cache_directory, load_jars
from penstock.fleet.java import find_java

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ground.gateway import Access

pytestmark = pytest.mark.kafka
SECONDS = 90.0
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PROGRAM = Path(__file__).parent / "TwoTenants.java"
TOPICS = "org.apache.kafka.tools.TopicCommand"
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")


def java(main: str, *arguments: str) -> str:
    """Run a class, or a source file, with Kafka's jars."""
    classpath = f"{load_jars(cache_directory()).directory}/*"
    done = subprocess.run(
        [str(find_java().executable), *QUICK, "-cp", classpath, main, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_java_clients_of_two_tenants_work_at_once_under_the_same_names(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")

    printed = java(str(PROGRAM), ada.bootstrap, topic, group, ada.key, ada.secret, bob.key, bob.secret)

    # name | values | own topic listed | own group listed | partitions | committed | cluster | foreign names
    lines = [line.split("|") for line in printed.splitlines() if "|" in line]
    for line, access, name in zip(lines, (ada, bob), ("t0", "t1"), strict=True):
        assert line[:2] == [name, ",".join(f"{name}-{n}" for n in range(10))]
        assert line[2:5] == ["true", "true", "2"]
        assert int(line[5]) >= 10  # records, and the transactions' markers
        assert line[6:] == [access.tenant.id, "false"]


def test_kafkas_own_topic_tool_sees_one_tenants_cluster(
    ada: Access, tmp_path: Path, unique: Callable[[str], str]
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
