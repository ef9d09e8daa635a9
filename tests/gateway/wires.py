"""A session without sockets: recording transports, and a gateway that does not listen."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.gateway.config import Broker, GatewayConfig, Principal, Tenant
from penstock.gateway.limits.metering import Usage
from penstock.gateway.process.scheduler import Scheduler
from penstock.gateway.process.server import Gateway
from penstock.gateway.process.session import Session
from penstock.gateway.process.upstream import Upstream
from penstock.gateway.settings import Bounds, GatewaySettings
from penstock.gateway.tenancy.tenant_names import TenantContext
from penstock.model.ids import BrokerId, LogicalClusterId, PhysicalClusterId, ServiceAccountId, Zone
from penstock.wire.definitions import Versions
from penstock.wire.frames import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

TENANT = Tenant(LogicalClusterId("lkc-7hq2mz"))
PRINCIPAL = Principal(TENANT.id, "", b"", ServiceAccountId("sa-000001"), 1, "127.0.0.1")
BROKER = Broker(BrokerId(1), Zone("a"), "127.0.0.1", 1, 0)
BOUNDS = Bounds(in_flight_max=4)
LOGIN = Request("SaslAuthenticate", 2, 1, "c", {"AuthBytes": b""})


class Wire(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._reading = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert callable(getattr(protocol, "data_received", None))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        assert high > 0

    def frames(self) -> list[bytes]:
        frames, rest = [], self.written
        while rest:
            size = int.from_bytes(rest[:4])
            frames.append(rest[4 : 4 + size])
            rest = rest[4 + size :]
        self.written = b""
        return frames


class AtOnce(Scheduler):
    """Serves every slice at once, so that the outcome of a call shows without a pass of the event loop."""

    def charge(self, usage: Usage) -> None:
        super().charge(usage)
        self.queue.end_pass()

    def add(self, session: Session) -> None:
        session.next_slice()


def quiet_gateway(bounds: Bounds = BOUNDS, scheduler: Scheduler | None = None, **more: Any) -> Gateway:
    """A gateway that was never started. Create it inside an event loop."""
    settings = GatewaySettings("g", "127.0.0.1", "127.0.0.1", Path("none"), bounds=bounds, **more)
    made = Gateway(settings, GatewayConfig(PhysicalClusterId("pkc-000001"), (BROKER,), (TENANT,)))
    made.scheduler = scheduler or AtOnce()
    made.versions[BROKER.id] = ({"Produce": Versions(0, 13)}, {})
    return made


def serving_session(gateway: Gateway, tenant: Tenant = TENANT) -> tuple[Session, Wire, Wire]:
    """A serving session, its client's transport and its broker's."""
    session, client, broker = Session(gateway, 1, "127.0.0.1", BROKER), Wire(), Wire()
    session.connection_made(client)
    usage = gateway.usage.setdefault(TENANT.id, Usage())
    session.connection.logged_in(PRINCIPAL, usage)
    upstream = Upstream(BROKER)
    upstream.connection_made(broker)
    session.join(upstream)
    context = TenantContext(tenant, {1: (b"gateway", 9001)})
    session.connection.linked(LOGIN, context, BROKER, 0, gateway.now())
    session.connection.to_client.clear()  # the response to the login
    return session, client, broker
