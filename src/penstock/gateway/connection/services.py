"""What a gateway lends to its connections: everything they use that is not theirs alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.balance.replica_placement import spread
from penstock.gateway.connection.request_sampling import RequestSampling
from penstock.gateway.limits.ack_ranges import Acks
from penstock.gateway.limits.client_zones import ClientZones
from penstock.gateway.limits.frame_memory import FrameMemory, Reserver
from penstock.gateway.limits.held_bytes import HeldBytes
from penstock.gateway.limits.intents import Intents
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
    from penstock.gateway.tenancy.platform_client import PlatformCalls
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
    intents: Intents = field(default_factory=Intents)
    sampling: RequestSampling = field(default_factory=lambda: RequestSampling(0.0))
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    telemetry: Telemetry = field(default_factory=Telemetry)
    client_zones: ClientZones = field(default_factory=ClientZones)
    platform: PlatformCalls | None = None  # set when the gateway starts
    names: Callable[[Outward], Names] = renamed  # of requests; tests switch renaming off
    held: HeldBytes = field(init=False)
    response_memory: FrameMemory = field(init=False)
    _request_memory: dict[int, FrameMemory] = field(default_factory=dict)  # by broker

    def __post_init__(self) -> None:
        bounds = self.bounds
        self.held = HeldBytes(
            bounds.tenant_held_bytes_max,
            bounds.process_held_bytes_max,
            bounds.unauthenticated_held_bytes_max,
            bounds.held_seconds,
        )
        self.response_memory = FrameMemory(bounds.responses_held_bytes_max, bounds.held_seconds)

    def request_memory(self, broker: Broker | None) -> FrameMemory:
        """The memory of a broker for requests that it has not read to their end."""
        number = -1 if broker is None else int(broker.id)
        memory = self._request_memory.get(number)
        if memory is None:
            bounds = self.bounds
            memory = FrameMemory(bounds.broker_unfinished_bytes_max, bounds.held_seconds, requests=True)
            self._request_memory[number] = memory
        return memory

    def sweep(self, now: float) -> None:
        """Close connections that hold bytes or memory for too long. Called once a second."""
        self.held.sweep(now)
        for memory in (self.response_memory, *self._request_memory.values()):
            memory.sweep(now)
