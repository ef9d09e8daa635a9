"""A sample of connections and requests in the log, by tenant: every nth of each.

Off unless a tenant, or the gateway for all tenants, has a rate (`log_sample`). Without one, a tenant costs a
lookup for each connection and nothing for each request: the handlers below are installed only where there is
a rate.

A line shows the account, API, size and duration, never content: no names, no records, no secrets. Lines per
second and tenant are bounded; further ones are counted.
"""

from __future__ import annotations

import struct
from time import perf_counter
from typing import TYPE_CHECKING, Final

import structlog

from penstock.model import key_names
from penstock.wire.definitions import load
from penstock.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Container

    from penstock.gateway.config import Tenant
    from penstock.gateway.session import Session
    from penstock.model.errors.plans import NameRefused, ResponseRefused
    from penstock.wire.splice import (
        Action,
        Buffer,
        FastPath,
        Observations,
        Program,
        RequestHandler,
        ResponseHandler,
    )

LINES_PER_SECOND_MAX: Final = 20  # per tenant
PENDING_MAX: Final = 1_000  # sampled requests of one connection without a response yet

_request = struct.Struct(">hhi")
_framed_request = struct.Struct(">ihhi").unpack_from
_framed_response = struct.Struct(">ii").unpack_from

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

    def attach(self, session: Session, tenant: Tenant) -> None:
        """Sample a connection that has logged in. A changed rate applies to later logins."""
        rate = self.rate if tenant.log_sample is None else tenant.log_sample
        if not rate:
            return
        sampled = self.tenants.get(tenant.id)
        if sampled is None or sampled.rate != rate:
            dropped = 0 if sampled is None else sampled.dropped
            sampled = self.tenants[tenant.id] = TenantSample(tenant.id, rate)
            sampled.dropped = dropped
        session.sample = ConnectionSample(session, sampled)

    def forget(self, tenants: Container[str]) -> None:
        """Drop all but these tenants."""
        for removed in [tenant for tenant in self.tenants if tenant not in tenants]:
            del self.tenants[removed]


class ConnectionSample:
    """One connection: its sampled requests in flight, and its totals."""

    __slots__ = ("bytes_in", "bytes_out", "facts", "logged", "pending", "requests", "sampled", "session")

    def __init__(self, session: Session, sampled: TenantSample) -> None:
        self.session = session
        self.sampled = sampled
        self.bytes_in = self.bytes_out = self.requests = 0
        self.pending: dict[int, tuple[str, int, int]] = {}  # by correlation id: API, version, bytes
        principal, broker = session.life.principal, session.broker
        self.facts: dict[str, object] = {
            "account": "" if principal is None else principal.account,
            "connection": session.number,
            key_names.BROKER: None if broker is None else broker.id,
        }
        self.logged = sampled.next_connection()
        if self.logged:
            now = session.server.now()
            login_ms = round((now - session.last_active) * 1000)
            facts = {"address": session.life.address, "login_ms": login_ms}
            sampled.log("connection opened", now, self.facts | facts)
        requests, responses = session.requests, session.responses
        requests.handler = SampledRequests(self, requests.handler)
        responses.handler = SampledResponses(self, responses.handler)
        if requests.fast_path is not None and responses.fast_path is not None:
            requests.fast_path = self.request_fast_path(requests.fast_path)
            responses.fast_path = self.response_fast_path(responses.fast_path)

    def record_request(
        self, api_key: int, version: int, correlation_id: int, size: int, *, silent: bool = False
    ) -> None:
        self.requests += 1
        self.bytes_in += size
        if not self.sampled.next_request():
            return
        sample = (load().api_name(api_key), version, size)
        if silent:
            self.log_request(sample, 0, None, None)
        elif len(self.pending) < PENDING_MAX:
            self.pending[correlation_id] = sample

    def record_response(
        self, correlation_id: int, size: int, started: float | None, error: int | None = None
    ) -> None:
        self.bytes_out += size
        sample = self.pending.pop(correlation_id, None) if self.pending else None
        if sample is not None:
            self.log_request(sample, size, started, error)

    def record_local_response(self, frame: bytes) -> None:
        self.record_response(_framed_response(frame)[1], len(frame), None)

    def log_request(
        self, sample: tuple[str, int, int], size: int, started: float | None, error: int | None
    ) -> None:
        api, version, bytes_in = sample
        facts = self.facts | {key_names.API: api, "version": version, "bytes_in": bytes_in, "bytes_out": size}
        if started is not None:
            facts["broker_ms"] = round((perf_counter() - started) * 1000, 3)
        wait = self.session.throttle_seconds()
        if wait > 0:
            facts["throttle_ms"] = round(wait * 1000)
        if error:
            facts[key_names.ERROR] = Code(error).name if error in list(Code) else str(error)
        self.sampled.log("request", self.session.server.now(), facts)

    def closed(self) -> None:
        if not self.logged:
            return
        reason = self.session.life.close_reason or "closed by the client"
        totals = {"bytes_in": self.bytes_in, "bytes_out": self.bytes_out, "requests": self.requests}
        self.sampled.log(
            "connection closed", self.session.server.now(), self.facts | totals | {"reason": reason}
        )

    def request_fast_path(self, fast_path: FastPath) -> FastPath:
        in_flight = self.session.in_flight

        def pass_request(data: bytes, position: int, here: int, out: list[Buffer]) -> int:
            before = len(in_flight)
            end = fast_path(data, position, here, out)
            if end:
                size, api_key, version, correlation_id = _framed_request(data, position)
                self.record_request(
                    api_key, version, correlation_id, size + 4, silent=len(in_flight) == before
                )
            return end

        return pass_request

    def response_fast_path(self, fast_path: FastPath) -> FastPath:
        in_flight = self.session.in_flight

        def pass_response(data: bytes, position: int, here: int, out: list[Buffer]) -> int:
            started = in_flight[0][2] if in_flight else None
            end = fast_path(data, position, here, out)
            if end:
                size, correlation_id = _framed_response(data, position)
                self.record_response(correlation_id, size + 4, started)
            return end

        return pass_response


