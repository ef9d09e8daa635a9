"""Scrape the metrics of a node and parse them into typed values.

Metric names come from the fleet's rule file for the JMX exporter (`fleet/jmx.yaml`). Counters are
cumulative since the node started, so a rate takes two scrapes. Log sizes are not here: Kafka reports
them by partition, and one `DescribeLogDirs` call returns them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.model.errors.fleet import MetricsUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCRAPE_SECONDS_MAX: Final = 5.0
SCRAPE_BYTES_MAX: Final = 32 << 20
_PREFIX: Final = "penstock_"
# Ours, or that of the JMX exporter's default names (Strimzi, MSK): kafka_server_app_info_starttimems{id="1"}
_APP_INFO: Final = re.compile(r'^(?:penstock|kafka_server)_app_info_\w*\{(?:[^}]*,)?id="(\d+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds, over Kafka's decaying sample."""

    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """How long the requests of one API took, by phase."""

    count: float = 0.0
    total: Times = Times()
    queue: Times = Times()
    local: Times = Times()
    remote: Times = Times()


@dataclass(frozen=True, slots=True)
class Traffic:
    """Cumulative since the node started."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    messages_in: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    handler_idle_ratio: float = 1.0
    handler_idle_nanoseconds: float = 0.0  # of one handler, on average; cumulative
    request_queue_size: float = 0.0
    traffic: Traffic = Traffic()
    leaders: float = 0.0
    replicas: float = 0.0
    requests: Mapping[str, RequestTimes] = field(default_factory=dict)
    topics: Mapping[str, Traffic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControllerMetrics:
    active: float = 0.0
    brokers_active: float = 0.0
    partitions: float = 0.0
    topics: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    cpu_seconds: float
    memory_bytes: float
    broker: BrokerMetrics
    controller: ControllerMetrics
    node_id: int | None = None  # none: the agent does not export it


async def scrape(host: str, port: int, *, timeout: float = SCRAPE_SECONDS_MAX) -> NodeMetrics:
    """The current metrics of the node at this address."""
    try:
        async with asyncio.timeout(timeout):
            return parse_metrics(await _get(host, port))
    except (OSError, TimeoutError, ValueError, LookupError, TypeError) as error:
        # Any program may listen there.
        reason = str(error) or f"no response within {timeout:.0f} s"
        raise MetricsUnreachable(address=f"{host}:{port}", reason=reason) from error


def parse_metrics(text: str) -> NodeMetrics:
    """Parse Prometheus' text format; unknown metrics are ignored."""
    plain: dict[str, float] = {}
    topics: dict[str, dict[str, float]] = {}
    counts: dict[str, float] = {}
    times: dict[tuple[str, str], dict[str, float]] = {}
    for name, labels, value in _samples(text):
        if topic := labels.get("topic"):
            key = name.removeprefix("broker_topic_").removesuffix("_total")
            topics.setdefault(topic, {})[key] = value
        elif name == "broker_requests_total":
            counts[labels["api"]] = value
        elif stat := labels.get("stat"):
            phase = name.removeprefix("broker_request_").removesuffix("_ms")
            times.setdefault((labels["api"], phase), {})[stat] = value
        else:
            plain[name.removesuffix("_total")] = value
    requests = {
        api: RequestTimes(
            count, **{phase: Times(**stats) for (of, phase), stats in times.items() if of == api}
        )
        for api, count in counts.items()
    }
    return NodeMetrics(
        node_id=_node_id(text),
        cpu_seconds=plain.get("process_cpu_seconds", 0.0),
        memory_bytes=plain.get("process_resident_memory_bytes", 0.0),
        broker=replace(
            _filled(BrokerMetrics(), plain, "broker_"),
            traffic=_filled(Traffic(), plain, "broker_"),
            requests=requests,
            topics={topic: _filled(Traffic(), values, "") for topic, values in topics.items()},
        ),
        controller=_filled(ControllerMetrics(), plain, "controller_"),
    )


def _node_id(text: str) -> int | None:
    """From the labels of `kafka.server:type=app-info,id=…`, which every dialect exports alike."""
    match = _APP_INFO.search(text)
    return int(match[1]) if match else None


_T = TypeVar("_T", BrokerMetrics, ControllerMetrics, Traffic)


def _filled(empty: _T, values: Mapping[str, float], prefix: str) -> _T:
    """A copy with every field set that has a sample of the same name."""
    known: dict[str, Any] = {n: values[prefix + n] for n in empty.__slots__ if prefix + n in values}
    return replace(empty, **known)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Our samples and those of the process, without our prefix."""
    for line in text.splitlines():
        if not line.startswith((_PREFIX, "process_")):
            continue
        head, _, number = line.rpartition(" ")
        name, _, labels = head.partition("{")
        yield name.removeprefix(_PREFIX), _labels(labels.removesuffix("}")), float(number)


def _labels(text: str) -> dict[str, str]:
    """Parse `api="Produce",stat="mean"`. Our labels are topic and API names, which contain no quotes."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {key: value.strip('"') for key, _, value in pairs}


async def _get(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        # HTTP/1.0: the response is not chunked and ends with the connection.
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {host}\r\nAccept: text/plain\r\n\r\n".encode())
        await writer.drain()
        response = await reader.read(SCRAPE_BYTES_MAX)
        while chunk := await reader.read(SCRAPE_BYTES_MAX - len(response)):
            response += chunk
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = response.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0]
    if b" 200 " not in status:
        raise ValueError(f"the response is {status.decode(errors='replace')}")
    return body.decode()
