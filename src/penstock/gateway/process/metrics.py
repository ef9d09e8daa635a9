"""The gateway's Prometheus metrics, read on scrape; the data path does not know of them.

Labels are bounded: tenants beyond the first `TENANTS_SHOWN_MAX` are counted under `other`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.pressure_reports import in_flight
from penstock.model.key_names import BROKER, METRIC_PREFIX, TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from penstock.gateway.limits.broker_pressure import AutoTuner
    from penstock.gateway.limits.calibration import Calibration
    from penstock.gateway.limits.metering import Usage
    from penstock.gateway.process.ack_writer import AckWriter
    from penstock.gateway.process.server import Gateway

TENANTS_SHOWN_MAX: Final = 2_000
OTHERS: Final = "other"
# Why a tenant was throttled: it exceeded its quota, or all tenants together a broker's limit.
OWN_QUOTA: Final = "own_quota"
BROKER_PRESSURE: Final = "broker_pressure"
REFUSED: Final[Mapping[str, str]] = {
    Denial.TENANT_RATE: "connection_rate",
    Denial.BROKER_RATE: BROKER_PRESSURE,
}
_AREA: Final = METRIC_PREFIX + "gateway_"

_BY_TENANT: Final[tuple[tuple[str, str, Callable[[Usage], float]], ...]] = (
    ("received_bytes", "Bytes received from clients, in whole frames.", lambda usage: usage.bytes_in),
    ("sent_bytes", "Bytes sent to clients, as brokers sent them.", lambda usage: usage.bytes_out),
    ("requests", "Requests, including refused ones.", lambda usage: usage.requests),
    ("logins", "Successful logins, admitted or not.", lambda usage: usage.attempts),
    (
        "processor_seconds",
        "Time the event loop worked for a tenant, without system calls.",
        lambda usage: usage.processor_seconds,
    ),
    (
        "slices_queued",
        "How often a connection waited for its tenant's next slice of the event loop's time.",
        lambda usage: usage.slices_queued,
    ),
    (
        "held_pauses",
        "How often a tenant was not read because its unfinished frames exceeded their budget.",
        lambda usage: usage.held_pauses,
    ),
    (
        "response_waits",
        "How often a large response waited for memory.",
        lambda usage: usage.response_waits,
    ),
    (
        "service_seconds",
        "Time brokers took, without long polls and acks=all waits.",
        lambda usage: usage.service_seconds,
    ),
)


class GatewayMetrics:
    """A collector over a running gateway."""

    def __init__(
        self,
        gateway: Gateway,
        tuner: AutoTuner | None = None,
        calibration: Calibration | None = None,
        ack_writer: AckWriter | None = None,
    ) -> None:
        self.gateway = gateway
        self.tuner = tuner
        self.calibration = calibration
        self.ack_writer = ack_writer

    def collect(self) -> Iterator[Metric]:
        gateway = self.gateway
        usages = list(gateway.usage.items())
        for name, text, value in _BY_TENANT:
            sums: defaultdict[str, float] = defaultdict(float)
            for rank, (tenant, usage) in enumerate(usages):
                sums[tenant if rank < TENANTS_SHOWN_MAX else OTHERS] += value(usage)
            family = _counter(name, text, TENANT)
            for tenant_label, total in sums.items():
                family.add_metric([tenant_label], total)
            yield family
        held = _gauge("held_bytes", "Bytes of frames that are unfinished or wait.", TENANT)
        for tenant, usage in usages[:TENANTS_SHOWN_MAX]:
            held.add_metric([tenant], usage.held_bytes)
        yield held
        yield from self._limits()
        yield from self._tuned()
        connections = _gauge("connections", "Open connections.", "state")
        states = Counter(session.connection.life.state for session in list(gateway.sessions.values()))
        for state, count in states.items():
            connections.add_metric([state], count)
        yield connections
        yield from self._brokers()
        denials = _counter("denials", "Connections and requests refused.", "reason")
        for reason, count in gateway.denials.items():
            denials.add_metric([reason], count)
        yield denials
        yield from self._telemetry()
        dropped = _counter(
            "log_lines_dropped", "Sampled log lines dropped beyond the limit a second.", TENANT
        )
        for sampled in list(gateway.services.sampling.tenants.values())[:TENANTS_SHOWN_MAX]:
            dropped.add_metric([sampled.tenant], sampled.dropped)
        yield dropped
        tenants = _gauge("tenants", "Tenants configured.")
        tenants.add_metric([], len(gateway.config.tenants))
        yield tenants
        age = _gauge(
            "state_age_seconds", "Time since the tenants' configuration was last known to be current."
        )
        age.add_metric([], gateway.state_age())
        yield age
        yield from self._ack_evidence()

    def _ack_evidence(self) -> Iterator[Metric]:
        acks, writer = self.gateway.services.acks, self.ack_writer
        lost = _counter("ack_ranges_lost", "Acknowledged ranges without evidence, for lack of room.")
        lost.add_metric([], acks.lost)
        still_open = _gauge("ack_ranges_open", "Acknowledged ranges that are still merged.")
        still_open.add_metric([], acks.open)
        yield from (lost, still_open)
        if writer is None:
            return
        written = _counter("ack_ranges_written", "Acknowledged ranges written as evidence.")
        written.add_metric([], writer.ranges_written)
        size = _counter("ack_evidence_bytes", "Bytes of that evidence, before compression.")
        size.add_metric([], writer.bytes_written)
        waiting = _gauge("ack_evidence_waiting_bytes", "Evidence that waits for its topic.")
        waiting.add_metric([], writer.waiting_bytes)
        yield from (written, size, waiting)

    def _telemetry(self) -> Iterator[Metric]:
        """Clients' own metrics. Tenants beyond those shown are left out, as maxima cannot be added up."""
        gateway = self.gateway
        worst = _gauge("client_worst", "The worst value reported by a tenant's clients.", TENANT, "metric")
        pushes = _counter("client_pushes", "Accepted pushes of client metrics.", TENANT)
        refused = _counter("client_pushes_refused", "Refused pushes of client metrics.", TENANT)
        for tenant, pushed in list(gateway.services.telemetry.tenants.items())[:TENANTS_SHOWN_MAX]:
            pushes.add_metric([tenant], pushed.pushes)
            refused.add_metric([tenant], pushed.refused)
            for name, value in pushed.worst(gateway.now()).items():
                worst.add_metric([tenant, name], value)
        yield from (worst, pushes, refused)

    def _brokers(self) -> Iterator[Metric]:
        counts = _gauge("in_flight", "Requests in flight to a broker, without long polls.", BROKER)
        ages = _gauge("oldest_in_flight_seconds", "Age of the oldest of them.", BROKER)
        for broker, (count, oldest) in in_flight(self.gateway).items():
            counts.add_metric([str(broker)], count)
            ages.add_metric([str(broker)], oldest)
        yield from (counts, ages)

    def _limits(self) -> Iterator[Metric]:
        text = "Time clients were throttled, by dimension and reason."
        throttled = _counter("throttled_seconds", text, TENANT, "dimension", "reason")
        refused = _counter("logins_refused", "Successful logins that were not admitted.", TENANT, "reason")
        granted = _gauge("granted", "The part of a quota in force here, per second.", TENANT, "dimension")
        for tenant, usage in list(self.gateway.usage.items())[:TENANTS_SHOWN_MAX]:
            for dimension, seconds in dict(usage.throttled_seconds).items():
                throttled.add_metric([tenant, dimension, OWN_QUOTA], seconds)
            for dimension, seconds in dict(usage.pressure_throttled_seconds).items():
                throttled.add_metric([tenant, dimension, BROKER_PRESSURE], seconds)
            for reason, count in dict(usage.refused).items():
                refused.add_metric([tenant, REFUSED.get(reason, reason)], count)
            for dimension, rate in usage.granted().items():
                granted.add_metric([tenant, dimension], rate)
        yield from (throttled, refused, granted)

    def _tuned(self) -> Iterator[Metric]:
        text = "Share of their quotas that tenants keep on a broker; 1 is all."
        level = _gauge("tuned_level", text, BROKER, "dimension")
        for broker, tuner in self.tuner or ():
            for dimension, part in dict(tuner.levels).items():
                level.add_metric([str(broker), dimension], part)
        text = "Part of the observed request time that is the broker's own work."
        factor = _gauge("request_time_factor", text, BROKER)
        for broker, work in self.calibration or ():
            factor.add_metric([str(broker)], work.factor)
        yield from (level, factor)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(_AREA + name, text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_AREA + name, text, labels=labels)
