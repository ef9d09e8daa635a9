"""Usage by tenant: counters that the data path adds to.

They are cumulative from the start of the process, so a repeated or lost report does no harm.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.model.events import Dimension, UsageReport
from penstock.model.ids import PhysicalClusterId
from penstock.model.zone_traffic import EGRESS, INGRESS, ZoneDimension

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.model.ids import LogicalClusterId

NEVER_REACHED: Final = 1 << 60
CLIENT_ZONES_MAX: Final = 16  # of one tenant: clients name them
OTHER_ZONE: Final = "other"
SLICE_SECONDS: Final = 0.002  # of the event loop's time, for a tenant while others wait


class ZoneBytes:
    """What passes between clients in one zone and brokers in another, or in the same."""

    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0


class Usage:
    """One tenant's counters on this gateway."""

    __slots__ = (
        "attempts", "bytes_in", "bytes_in_check_at", "bytes_out", "calibration", "charge_gateway_time",
        "connections", "exhausted", "granted", "held_bytes", "held_pauses", "logins_delayed",
        "partition_changes", "pressure_throttled_seconds", "processor_check_at", "processor_seconds",
        "refused", "request_waits", "requests", "requests_check_at", "response_waits", "service_seconds",
        "slice_ends_at", "slices_queued", "throttled_seconds", "zones",
    )  # fmt: skip

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.requests = 0
        # The counter values at which the quota is checked next.
        self.bytes_in_check_at = self.requests_check_at = NEVER_REACHED
        self.exhausted = 0  # bits of exhausted limits
        self.held_bytes = 0  # now, of frames that are unfinished or wait
        self.held_pauses = 0  # how often they exceeded their budget
        self.request_waits = 0  # how often a large request waited for memory of its broker
        self.response_waits = 0  # how often a large response waited for memory
        # Time of the event loop, and at which value of it the current slice is used up (`ready_queue`).
        self.processor_seconds = 0.0
        self.slice_ends_at = SLICE_SECONDS
        self.processor_check_at = SLICE_SECONDS / 2
        self.slices_queued = 0  # how often one of its connections waited for a slice
        self.service_seconds = 0.0
        self.calibration = 0.0  # seconds to add to that, below 0: what was not the broker's work
        self.connections = 0
        self.attempts = 0
        self.logins_delayed = 0  # after breaches of limits
        self.partition_changes = 0  # of tenants with a limit on them
        self.throttled_seconds: Mapping[Dimension, float] = {}  # by the tenant's own quota
        self.pressure_throttled_seconds: Mapping[Dimension, float] = {}  # by a broker's limits
        self.refused: Counter[str] = Counter()  # successful logins that were not admitted, by reason
        self.zones: dict[tuple[str, str], ZoneBytes] = {}  # by the zones of broker and client
        self.granted: Callable[[], Mapping[Dimension, float]] = dict  # the part of its quota in force here
        self.charge_gateway_time: Callable[[float], None] = _no_charge  # to its quota, at this time

    def zone_bytes(self, broker_zone: str, client_zone: str) -> ZoneBytes:
        """The counters of connections between these zones; an unknown zone of a client is empty."""
        known = {client for _, client in self.zones}
        if client_zone not in known and len(known) >= CLIENT_ZONES_MAX:
            client_zone = OTHER_ZONE
        return self.zones.setdefault((broker_zone, client_zone), ZoneBytes())

    def crossing(self) -> dict[str, int]:
        """Bytes that crossed zones, by dimension."""
        counted: dict[str, int] = {}
        for (broker, client), zone in self.zones.items():
            if client in ("", broker):
                continue
            for direction, count in ((INGRESS, zone.bytes_in), (EGRESS, zone.bytes_out)):
                if count:
                    counted[str(ZoneDimension(direction, broker, client))] = count
        return counted

    def request_time_us(self) -> float:
        """The broker time spent on this tenant, as far as it can be measured."""
        return (self.service_seconds + self.calibration) * 1e6

    def used(self) -> dict[Dimension, float]:
        return {
            Dimension.INGRESS_BYTES: self.bytes_in,
            Dimension.EGRESS_BYTES: self.bytes_out,
            Dimension.REQUESTS: self.requests,
            Dimension.REQUEST_TIME_US: self.request_time_us(),
            Dimension.GATEWAY_TIME_US: self.processor_seconds * 1e6,
            Dimension.CONNECTION_ATTEMPTS: self.attempts,
            Dimension.PARTITION_CHANGES: self.partition_changes,
        }

    def report(self, source: Source, tenant: LogicalClusterId, sequence: int, time_ms: int) -> UsageReport:
        return UsageReport(
            cluster=source.cluster,
            gateway=source.gateway,
            incarnation=source.incarnation,
            sequence=sequence,
            tenant=tenant,
            time_ms=time_ms,
            used={str(name): int(value) for name, value in self.used().items()} | self.crossing(),
            throttled_ms={str(name): int(value * 1000) for name, value in self.throttled_seconds.items()},
            levels={str(Dimension.CONNECTIONS): self.connections},
        )


def _no_charge(now: float) -> None:
    del now


@dataclass(frozen=True, slots=True)
class Source:
    """Which run of which gateway reports."""

    cluster: PhysicalClusterId
    gateway: str
    incarnation: str
