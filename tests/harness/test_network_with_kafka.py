"""A link to a real broker: a client that was cut off recovers when the link heals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.fleet.spec import Listener
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.fleet import Fleet
    from tests.harness.network import Link

pytestmark = pytest.mark.kafka

SECONDS_MAX = 60


@pytest.fixture
def link(make_link: Callable[[str, int], Link]) -> Link:
    return make_link("127.0.0.1", 1)  # the broker's port is known once it runs


@pytest.fixture
def linked_fleet(link: Link, make_fleet: Callable[..., Fleet]) -> Fleet:
    """One node whose gateway listener advertises the link's port."""
    fleet = make_fleet(combined=True, zones=["a"], brokers=[{"advertised": {"gateway": link.port}}])
    link.target = ("127.0.0.1", fleet.node("b1").spec.ports[Listener.GATEWAY])
    return fleet


def test_a_record_sent_during_a_cut_is_delivered_after_it(linked_fleet: Fleet, link: Link) -> None:
    config = linked_fleet.client_config(bootstrap_servers=linked_fleet.gateway_bootstrap)
    assert config["bootstrap.servers"] == link.address
    admin = AdminClient(config)  # kept alive, because its futures end with it
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(SECONDS_MAX)
    producer, ended = Producer(config), list[bool]()
    producer.produce("orders", b"before")
    assert producer.flush(SECONDS_MAX) == 0

    link.cut()
    passed = link.bytes_there  # a client sends more than the test's requests
    producer.produce("orders", b"during", on_delivery=lambda error, _: ended.append(error is None))
    assert producer.flush(0.5) == 1
    assert link.bytes_there == passed

    link.heal()
    wait_for(lambda: producer.poll(0.1) is not None and ended, what="the delivery report")
    assert ended == [True]
