"""The gateway's figures for Prometheus, read when somebody asks: the data path does not know of them.

Labels are bounded: a tenant beyond the first `TENANTS_SHOWN_MAX` is counted under `other`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.gateway.admission import Denial
from penstock.gateway.pressure import in_flight
from penstock.model.keys import BROKER, METRIC_PREFIX, TENANT

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import Metric

    from penstock.gateway.calibration import Calibration
    from penstock.gateway.metering import Usage
    from penstock.gateway.server import Gateway
    from penstock.gateway.tuned import Tuning

TENANTS_SHOWN_MAX: Final = 2_000
OTHERS: Final = "other"
# Why somebody was held: it asked for more than is its own, or all together for more than a broker can do.
OWN_QUOTA: Final = "own_quota"
BROKER_PRESSURE: Final = "broker_pressure"
REFUSED: Final[Mapping[str, str]] = {
    Denial.TENANT_RATE: "connection_rate",
    Denial.BROKER_RATE: BROKER_PRESSURE,
}
_AREA: Final = METRIC_PREFIX + "gateway_"

_BY_TENANT: Final[tuple[tuple[str, str, Callable[[Usage], float]], ...]] = (
    ("received_bytes", "Bytes from clients, frames whole.", lambda usage: usage.bytes_in),
    ("sent_bytes", "Bytes towards clients, as brokers sent them.", lambda usage: usage.bytes_out),
    ("requests", "Requests, refused ones too.", lambda usage: usage.requests),
    ("logins", "Right logins, admitted or not.", lambda usage: usage.attempts),
    (
        "service_seconds",
        "Time brokers took, without long polls and acks=all waits.",
        lambda usage: usage.service_seconds,
    ),
)


class Figures:
    """A collector over a living gateway."""

    def __init__(
        self, gateway: Gateway, tuning: Tuning | None = None, calibration: Calibration | None = None
    ) -> None:
        self.gateway = gateway
        self.tuning = tuning
        self.calibration = calibration

    def collect(self) -> Iterator[Metric]:
        gateway = self.gateway
        usages = list(gateway.usage.items())
        for name, text, value in _BY_TENANT:
            sums: defaultdict[str, float] = defaultdict(float)
            for place, (tenant, usage) in enumerate(usages):
                sums[tenant if place < TENANTS_SHOWN_MAX else OTHERS] += value(usage)
            family = CounterMetricFamily(_AREA + name, text, labels=[TENANT])
            for tenant_label, total in sums.items():
                family.add_metric([tenant_label], total)
            yield family
        yield from self._limits()
        yield from self._tuned()
        connections = GaugeMetricFamily(_AREA + "connections", "Open connections.", labels=["state"])
        states = Counter(session.life.state for session in list(gateway.sessions.values()))
        for state, count in states.items():
            connections.add_metric([state], count)
        yield connections
        yield from self._brokers()
        denials = CounterMetricFamily(
            _AREA + "denials", "Connections and requests refused.", labels=["reason"]
        )
        for reason, count in gateway.denials.items():
            denials.add_metric([reason], count)
        yield denials
        yield from self._telemetry()
        dropped = CounterMetricFamily(
            _AREA + "log_lines_dropped", "Sampled lines beyond those a second may have.", labels=[TENANT]
        )
        for sampled in list(gateway.samples.tenants.values())[:TENANTS_SHOWN_MAX]:
            dropped.add_metric([sampled.tenant], sampled.dropped)
        yield dropped
        yield GaugeMetricFamily(_AREA + "tenants", "Tenants configured.", value=len(gateway.config.tenants))
        yield CounterMetricFamily(
            _AREA + "ack_ranges_dropped", "Evidence not kept for want of room.", value=gateway.acks.dropped
        )

    def _telemetry(self) -> Iterator[Metric]:
        """What clients say of themselves. Tenants beyond those shown are left out: worsts do not add up."""
        gateway = self.gateway
        shown = list(gateway.telemetry.tenants.items())[:TENANTS_SHOWN_MAX]
        worst = GaugeMetricFamily(
            _AREA + "client_worst",
            "The worst of a tenant's clients, as they told.",
            labels=[TENANT, "metric"],
        )
        pushes = CounterMetricFamily(_AREA + "client_pushes", "Clients' metrics taken.", labels=[TENANT])
        refused = CounterMetricFamily(
            _AREA + "client_pushes_refused", "Clients' metrics refused.", labels=[TENANT]
        )
        for tenant, pushed in shown:
            pushes.add_metric([tenant], pushed.pushes)
            refused.add_metric([tenant], pushed.refused)
            for name, value in pushed.worst(gateway.now()).items():
                worst.add_metric([tenant, name], value)
        yield from (worst, pushes, refused)

    def _brokers(self) -> Iterator[Metric]:
        asked = GaugeMetricFamily(
            _AREA + "in_flight", "Requests a broker should answer at once.", labels=[BROKER]
        )
        waits = GaugeMetricFamily(
            _AREA + "oldest_in_flight_seconds", "How long the oldest of them waits.", labels=[BROKER]
        )
        for broker, (count, oldest) in in_flight(self.gateway).items():
            asked.add_metric([str(broker)], count)
            waits.add_metric([str(broker)], oldest)
        yield from (asked, waits)

    def _limits(self) -> Iterator[Metric]:
        waits = CounterMetricFamily(
            _AREA + "throttled_seconds", "Time in which clients stood in line, by what was too much of what.",
            labels=[TENANT, "dimension", "reason"],
        )  # fmt: skip
        refused = CounterMetricFamily(
            _AREA + "logins_refused", "Right logins that were not let in.", labels=[TENANT, "reason"]
        )
        granted = GaugeMetricFamily(
            _AREA + "granted", "What holds here of a quota, a second.", labels=[TENANT, "dimension"]
        )
        for place, (tenant, usage) in enumerate(list(self.gateway.usage.items())):
            if place >= TENANTS_SHOWN_MAX:
                break
            for dimension, seconds in dict(usage.throttled_seconds).items():
                waits.add_metric([tenant, dimension, OWN_QUOTA], seconds)
            for dimension, seconds in dict(usage.pressed_seconds).items():
                waits.add_metric([tenant, dimension, BROKER_PRESSURE], seconds)
            for reason, count in dict(usage.refused).items():
                refused.add_metric([tenant, REFUSED.get(reason, reason)], count)
            for dimension, rate in usage.granted().items():
                granted.add_metric([tenant, dimension], rate)
        yield from (waits, refused, granted)

    def _tuned(self) -> Iterator[Metric]:
        level = GaugeMetricFamily(
            _AREA + "tuned_level", "What tenants are left with of their quotas on a broker, 1 being all.",
            labels=[BROKER, "dimension"],
        )  # fmt: skip
        for broker, tuning in self.tuning or ():
            for dimension, part in dict(tuning.levels).items():
                level.add_metric([str(broker), dimension], part)
        factor = GaugeMetricFamily(
            _AREA + "request_time_factor", "Of the time seen, what counts as the broker's own work.",
            labels=[BROKER],
        )  # fmt: skip
        for broker, work in self.calibration or ():
            factor.add_metric([str(broker)], work.factor)
        yield from (level, factor)


class MetricsServer:
    """Plain HTTP on a port of its own; the thread that serves it is joined by `close`."""

    def __init__(self, figures: Figures, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(figures)
        served: tuple[WSGIServer, threading.Thread] = start_http_server(port, host, registry=registry)
        self._server, self._thread = served
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
