"""A sample of connections and requests in the log, by tenant: every so many-th of each.

Off unless a tenant, or the gateway for all of them, has a rate (`log_sample`). A tenant without one
costs a look-up for each connection and nothing for each request: only where there is a rate do
these handlers stand before the session's own.

A line says whose, which API, how large and how long. Never what: no names, no records, no secrets.
At most so many lines a second for each tenant; the others are counted.
"""

from __future__ import annotations

import struct
from time import perf_counter
from typing import TYPE_CHECKING, Final

import structlog

from penstock.model import keys
from penstock.wire.codes import Code
from penstock.wire.definitions import load

if TYPE_CHECKING:
    from collections.abc import Container

    from penstock.gateway.config import Tenant
    from penstock.gateway.session import Session
    from penstock.model.errors.plans import AnswerRefused, NameRefused
    from penstock.wire.splice import Action, Buffer, ByHeart, Program, RequestHandler, ResponseHandler, Seen

LINES_PER_SECOND_MAX: Final = 20  # of one tenant
PENDING_MAX: Final = 1_000  # sampled requests of one connection that wait for their answer

_request = struct.Struct(">hhi")
_framed_request = struct.Struct(">ihhi").unpack_from
_framed_answer = struct.Struct(">ii").unpack_from

log = structlog.get_logger("penstock.gateway")


class Sampled:
    """One tenant's: which of its requests and connections are told of."""

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

    def say(self, event: str, now: float, facts: dict[str, object]) -> None:
        second = int(now)
        if second != self.second:
            self.second, self.lines = second, 0
        self.lines += 1
        if self.lines > LINES_PER_SECOND_MAX:
            self.dropped += 1
            return
        log.info(event, **{keys.TENANT: self.tenant}, **facts)


class Samples:
    """A gateway's: the tenants that have a rate."""

    def __init__(self, rate: float) -> None:
        self.rate = rate  # of tenants that have none of their own
        self.tenants: dict[str, Sampled] = {}

    def attach(self, session: Session, tenant: Tenant) -> None:
        """A connection has logged in. A rate that changes holds for those that come after."""
        rate = self.rate if tenant.log_sample is None else tenant.log_sample
        if not rate:
            return
        sampled = self.tenants.get(tenant.id)
        if sampled is None or sampled.rate != rate:
            dropped = 0 if sampled is None else sampled.dropped
            sampled = self.tenants[tenant.id] = Sampled(tenant.id, rate)
            sampled.dropped = dropped
        session.witness = Witness(session, sampled)

    def forget(self, tenants: Container[str]) -> None:
        """Only these tenants exist now."""
        for gone in [tenant for tenant in self.tenants if tenant not in tenants]:
            del self.tenants[gone]


