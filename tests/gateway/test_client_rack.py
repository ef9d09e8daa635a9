"""Consumers with `client.rack` read from the replica in their zone, through the gateway."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.fleet import wait_for
from tests.harness.gateway import new_access

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.gateway import Access, RunningGateway

pytestmark = pytest.mark.kafka

PARTITIONS = 3
RECORDS = 300
VALUE = bytes(20_000)
NEAR = "c"  # the zone of all clients
SETTINGS = {"client_zones": ((ipaddress.ip_network("127.0.0.0/8"), NEAR),)}


def write_all(access: Access) -> None:
    admin = AdminClient(access.client_config())
    (created,) = admin.create_topics([NewTopic("t", PARTITIONS)]).values()
    created.result(30)
    producer = Producer(access.client_config(acks="all"))
    for number in range(RECORDS):
        producer.produce("t", VALUE, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def read_all(access: Access, topic: str, **more: object) -> None:
    consumer = Consumer(access.client_config(group_id="readers", enable_auto_commit="false", **more))
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    read = 0

    def one_more() -> bool:
        nonlocal read
        read += sum(message.error() is None for message in consumer.consume(500, 0.2))
        return read >= RECORDS

    wait_for(one_more, what="every record")
    consumer.close()


def test_a_consumer_in_a_zone_reads_no_bytes_from_other_zones(
    make_gateway: Callable[..., RunningGateway],
) -> None:
    running = make_gateway(new_access(), settings=SETTINGS)
    (access,) = running.accesses
    usage = running.gateway.usage

    def crossed() -> int:
        zones = usage[access.tenant.id].zones.items()
        return sum(each.bytes_out for (broker, client), each in zones if client and client != broker)

    write_all(access)
    before = crossed()
    read_all(access, "t")
    without = crossed() - before
    read_all(access, "t", client_rack=NEAR)
    with_rack = crossed() - before - without

    assert without > RECORDS * len(VALUE) / 2  # two of three leaders are elsewhere
    assert with_rack <= 0.05 * without
    assert {client for _, client in usage[access.tenant.id].zones} == {NEAR}


def test_the_rack_of_a_fetch_names_the_clients_zone(make_gateway: Callable[..., RunningGateway]) -> None:
    running = make_gateway(new_access())
    (access,) = running.accesses
    write_all(access)

    read_all(access, "t", client_rack=NEAR)

    zones = running.gateway.usage[access.tenant.id].zones
    fetched = {pair: each.bytes_out for pair, each in zones.items() if pair[1] == NEAR}
    assert fetched[NEAR, NEAR] > RECORDS * len(VALUE) * 0.9
