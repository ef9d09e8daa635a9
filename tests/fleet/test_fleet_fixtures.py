"""The fleet fixtures themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka


def test_the_shared_fleet_stores_and_returns_a_record(fleet: Fleet, unique: Callable[[str], str]) -> None:
    topic = unique("orders")
    admin = AdminClient(fleet.client_config())
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)
    fleet.wait_for_leaders(topic, 3)

    producer = Producer(fleet.client_config(acks="all"))
    producer.produce(topic, b"coffee", key=b"k")
    assert producer.flush(30) == 0

    config = {"group.id": unique("group"), "auto.offset.reset": "earliest"}
    consumer = Consumer(fleet.client_config() | config)
    consumer.subscribe([topic])
    record = consumer.poll(30)
    consumer.close()
    assert record is not None
    assert record.value() == b"coffee"


def test_a_separate_fleet_can_be_killed_and_restarted(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet()
    fleet.kill("b1")
    assert fleet.node("b1").running() is None
    fleet.start_node("b1")
    assert AdminClient(fleet.client_config()).list_topics(timeout=10).cluster_id == fleet.kafka_id
