"""A sample of connections and requests in the log, by tenant: every nth of each.

Off unless a tenant, or the gateway for all tenants, has a rate (`log_sample`). Without one, a tenant costs a
lookup for each connection and one comparison for each request.

A line shows the account, API, size and duration, never content: no names, no records, no secrets. Lines per
second and tenant are bounded; further ones are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from penstock.model import key_names
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Container

    from penstock.gateway.config import Tenant
    from penstock.gateway.connection.connection import Connection
    from penstock.gateway.connection.routes import Route

LINES_PER_SECOND_MAX: Final = 20  # per tenant
PENDING_MAX: Final = 1_000  # sampled requests of one connection without a response yet

log = structlog.get_logger("penstock.gateway")


class TenantSample:
    """Which requests and connections of one tenant are logged."""

    __slots__ = ("connections", "dropped", "every", "lines", "rate", "requests", "second", "tenant")

    def __init__(self, tenant: str, rate: float) -> None:
        self.tenant = tenant
        self.rate = rate
        self.every = max(1, round(1 / rate))
        self.connections = self.requests = 0
        self.second = self.lines = 0
        self.dropped = 0

    def next_connection(self) -> bool:
        self.connections += 1
        return (self.connections - 1) % self.every == 0

    def next_request(self) -> bool:
        self.requests += 1
        return (self.requests - 1) % self.every == 0

    def log(self, event: str, now: float, facts: dict[str, object]) -> None:
        second = int(now)
        if second != self.second:
            self.second, self.lines = second, 0
        self.lines += 1
        if self.lines > LINES_PER_SECOND_MAX:
            self.dropped += 1
            return
        log.info(event, **{key_names.TENANT: self.tenant}, **facts)


class RequestSampling:
    """The tenants of a gateway that have a sampling rate."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  # of tenants without one
        self.tenants: dict[str, TenantSample] = {}

    def of(self, tenant: Tenant) -> TenantSample | None:
        """The sample of a tenant that logs in, if it has a rate. A changed rate applies to later logins."""
        rate = self.rate if tenant.log_sample is None else tenant.log_sample
        if not rate:
            return None
        sampled = self.tenants.get(tenant.id)
        if sampled is None or sampled.rate != rate:
            dropped = 0 if sampled is None else sampled.dropped
            sampled = self.tenants[tenant.id] = TenantSample(tenant.id, rate)
            sampled.dropped = dropped
        return sampled

    def forget(self, tenants: Container[str]) -> None:
        """Drop all but these tenants."""
        for removed in [tenant for tenant in self.tenants if tenant not in tenants]:
            del self.tenants[removed]


class ConnectionSample:
    """One connection: its sampled requests in flight, and its totals."""

    __slots__ = ("bytes_in", "bytes_out", "connection", "facts", "logged", "pending", "requests", "sampled")

    def __init__(self, connection: Connection, sampled: TenantSample) -> None:
        self.connection = connection
        self.sampled = sampled
        self.bytes_in = self.bytes_out = self.requests = 0
        self.pending: dict[int, tuple[Route, int]] = {}  # by correlation id: route, bytes
        principal, broker = connection.life.principal, connection.broker
        self.facts: dict[str, object] = {
            "account": "" if principal is None else principal.account,
            "connection": connection.number,
            key_names.BROKER: None if broker is None else broker.id,
        }
        self.logged = sampled.next_connection()
        if self.logged:
            login_ms = round((connection.now - connection.last_active) * 1000)
            self._log("connection opened", {"address": connection.life.address, "login_ms": login_ms})

    def record_request(self, route: Route, correlation_id: int, size: int, *, silent: bool = False) -> None:
        """A request has been read; a silent one gets no response."""
        self.requests += 1
        self.bytes_in += size
        if not self.sampled.next_request():
            return
        if silent:
            self.log_request(route, size, 0, None, None)
        elif len(self.pending) < PENDING_MAX:
            self.pending[correlation_id] = (route, size)

    def record_response(
        self, correlation_id: int, size: int, seconds: float | None, error: int | None = None
    ) -> None:
        """A response has been written; `seconds` is the broker's time, None for one of the gateway's."""
        self.bytes_out += size
        sample = self.pending.pop(correlation_id, None) if self.pending else None
        if sample is not None:
            self.log_request(*sample, size, seconds, error)

    def log_request(
        self, route: Route, bytes_in: int, bytes_out: int, seconds: float | None, error: int | None
    ) -> None:
        facts: dict[str, object] = {key_names.API: route.api, "version": route.version}
        facts |= {"bytes_in": bytes_in, "bytes_out": bytes_out}
        if seconds is not None:
            facts["broker_ms"] = round(seconds * 1000, 3)
        throttle = self.connection.throttle
        wait = 0.0 if throttle is None else throttle.throttle_seconds(self.connection.now)
        if wait > 0:
            facts["throttle_ms"] = round(wait * 1000)
        if error:
            facts[key_names.ERROR] = Code(error).name if error in list(Code) else str(error)
        self._log("request", facts)

    def closed(self) -> None:
        if self.logged:
            reason = self.connection.life.close_reason or "closed by the client"
            totals = {"bytes_in": self.bytes_in, "bytes_out": self.bytes_out, "requests": self.requests}
            self._log("connection closed", {**totals, "reason": reason})

    def _log(self, event: str, facts: dict[str, object]) -> None:
        self.sampled.log(event, self.connection.now, self.facts | facts)
