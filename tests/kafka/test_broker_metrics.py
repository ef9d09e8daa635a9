"""Scraping metrics: parsed from text, and from the exporter of a real broker."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st

from penstock.fleet.spec import Listener
from penstock.kafka.broker_metrics import (
    APIS,
    Moments,
    NodeMetrics,
    RequestTimes,
    Times,
    Traffic,
    moments,
    parse_metrics,
)
from penstock.kafka.metrics_scrape import scrape
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


def test_processors_are_summed_up_by_listener() -> None:
    name = "penstock_broker_network_idle_nanoseconds_total"
    metrics = parse_metrics(
        f'{name}{{listener="GATEWAY",processor="0"}} 1.0E9\n'
        f'{name}{{listener="GATEWAY",processor="1"}} 3.0E9\n'
        'penstock_broker_network_responses_total{listener="GATEWAY",processor="0"} 5.0\n'
        'penstock_broker_network_responses_total{listener="INTERNAL",processor="0"} 2.0\n'
        'penstock_broker_acceptor_blocked_nanoseconds_total{listener="GATEWAY"} 7.0\n'
        'penstock_app_info_start_time_ms{id="7"} 1.7E12\n'
    )

    assert metrics.broker.network_idle_nanoseconds == {"GATEWAY": 2e9}
    assert metrics.broker.network_responses == 7
    assert metrics.broker.acceptor_blocked_nanoseconds == {"GATEWAY": 7}
    assert (metrics.node_id, metrics.start_ms) == (7, 1.7e12)


def test_the_handlers_of_a_controller_on_the_same_node_do_not_count() -> None:
    both = (
        "penstock_broker_handler_idle_nanoseconds_total 7.0\n"
        "penstock_broker_handler_pool_idle_nanoseconds_total 5.0\n"
    )

    assert parse_metrics(both).broker.handler_idle_nanoseconds == 5


def test_beans_without_a_sample_are_named() -> None:
    missing = parse_metrics(TEXT).broker.missing

    assert "kafka.network:type=RequestMetrics,name=ResponseQueueTimeMs,request=FetchFollower" in missing
    assert "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent" in missing


WAITS = st.lists(st.integers(0, 60_000), max_size=40)


@given(WAITS, WAITS)
def test_the_moments_of_a_window_are_those_of_its_values(earlier: list[int], later: list[int]) -> None:
    window = moments(_times(earlier), _times([*earlier, *later]))

    assert window is not None
    assert window.count == len(later)
    if later:
        assert window.mean == pytest.approx(np.mean(later), abs=1e-6)
        assert window.variance == pytest.approx(np.var(later), rel=1e-6, abs=1e-3)


@given(WAITS.filter(len), WAITS)
def test_a_decreasing_counter_yields_no_window(earlier: list[int], later: list[int]) -> None:
    assert moments(_times([*earlier, *later]), _times(later)) is None


def test_a_window_without_requests_is_empty() -> None:
    assert moments(_times([3, 4]), _times([3, 4])) == Moments()


def _times(values: list[int]) -> Times:
    """As Kafka would report them."""
    return Times(
        len(values),
        float(np.mean(values)) if values else 0.0,
        float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
    )


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
def test_a_real_brokers_mean_and_deviation_are_those_of_all_requests_since_its_start(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Times are whole milliseconds, so their sum and the sum of their squares are whole numbers.

    They are so only for an arithmetic mean of all requests and for a sample's deviation, with n − 1. An agent
    reads one attribute after another, so nothing else may produce to this broker.
    """
    fleet = make_fleet()
    (node,) = fleet.brokers
    admin = AdminClient(fleet.client_config())  # its futures fail once it is collected
    admin.create_topics([NewTopic("moments", 1, 1)])["moments"].result(30)
    producer = Producer(fleet.client_config(linger_ms=0))
    for _ in range(50):
        producer.produce("moments", b"x" * 100_000)
        assert producer.flush(30) == 0

    def times() -> tuple[Times, ...]:
        requests = _scraped(node).broker.requests["Produce"]
        return requests.queue, requests.local, requests.response

    wait_for(lambda: {each.count for each in times()} == {50}, what="the times of all 50 requests")
    assert [each for each in times() if not _are_whole_numbers(each)] == []


def _are_whole_numbers(times: Times) -> bool:
    total = times.count * times.mean
    squares = times.deviation**2 * max(0.0, times.count - 1) + times.count * times.mean**2
    return abs(total - round(total)) < 1e-3 and abs(squares - round(squares)) < 1e-2


@pytest.mark.kafka
def test_a_real_broker_exports_every_bean_of_broker_load(fleet: Fleet) -> None:
    for node in fleet.brokers:
        metrics = _scraped(node)
        assert metrics.broker.missing == ()
        assert metrics.start_ms is not None
        assert set(metrics.broker.network_idle_nanoseconds) == {"INTERNAL", "GATEWAY"}
        assert set(metrics.broker.requests) == set(APIS)


@pytest.mark.kafka
def test_a_real_controller_reports_the_number_of_active_brokers(fleet: Fleet) -> None:
    controller = next(node for node in fleet.nodes if not node.spec.is_broker)
    wait_for(lambda: _scraped(controller).controller.brokers_active == 3, what="three active brokers")
    assert _scraped(controller).controller.active == 1


def _scraped(node: Node) -> NodeMetrics:
    """Waits longer than the product does: at the end of a run the shared fleet is slow."""
    return asyncio.run(scrape("127.0.0.1", node.spec.ports[Listener.METRICS], timeout=60.0))