class Witness:
    """One connection's: what is in flight of its sample, and what it came to in all."""

    __slots__ = ("bytes_in", "bytes_out", "facts", "pending", "requests", "sampled", "session", "told")

    def __init__(self, session: Session, sampled: Sampled) -> None:
        self.session = session
        self.sampled = sampled
        self.bytes_in = self.bytes_out = self.requests = 0
        self.pending: dict[int, tuple[str, int, int]] = {}  # by correlation id: API, version, bytes
        holder, broker = session.life.holder, session.broker
        self.facts: dict[str, object] = {
            "account": "" if holder is None else holder.account,
            "connection": session.number,
            keys.BROKER: None if broker is None else broker.id,
        }
        self.told = sampled.next_connection()
        if self.told:
            now = session.server.now()
            login_ms = round((now - session.began) * 1000)
            facts = {"address": session.life.address, "login_ms": login_ms}
            sampled.say("connection opened", now, self.facts | facts)
        requests, responses = session.requests, session.responses
        requests.handler = Asked(self, requests.handler)
        responses.handler = Answered(self, responses.handler)
        if requests.by_heart is not None and responses.by_heart is not None:
            requests.by_heart = self.asking_by_heart(requests.by_heart)
            responses.by_heart = self.answering_by_heart(responses.by_heart)

    def asked(
        self, api_key: int, version: int, correlation_id: int, size: int, *, silent: bool = False
    ) -> None:
        self.requests += 1
        self.bytes_in += size
        if not self.sampled.next_request():
            return
        sample = (load().api_name(api_key), version, size)
        if silent:
            self.tell(sample, 0, None, None)
        elif len(self.pending) < PENDING_MAX:
            self.pending[correlation_id] = sample

    def answered(
        self, correlation_id: int, size: int, started: float | None, error: int | None = None
    ) -> None:
        self.bytes_out += size
        sample = self.pending.pop(correlation_id, None) if self.pending else None
        if sample is not None:
            self.tell(sample, size, started, error)

    def answered_here(self, frame: bytes) -> None:
        self.answered(_framed_answer(frame)[1], len(frame), None)

    def tell(self, sample: tuple[str, int, int], size: int, started: float | None, error: int | None) -> None:
        api, version, asked = sample
        facts = self.facts | {keys.API: api, "version": version, "bytes_in": asked, "bytes_out": size}
        if started is not None:
            facts["broker_ms"] = round((perf_counter() - started) * 1000, 3)
        wait = self.session.wait_seconds()
        if wait > 0:
            facts["throttle_ms"] = round(wait * 1000)
        if error:
            facts[keys.ERROR] = Code(error).name if error in list(Code) else str(error)
        self.sampled.say("request", self.session.server.now(), facts)

    def closed(self) -> None:
        if not self.told:
            return
        why = self.session.life.why or "the client closed it"
        totals = {"bytes_in": self.bytes_in, "bytes_out": self.bytes_out, "requests": self.requests}
        self.sampled.say("connection closed", self.session.server.now(), self.facts | totals | {"why": why})

    def asking_by_heart(self, by_heart: ByHeart) -> ByHeart:
        waiting = self.session.waiting

        def asked(data: bytes, position: int, here: int, out: list[Buffer]) -> int:
            before = len(waiting)
            end = by_heart(data, position, here, out)
            if end:
                size, api_key, version, correlation_id = _framed_request(data, position)
                self.asked(api_key, version, correlation_id, size + 4, silent=len(waiting) == before)
            return end

        return asked

    def answering_by_heart(self, by_heart: ByHeart) -> ByHeart:
        waiting = self.session.waiting

        def answered(data: bytes, position: int, here: int, out: list[Buffer]) -> int:
            started = waiting[0][2] if waiting else None
            end = by_heart(data, position, here, out)
            if end:
                size, correlation_id = _framed_answer(data, position)
                self.answered(correlation_id, size + 4, started)
            return end

        return answered


class Asked:
    """Before the session's own handler of requests."""

    __slots__ = ("handler", "head", "witness")

    def __init__(self, witness: Witness, handler: RequestHandler) -> None:
        self.witness = witness
        self.handler = handler
        self.head = (0, 0, 0, 0)

    def begin(self, api_key: int, version: int, correlation_id: int, size: int) -> Program | Action:
        self.head = (api_key, version, correlation_id, size + 4)
        return self.handler.begin(api_key, version, correlation_id, size)

    def end(self, seen: Seen | None) -> None:
        self.witness.asked(*self.head, silent=seen is not None and seen[0][0] == 0)  # acks=0
        self.handler.end(seen)

    def taken(self, frame: bytes) -> None:
        api_key, version, correlation_id = _request.unpack_from(frame)
        self.witness.asked(api_key, version, correlation_id, len(frame) + 4)
        self.handler.taken(frame)

    def refused(self, frame: bytes, error: NameRefused | AnswerRefused) -> None:
        api_key, version, correlation_id = _request.unpack_from(frame)
        self.witness.asked(api_key, version, correlation_id, len(frame) + 4)
        self.handler.refused(frame, error)


class Answered:
    """Before the session's own handler of answers."""

    __slots__ = ("correlation_id", "handler", "size", "witness")

    def __init__(self, witness: Witness, handler: ResponseHandler) -> None:
        self.witness = witness
        self.handler = handler
        self.correlation_id = self.size = 0

    def begin(self, correlation_id: int, size: int) -> Program | Action:
        self.correlation_id, self.size = correlation_id, size + 4
        return self.handler.begin(correlation_id, size)

    def end(self, seen: Seen | None) -> None:
        waiting = self.witness.session.waiting[0]
        errors = [row[2] for row in seen or () if row[2]]  # of Produce and DeleteTopics, each for itself
        self.handler.end(seen)
        self.witness.answered(self.correlation_id, self.size, waiting[2], errors[0] if errors else None)

    def taken(self, frame: bytes) -> None:
        session = self.witness.session
        started, before = session.waiting[0][2], len(session.to_client)
        self.handler.taken(frame)
        if len(session.to_client) > before:  # else it was a question of our own
            answer = session.to_client[-1]
            self.witness.answered(self.correlation_id, len(answer), started)

    def refused(self, frame: bytes, error: NameRefused | AnswerRefused) -> None:
        self.handler.refused(frame, error)
