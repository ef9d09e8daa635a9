"""The metrics of a node as typed values, parsed from its agent's text.

Metric names come from the fleet's rule file for the JMX exporter (`fleet/jmx.yaml`). Counters are
cumulative since the node started, so a rate takes two scrapes, and so do the moments of request times.
Log sizes are not here: Kafka reports them by partition, and one `DescribeLogDirs` call returns them all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

APIS: Final = ("Produce", "FetchConsumer", "FetchFollower")
# Ours, or that of the JMX exporter's default names (Strimzi, MSK): kafka_server_app_info_starttimems{id="1"}
_APP_INFO: Final = re.compile(
    r'^(?:penstock|kafka_server)_app_info_(\w*)\{(?:[^}]*,)?id="(\d+)"[^}]*\} (\S+)', re.MULTILINE
)
# Of the broker's pool alone: the other bean includes the controller's, if a node is both (KIP-1207).
_POOL_IDLE: Final = "broker_handler_pool_idle_nanoseconds"
_TOPIC: Final = re.compile(r'^penstock_broker_topic_(\w+)_total\{topic="([^"]+)"\} (\S+)', re.MULTILINE)
_OTHER: Final = re.compile(
    r"^(?!penstock_broker_topic_)(?:penstock_(\w+)|(process_\w+))(?:\{([^}]*)\})? (\S+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds, each rounded to a whole one: Kafka counts less than 0.5 ms as 0.

    Count, mean and standard deviation (of a sample, with n − 1) are those of all requests since the node
    started; `moments` computes those of a window. Only the percentiles follow recent requests.
    """

    count: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0
    p50: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, slots=True)
class Moments:
    """Of the requests between two scrapes, in milliseconds. `variance` is the mean squared deviation."""

    count: float = 0.0
    mean: float = 0.0
    variance: float = 0.0


def moments(before: Times, after: Times) -> Moments | None:
    """The exact moments of the requests between two scrapes; None if the counter restarted meanwhile."""
    count = after.count - before.count
    if count < 0:
        return None
    if count == 0:
        return Moments()
    mean = (after.count * after.mean - before.count * before.mean) / count
    # Squared deviations add up around the common mean (Chan, Golub and LeVeque 1979).
    between = (mean - before.mean) ** 2 * before.count * count / after.count
    squares = _squares(after) - _squares(before) - between
    # An agent reads one attribute after another, and requests are counted in between.
    return Moments(count, max(0.0, mean), max(0.0, squares / count))


def _squares(times: Times) -> float:
    """The sum of the squared deviations from the mean."""
    return times.deviation**2 * max(0.0, times.count - 1)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """How long the requests of one API took, by phase."""

    count: float = 0.0
    total: Times = Times()
    queue: Times = Times()  # in the request queue
    local: Times = Times()  # at the leader: service
    remote: Times = Times()  # until other brokers or more records came
    response: Times = Times()  # in the response queue


