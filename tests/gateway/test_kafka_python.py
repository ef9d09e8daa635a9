"""kafka-python as two tenants with the same names: another implementation, with other versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kafka.admin import NewTopic

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access

pytestmark = pytest.mark.kafka


def login(access: Access) -> dict[str, Any]:
    return {
        "bootstrap_servers": access.bootstrap.split(","),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": access.key,
        "sasl_plain_password": access.secret,
    }


def test_two_tenants_produce_and_consume_under_the_same_names(
    ada: Access, bob: Access, unique: Callable[[str], str]
) -> None:
    topic, group = unique("orders"), unique("readers")
    for access, name in ((ada, b"ada"), (bob, b"bob")):
        admin = KafkaAdminClient(**login(access))
        admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=3)])
        admin.close()
        producer = KafkaProducer(**login(access))
        for number in range(10):
            producer.send(topic, name + b"-%d" % number)
        producer.flush(30)
        producer.close()

    read = {access.key: consumed(access, topic, group, 10) for access in (ada, bob)}

    assert read[ada.key] == {b"ada-%d" % n for n in range(10)}
    assert read[bob.key] == {b"bob-%d" % n for n in range(10)}
    admin = KafkaAdminClient(**login(ada))
    assert topic in admin.list_topics()
    assert not any(name.startswith("lkc-") for name in admin.list_topics())
    admin.close()


def consumed(access: Access, topic: str, group: str, count: int) -> set[bytes]:
    consumer = KafkaConsumer(
        topic, group_id=group, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **login(access)
    )
    values: set[bytes] = set()
    for message in consumer:
        values.add(message.value)
        if len(values) == count:
            break
    consumer.close()
    return values
