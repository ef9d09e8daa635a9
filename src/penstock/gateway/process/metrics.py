"""The gateway's Prometheus metrics, read on scrape; the data path does not know of them.

Labels are bounded: tenants beyond the first `TENANTS_SHOWN_MAX` are counted under `other`, or left out where
values cannot be added up. Those that are gone come last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.pressure_reports import in_flight
from penstock.metric_families import Samples
from penstock.model.metric_catalogue import GATEWAY, TENANTS_SHOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from penstock.gateway.limits.broker_pressure import AutoTuner
    from penstock.gateway.limits.calibration import Calibration
    from penstock.gateway.limits.metering import Usage
    from penstock.gateway.process.ack_writer import AckWriter
    from penstock.gateway.process.server import Gateway
    from penstock.model.ids import LogicalClusterId

OTHERS: Final = "other"
# Why a tenant was throttled: it exceeded its quota, or all tenants together a broker's limit.
OWN_QUOTA: Final = "own_quota"
BROKER_PRESSURE: Final = "broker_pressure"
REFUSED: Final[Mapping[str, str]] = {
    Denial.TENANT_RATE: "connection_rate",
    Denial.BROKER_RATE: BROKER_PRESSURE,
}

# Counters by tenant that can be added up.
_BY_TENANT: Final[Mapping[str, Callable[[Usage], float]]] = {
    "received_bytes": lambda usage: usage.bytes_in,
    "sent_bytes": lambda usage: usage.bytes_out,
    "requests": lambda usage: usage.requests,
    "logins": lambda usage: usage.attempts,
    "logins_delayed": lambda usage: usage.logins_delayed,
    "processor_seconds": lambda usage: usage.processor_seconds,
    "slices_queued": lambda usage: usage.slices_queued,
    "held_pauses": lambda usage: usage.held_pauses,
    "request_waits": lambda usage: usage.request_waits,
    "response_waits": lambda usage: usage.response_waits,
    "service_seconds": lambda usage: usage.service_seconds,
}


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
        samples = Samples(GATEWAY)
        self._add_usage(samples)
        self._add_limits(samples)
        self._add_tuned(samples)
        self._add_brokers(samples)
        self._add_telemetry(samples)
        self._add_ack_evidence(samples)
        gateway = self.gateway
        states = Counter(session.connection.life.state for session in list(gateway.sessions.values()))
        for state, count in states.items():
            samples.add("connections", count, state)
        for reason, count in gateway.denials.items():
            samples.add("denials", count, reason)
        for sampled in list(gateway.services.sampling.tenants.values())[:TENANTS_SHOWN_MAX]:
            samples.add("log_lines_dropped", sampled.dropped, sampled.tenant)
        samples.add("tenants", len(gateway.config.tenants))
        samples.add("state_age_seconds", gateway.state_age())
        return iter(samples)

    def _add_usage(self, samples: Samples) -> None:
        usages = self._usages()
        for name, value in _BY_TENANT.items():
            sums: defaultdict[str, float] = defaultdict(float)
            for rank, (tenant, usage) in enumerate(usages):
                sums[tenant if rank < TENANTS_SHOWN_MAX else OTHERS] += value(usage)
            for tenant_label, total in sums.items():
                samples.add(name, total, tenant_label)
        for tenant, usage in usages[:TENANTS_SHOWN_MAX]:
            samples.add("held_bytes", usage.held_bytes, tenant)
        for (zone, client_zone, direction), count in self._zone_bytes().items():
            samples.add("zone_bytes", count, zone, client_zone, direction)

    def _usages(self) -> list[tuple[LogicalClusterId, Usage]]:
        known = self.gateway.config.tenant_of
        return sorted(self.gateway.usage.items(), key=lambda each: each[0] not in known)

    def _zone_bytes(self) -> Counter[tuple[str, str, str]]:
        """By zones of brokers and clients. A client names its own, so only zones with brokers are labels."""
        zones = {str(broker.zone) for broker in self.gateway.config.brokers}
        counted: Counter[tuple[str, str, str]] = Counter()
        for usage in list(self.gateway.usage.values()):
            for (zone, client), each in list(usage.zones.items()):
                label = "unknown" if not client else client if client in zones else OTHERS
                counted[zone, label, "in"] += each.bytes_in
                counted[zone, label, "out"] += each.bytes_out
        return counted

    def _add_ack_evidence(self, samples: Samples) -> None:
        acks, writer = self.gateway.services.acks, self.ack_writer
        samples.add("ack_ranges_lost", acks.lost)
        samples.add("ack_ranges_open", acks.open)
        samples.add("intents_lost", self.gateway.services.intents.lost)
        if writer is not None:
            samples.add("ack_ranges_written", writer.ranges_written)
            samples.add("ack_evidence_bytes", writer.bytes_written)
            samples.add("ack_evidence_waiting_bytes", writer.waiting_bytes)

    def _add_telemetry(self, samples: Samples) -> None:
        """Clients' own metrics. Tenants beyond those shown are left out, as maxima cannot be added up."""
        gateway = self.gateway
        for tenant, pushed in list(gateway.services.telemetry.tenants.items())[:TENANTS_SHOWN_MAX]:
            samples.add("client_pushes", pushed.pushes, tenant)
            samples.add("client_pushes_refused", pushed.refused, tenant)
            for name, value in pushed.worst(gateway.now()).items():
                samples.add("client_worst", value, tenant, name)

    def _add_brokers(self, samples: Samples) -> None:
        for broker, (count, oldest) in in_flight(self.gateway).items():
            samples.add("in_flight", count, str(broker))
            samples.add("oldest_in_flight_seconds", oldest, str(broker))

    def _add_limits(self, samples: Samples) -> None:
        for tenant, usage in self._usages()[:TENANTS_SHOWN_MAX]:
            for dimension, seconds in dict(usage.throttled_seconds).items():
                samples.add("throttled_seconds", seconds, tenant, dimension, OWN_QUOTA)
            for dimension, seconds in dict(usage.pressure_throttled_seconds).items():
                samples.add("throttled_seconds", seconds, tenant, dimension, BROKER_PRESSURE)
            for reason, count in dict(usage.refused).items():
                samples.add("logins_refused", count, tenant, REFUSED.get(reason, reason))
            for dimension, rate in usage.granted().items():
                samples.add("granted", rate, tenant, dimension)

    def _add_tuned(self, samples: Samples) -> None:
        for broker, tuner in self.tuner or ():
            for dimension, part in dict(tuner.levels).items():
                samples.add("tuned_level", part, str(broker), dimension)
        for broker, work in self.calibration or ():
            samples.add("request_time_factor", work.factor, str(broker))
