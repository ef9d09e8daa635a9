"""What a gateway lends to its connections: everything they use that is not theirs alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.balance.replica_placement import spread
from penstock.gateway.connection.request_sampling import RequestSampling
from penstock.gateway.limits.ack_ranges import Acks
from penstock.gateway.limits.held_bytes import HeldBytes
from penstock.gateway.limits.response_memory import Reserver, ResponseMemory
from penstock.gateway.limits.share_sessions import ShareSessions
from penstock.gateway.limits.tenant_quota import Quotas
from penstock.gateway.limits.throttle_queue import Waiter
from penstock.gateway.tenancy.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.balance.replica_placement import Placement
    from penstock.gateway.config import Broker, Tenant
    from penstock.gateway.limits.broker_pressure import AutoTuner
    from penstock.gateway.limits.calibration import Calibration
    from penstock.gateway.settings import Bounds
    from penstock.gateway.tenancy.platform_client import PlatformClient
    from penstock.gateway.tenancy.tenant_names import Outward
    from penstock.wire.names import Names


class Owner(Waiter, Reserver, Protocol):
    """The process's side of a connection."""


def renamed(outward: Outward) -> Names:
    return outward


def not_shared(tenant: str, pending: int, now: float) -> int:
    del tenant, pending, now
    return 0


@dataclass(slots=True)
class Services:
    """Shared by all connections of one gateway."""

    bounds: Bounds
    api_versions: Callable[[Broker | None, int, int], bytes]  # broker, version, correlation id → response
    brokers_for: Callable[[Tenant], Sequence[Broker]]  # where a tenant's topics may be placed
    place: Placement = spread
    share_partitions: Callable[[str, int, float], int] = not_shared  # tenant, pending here, now → elsewhere
    quotas: Quotas = field(default_factory=Quotas)
    tuner: AutoTuner | None = None
    calibration: Calibration | None = None
    acks: Acks = field(default_factory=Acks)
    sampling: RequestSampling = field(default_factory=lambda: RequestSampling(0.0))
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    telemetry: Telemetry = field(default_factory=Telemetry)
    platform: PlatformClient | None = None  # set when the gateway starts
    names: Callable[[Outward], Names] = renamed  # of requests; tests switch renaming off
    held: HeldBytes = field(init=False)
    response_memory: ResponseMemory = field(init=False)

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.held = HeldBytes(
            bounds.tenant_held_bytes_max,
            bounds.process_held_bytes_max,
            bounds.unauthenticated_held_bytes_max,
            bounds.held_seconds,
        )
        self.response_memory = ResponseMemory(bounds.responses_held_bytes_max, bounds.held_seconds)