class SampledRequests:
    """Wraps the session's request handler."""

    __slots__ = ("handler", "head", "sample")

    def __init__(self, sample: ConnectionSample, handler: RequestHandler) -> None:
        self.sample = sample
        self.handler = handler
        self.head = (0, 0, 0, 0)

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program | Action:
        self.head = (api_key, version, correlation_id, size + 4)
        return self.handler.begin(api_key, version, correlation_id, size)

    def end(self, seen: Observations | None) -> None:
        self.sample.record_request(*self.head, silent=seen is not None and seen[0][0] == 0)  # acks=0
        self.handler.end(seen)

    def taken(self, frame: bytes) -> None:
        api_key, version, correlation_id = _request.unpack_from(frame)
        self.sample.record_request(api_key, version, correlation_id, len(frame) + 4)
        self.handler.taken(frame)

    def refused(self, frame: bytes, error: NameRefused | ResponseRefused) -> None:
        api_key, version, correlation_id = _request.unpack_from(frame)
        self.sample.record_request(api_key, version, correlation_id, len(frame) + 4)
        self.handler.refused(frame, error)


class SampledResponses:
    """Wraps the session's response handler."""

    __slots__ = ("correlation_id", "handler", "sample", "size")

    def __init__(self, sample: ConnectionSample, handler: ResponseHandler) -> None:
        self.sample = sample
        self.handler = handler
        self.correlation_id = self.size = 0

    def begin(self, correlation_id: int, size: int) -> Program | Action:
        self.correlation_id, self.size = correlation_id, size + 4
        return self.handler.begin(correlation_id, size)

    def end(self, seen: Observations | None) -> None:
        in_flight = self.sample.session.in_flight[0]
        errors = [row[2] for row in seen or () if row[2]]  # Produce and DeleteTopics have one per row
        self.handler.end(seen)
        self.sample.record_response(
            self.correlation_id, self.size, in_flight[2], errors[0] if errors else None
        )

    def taken(self, frame: bytes) -> None:
        session = self.sample.session
        started, before = session.in_flight[0][2], len(session.to_client)
        self.handler.taken(frame)
        if len(session.to_client) > before:  # else it was the gateway's own request
            self.sample.record_response(self.correlation_id, len(session.to_client[-1]), started)

    def refused(self, frame: bytes, error: NameRefused | ResponseRefused) -> None:
        self.handler.refused(frame, error)