@dataclass(frozen=True, slots=True)
class Traffic:
    """Cumulative since the node started."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    messages_in: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """Counters are cumulative since the node started. What an agent does not export has its default."""

    handler_idle_ratio: float = 1.0
    handler_idle_nanoseconds: float = 0.0  # of one handler, on average; cumulative
    network_idle_nanoseconds: Mapping[str, float] = field(default_factory=dict)  # likewise, by listener
    acceptor_blocked_nanoseconds: Mapping[str, float] = field(default_factory=dict)  # by listener
    network_responses: float = 0.0  # of all APIs; cumulative
    request_queue_size: float = 0.0
    traffic: Traffic = Traffic()
    replication_bytes_in: float = 0.0
    replication_bytes_out: float = 0.0
    reassignment_bytes_in: float = 0.0  # contained in those of replication
    reassignment_bytes_out: float = 0.0
    leaders: float = 0.0
    replicas: float = 0.0
    partitions_under_replicated: float = 0.0
    partitions_under_min_isr: float = 0.0
    partitions_at_min_isr: float = 0.0
    log_flushes: float = -1.0  # cumulative; −1: not exported
    log_flush_ms_mean: float = 0.0  # of all since the node started
    isr_shrinks: float = 0.0  # cumulative
    isr_expands: float = 0.0
    requests: Mapping[str, RequestTimes] = field(default_factory=dict)
    topics: Mapping[str, Traffic] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # beans that load is computed from and that have no sample


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
    start_ms: float | None = None  # when the node started; likewise


def parse_metrics(text: str) -> NodeMetrics:
    """Parse Prometheus' text format; unknown metrics are ignored."""
    plain: dict[str, float] = {}
    counts: dict[str, float] = {}
    times: dict[tuple[str, str], dict[str, float]] = {}
    listeners: dict[str, dict[str, list[float]]] = {}
    for name, labels, value in _samples(text):
        if listener := labels.get("listener"):
            listeners.setdefault(name, {}).setdefault(listener, []).append(value)
        elif name == "broker_requests_total":
            counts[labels["api"]] = value
        elif stat := labels.get("stat"):
            phase = name.removeprefix("broker_request_").removesuffix("_ms")
            times.setdefault((labels["api"], phase), {})[stat] = value
        else:
            plain[name.removesuffix("_total")] = value
    if _POOL_IDLE in plain:
        plain["broker_handler_idle_nanoseconds"] = plain[_POOL_IDLE]
    requests = {
        api: RequestTimes(
            count, **{phase: Times(**stats) for (of, phase), stats in times.items() if of == api}
        )
        for api, count in counts.items()
    }
    node_id, start_ms = _app_info(text)
    idle = _by_listener(listeners.get("broker_network_idle_nanoseconds_total", {}))
    responses = listeners.get("broker_network_responses_total", {})
    return NodeMetrics(
        node_id=node_id,
        start_ms=start_ms,
        cpu_seconds=plain.get("process_cpu_seconds", 0.0),
        memory_bytes=plain.get("process_resident_memory_bytes", 0.0),
        broker=replace(
            _filled(BrokerMetrics(), plain, "broker_"),
            traffic=_filled(Traffic(), plain, "broker_"),
            requests=requests,
            topics=_topics(text),
            network_idle_nanoseconds=idle,
            acceptor_blocked_nanoseconds=_by_listener(
                listeners.get("broker_acceptor_blocked_nanoseconds_total", {})
            ),
            network_responses=sum(map(sum, responses.values())),
            missing=tuple(_missing(plain, times, idle)),
        ),
        controller=_filled(ControllerMetrics(), plain, "controller_"),
    )


def _app_info(text: str) -> tuple[int | None, float | None]:
    """Node id and start time, from `kafka.server:type=app-info,id=…`, which every dialect exports alike."""
    node_id = start_ms = None
    for attribute, label, value in _APP_INFO.findall(text):
        node_id = int(label)
        if attribute.replace("_", "").startswith("starttimems"):
            start_ms = float(value)
    return node_id, start_ms


def _by_listener(samples: Mapping[str, list[float]]) -> dict[str, float]:
    """The mean of each listener's processors."""
    return {listener: sum(values) / len(values) for listener, values in samples.items()}


def _missing(
    plain: Mapping[str, float],
    times: Mapping[tuple[str, str], Mapping[str, float]],
    idle: Mapping[str, float],
) -> Iterator[str]:
    if "broker_handler_idle_nanoseconds" not in plain:
        yield "kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent"
    if not idle:
        yield "kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*"
    if "broker_replicas" not in plain:
        yield "kafka.server:type=ReplicaManager,name=PartitionCount"
    beans = {"queue": "RequestQueueTimeMs", "response": "ResponseQueueTimeMs"}
    for phase, name in beans.items():
        for api in APIS:
            if not {"count", "mean"} <= times.get((api, phase), {}).keys():
                yield f"kafka.network:type=RequestMetrics,name={name},request={api}"


def _topics(text: str) -> dict[str, Traffic]:
    values: dict[str, dict[str, float]] = {}
    for name, topic, value in _TOPIC.findall(text):
        values.setdefault(topic, {})[name] = float(value)
    return {
        topic: Traffic(of.get("bytes_in", 0.0), of.get("bytes_out", 0.0), of.get("messages_in", 0.0))
        for topic, of in values.items()
    }


_T = TypeVar("_T", BrokerMetrics, ControllerMetrics, Traffic)


def _filled(empty: _T, values: Mapping[str, float], prefix: str) -> _T:
    """A copy with every field set that has a sample of the same name."""
    known: dict[str, Any] = {n: values[prefix + n] for n in empty.__slots__ if prefix + n in values}
    return replace(empty, **known)


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Our samples and those of the process, without our prefix; topics have their own pattern."""
    for name, process, labels, value in _OTHER.findall(text):
        yield name or process, _labels(labels), float(value)


def _labels(text: str) -> dict[str, str]:
    """Parse `api="Produce",stat="mean"`. Our labels are topic and API names, which contain no quotes."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {key: value.strip('"') for key, _, value in pairs}
