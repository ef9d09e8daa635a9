"""Scraping metrics: parsed from text, and from the exporter of a real broker."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.fleet.spec import Listener
from penstock.kafka.broker_metrics import NodeMetrics, RequestTimes, Times, Traffic, parse_metrics, scrape
from penstock.model.errors.fleet import MetricsUnreachable
from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.fleet.node import Node
    from tests.harness.fleet import Fleet

TEXT = """\
# HELP jvm_classes_loaded_total ignored
jvm_classes_loaded_total 8432.0
process_cpu_seconds_total 3.5
process_resident_memory_bytes 1.7E8
penstock_broker_handler_idle_ratio 0.25
penstock_broker_bytes_in_total 549997.0
penstock_broker_topic_bytes_in_total{topic="orders.eu"} 12.0
penstock_broker_topic_messages_in_total{topic="orders.eu"} 3.0
penstock_broker_requests_total{api="Produce"} 7.0
penstock_broker_request_queue_ms{api="Produce",stat="p99"} 4.0
penstock_broker_request_queue_size 2.0
penstock_broker_something_of_a_later_version 1.0
penstock_controller_active 1.0
"""


def test_samples_become_typed_values() -> None:
    metrics = parse_metrics(TEXT)
    assert (metrics.cpu_seconds, metrics.memory_bytes) == (3.5, 1.7e8)
    assert metrics.broker.handler_idle_ratio == 0.25
    assert metrics.broker.request_queue_size == 2.0
    assert metrics.broker.traffic == Traffic(bytes_in=549997.0)
    assert metrics.broker.topics == {"orders.eu": Traffic(bytes_in=12.0, messages_in=3.0)}
    assert metrics.broker.requests == {"Produce": RequestTimes(7.0, queue=Times(p99=4.0))}
    assert metrics.controller.active == 1.0


async def test_a_closed_port_is_an_error_that_names_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(MetricsUnreachable, match=f"127.0.0.1:{port}"):
            await scrape("127.0.0.1", port)


async def test_a_missing_response_is_an_error() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the scraper has gone
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        with pytest.raises(MetricsUnreachable, match="no response"):
            await scrape("127.0.0.1", server.sockets[0].getsockname()[1], timeout=0.1)


@pytest.mark.parametrize(
    "line",
    [
        'penstock_broker_requests_total{who="x"} 1',
        'penstock_broker_request_queue_ms{api="Produce",stat="p1"} 1',
    ],
)
async def test_metrics_with_unexpected_labels_are_an_error(line: str) -> None:
    page = f'HTTP/1.0 200 OK\r\n\r\npenstock_broker_requests_total{{api="Produce"}} 7\n{line}\n'

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(page.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    async with server:
        with pytest.raises(MetricsUnreachable):
            await scrape("127.0.0.1", server.sockets[0].getsockname()[1])


@pytest.mark.kafka
def test_a_real_broker_counts_what_was_produced(fleet: Fleet, unique: Callable[[str], str]) -> None:
    topic = unique("metered")
    admin = AdminClient(fleet.client_config())
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    producer = Producer(fleet.client_config())
    for _ in range(100):
        producer.produce(topic, b"x" * 1000)
    assert producer.flush(30) == 0

    def messages() -> float:
        return sum(_scraped(node).broker.topics.get(topic, Traffic()).messages_in for node in fleet.brokers)

    wait_for(lambda: messages() == 100, what="100 messages in the metrics")
    leader = next(m for node in fleet.brokers if topic in (m := _scraped(node)).broker.topics)
    assert leader.broker.topics[topic].bytes_in >= 100 * 1000
    assert leader.broker.requests["Produce"].count > 0
    assert leader.cpu_seconds > 0


@pytest.mark.kafka
def test_a_real_controller_reports_the_number_of_active_brokers(fleet: Fleet) -> None:
    controller = next(node for node in fleet.nodes if not node.spec.is_broker)
    wait_for(lambda: _scraped(controller).controller.brokers_active == 3, what="three active brokers")
    assert _scraped(controller).controller.active == 1


def _scraped(node: Node) -> NodeMetrics:
    return asyncio.run(scrape("127.0.0.1", node.spec.ports[Listener.METRICS]))
