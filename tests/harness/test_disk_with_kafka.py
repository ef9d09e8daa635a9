"""A real broker on a faulty disk: the faults affect Java, and the broker recovers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.fleet.layout import Layout
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.disk import FaultyDisk
    from tests.harness.fleet import Fleet

pytestmark = pytest.mark.kafka

SECONDS_MAX = 60


class Broker:
    """One node with its data on a faulty disk, and a topic."""

    def __init__(self, fleet: Fleet, disk: FaultyDisk) -> None:
        self.fleet, self.disk = fleet, disk
        admin = AdminClient(fleet.client_config())
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(SECONDS_MAX)
        self.producer = Producer(fleet.client_config(acks="all", linger_ms=0))

    def produce(self) -> list[str]:
        """Produce one record; returns a list that gets its outcome."""
        ended: list[str] = []
        self.producer.produce(
            "orders",
            b"x" * 1000,
            on_delivery=lambda error, _: ended.append(error.name() if error else "delivered"),
        )
        return ended

    def delivered(self, ended: list[str]) -> bool:
        wait_for(lambda: self.producer.poll(0.1) is not None and ended, what="the delivery report")
        return ended == ["delivered"]


@pytest.fixture
def broker(
    tmp_path: Path, make_disk: Callable[[Path], FaultyDisk], make_fleet: Callable[..., Fleet]
) -> Iterator[Broker]:
    disk = make_disk(Layout(tmp_path / "fleet-0").node("home", "b1").data)
    fleet = make_fleet(environment={"b1": disk.environment()})
    assert fleet.node("b1").layout.data == disk.directory
    broker = Broker(fleet, disk)
    assert broker.delivered(broker.produce())
    yield broker
    broker.producer.purge()
    broker.producer.flush(SECONDS_MAX)


def test_a_broker_waits_for_a_hanging_disk_and_continues_when_it_heals(broker: Broker) -> None:
    broker.disk.hang()
    ended = broker.produce()
    wait_for(lambda: broker.producer.poll(0.05) is not None and broker.disk.hits, what="a write to hang")
    assert ended == []

    broker.disk.heal()

    assert broker.delivered(ended)


def test_a_broker_whose_only_disk_is_full_stops_and_restarts_with_space(broker: Broker) -> None:
    node = broker.fleet.node("b1")
    broker.disk.full()
    broker.produce()

    wait_for(
        lambda: broker.producer.poll(0.05) is not None and node.running() is None, what="the broker to stop"
    )

    assert "No space left on device" in node.layout.log.read_text()
    broker.disk.heal()
    broker.fleet.start_node("b1")
    assert broker.delivered(broker.produce())
