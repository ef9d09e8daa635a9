"""A session whose tenant has limits: over-quota requests are queued, and responses carry `throttle_time_ms`.

Both directions are charged for what passes. While a limit is in debt, frames that would use more of it stay
unread and their connections wait in its `ThrottleQueue`. Responses meanwhile carry the wait (KIP-219). The
broker's side is always read, so responses are never delayed. While nothing can be in debt, a request costs
three more comparisons than without limits.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from penstock.gateway import request_rewriting
from penstock.gateway.connection_states import THROTTLED
from penstock.gateway.local_requests import LocalRequests
from penstock.gateway.metering import NEVER_REACHED
from penstock.gateway.partition_limits import CREATE_TOPICS, STRICT_FIRST, decide_partitions
from penstock.gateway.session import Session
from penstock.gateway.tenant_quota import FETCH, PRODUCE, SHARE_FETCH, cap_fetch_bytes, with_throttle_time
from penstock.gateway.throttle_queue import WAIT_SECONDS_MAX
from penstock.model.events import Dimension
from penstock.quota.token_bucket import throttle_ms
from penstock.wire.splice import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.gateway.admission import Denial
    from penstock.gateway.broker_pressure import AutoTuner, TenantShare
    from penstock.gateway.calibration import BrokerWork, Calibration
    from penstock.gateway.config import Broker, Principal
    from penstock.gateway.routes import Route
    from penstock.gateway.server import Gateway
    from penstock.gateway.session import OnResponse
    from penstock.gateway.tenant_names import TenantContext
    from penstock.gateway.tenant_quota import ApiVersion, Quotas, TenantQuota, ThrottledResponse
    from penstock.gateway.throttle_queue import ThrottleQueue
    from penstock.gateway.upstream import Upstream
    from penstock.wire.frames import Request
    from penstock.wire.splice import Observations

MUTED: Final = 1 << 10  # a pause reason, as in `connection_states`: too many partition changes
FETCH_KEY: Final = FETCH.to_bytes(2)
ALL_TOPICS: Final = None  # in a Metadata request; the broker's authorizer leaves the tenant's
OTHER_APIS: Final = -1
API_KEYS: Final = {"Produce": PRODUCE, "Fetch": FETCH, "ShareFetch": SHARE_FETCH}


class ThrottledSession(Session):
    __slots__ = (
        "_calibration", "_charged", "_expected_bytes", "_in_flight_before", "_muted_until", "_passed_queues",
        "_queue", "_quota", "_quotas", "_received", "_serving_queue", "_share", "_throttle_notice", "_tuner",
        "_unmuting", "_work",
    )  # fmt: skip

    def __init__(
        self,
        server: Gateway,
        number: int,
        address: str,
        broker: Broker | None,
        quotas: Quotas,
        tuner: AutoTuner | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(server, number, address, broker)
        self._quotas = quotas
        self._tuner = tuner
        self._calibration = calibration
        self._work: BrokerWork | None = None  # of a broker whose metrics are scraped
        self._quota: TenantQuota | None = None
        self._share: TenantShare | None = None  # on a broker with limits
        self._queue: ThrottleQueue | None = None  # in which it waits
        self._serving_queue: ThrottleQueue | None = None  # which is serving it now
        self._passed_queues: list[ThrottleQueue] = []  # that the next frame has already waited in
        self._charged: list[tuple[ThrottleQueue, float]] = []  # ahead, for the frame being read
        self._in_flight_before = 0  # requests in flight at the last read
        self._received = 0  # bytes from the broker since then
        self._expected_bytes = 0  # of a fetch
        self._muted_until = 0.0
        self._unmuting: asyncio.TimerHandle | None = None
        self._throttle_notice: tuple[int, ApiVersion] | None = None
        self.local_requests = ThrottledLocalRequests(self)

    def broker_denial(self, principal: Principal) -> Denial | None:
        if self._tuner is None:
            return None
        now = self.server.now()
        share = self._tuner.share(self.broker, principal.tenant, now)
        return None if share is None else share.attempt(now)

    def link(self, upstream: Upstream, context: TenantContext) -> None:
        super().link(upstream, context)
        self._quota = self._quotas.apply(context.tenant.id, context.tenant.quota, self.server.now())
        self._quota.bind(self.usage)
        self.usage.throttled_seconds = self._quota.throttled_seconds
        self.usage.pressure_throttled_seconds = self._quota.pressure_throttled_seconds
        self.usage.granted = self._quota.granted
        if self._calibration is not None:
            self._work = self._calibration.of(upstream.broker)
        largest = context.tenant.limits.request_bytes_max
        if largest is not None:
            self.limit_requests(Limits(min(largest, self.limits.frame_bytes_max), self.limits.held_bytes_max))
        self.broker_limits_changed()

    def broker_limits_changed(self) -> None:
        if self._tuner is None or self.context is None or self._quota is None:
            return
        self._share = self._tuner.share(self.broker, self.context.tenant.id, self.server.now())
        if self._share is not None:
            self._share.quota.throttled_seconds = self._quota.pressure_throttled_seconds

    def data_received(self, data: bytes) -> None:
        # Clients fetch on a separate connection, so the first request of a chunk is enough to look at.
        if self._quota is not None and data[4:6] == FETCH_KEY:
            data = self._capped(data, self._quota)
            self._expect()
        super().data_received(data)
        self._in_flight_before = len(self.in_flight)

    def _capped(self, data: bytes, quota: TenantQuota) -> bytes:
        bytes_max, requests = quota.fetch_bytes_max, self.requests
        if self._share is not None:
            bytes_max = min(bytes_max, self._share.quota.fetch_bytes_max)
        if bytes_max == NEVER_REACHED or not requests.between_frames or requests.held_bytes:
            return data
        return cap_fetch_bytes(data, bytes_max)

    def _expect(self) -> None:
        """Expect the next fetch to return as many bytes as the previous ones did."""
        responses = self._in_flight_before - len(self.in_flight)
        if responses > 0:
            self._expected_bytes, self._received = self._received // responses, 0

    # Frames from the client, one by one

    def count_request(self, size: int) -> None:
        usage = self.usage
        usage.requests += 1
        usage.bytes_in += size
        if self._charged or self._passed_queues:
            self._charged, self._passed_queues = [], []
        if usage.bytes_in > usage.bytes_in_check_at or usage.requests > usage.requests_check_at:
            assert self._quota is not None, "only a tenant with a quota has a threshold"
            self._quota.charge_ingress(self.server.now())
        if self._share is not None:
            on_broker = self._share.usage
            on_broker.bytes_in += size
            on_broker.requests += 1
            if on_broker.bytes_in > on_broker.bytes_in_check_at:
                self._share.quota.charge_ingress(self.server.now())

    def is_throttled(self) -> bool:
        return self.usage.exhausted != 0 or (self._share is not None and self._share.usage.exhausted != 0)

    def queue_if_throttled(self, api_key: int, size: int) -> bool:
        if self._quota is None:
            return False
        now = self.server.now()
        queues: list[ThrottleQueue] = []
        for quota in (self._quota,) if self._share is None else (self._quota, self._share.quota):
            for queue in quota.queues(api_key, now):
                if queue in self._passed_queues:
                    queues.append(queue)
                elif queue.blocks(now, being_served=queue is self._serving_queue):
                    self._queue = queue
                    queue.join(self, self._expected_use(queue, size), now)
                    self.pause(THROTTLED)
                    return True
                elif len(queue):
                    queues.append(queue)
                else:
                    quota.reopen(queue.dimension)
        self._charged = [(queue, self._expected_use(queue, size)) for queue in queues]
        for queue, amount in self._charged:
            queue.quota.charge_ahead(queue.dimension, amount, now)
        self._passed_queues = []
        return False

    def _expected_use(self, queue: ThrottleQueue, size: int) -> float:
        """The expected use of a request; for a fetch, that of the previous one."""
        match queue.dimension:
            case Dimension.INGRESS_BYTES:
                return float(size)
            case Dimension.EGRESS_BYTES:
                return float(self._expected_bytes)
            case Dimension.REQUESTS:
                return 1.0
            case _:
                return 0.0

    def proceed(self, queue: ThrottleQueue) -> None:
        self._queue = None
        self._serving_queue = queue
        self._passed_queues.append(queue)
        self._expect()
        try:
            self.unpause(THROTTLED)
        except Exception as failure:  # noqa: BLE001 - a failure ends this connection alone
            self._end(failure)
        finally:
            self._serving_queue = None
            self._in_flight_before = len(self.in_flight)

    def _end(self, failure: Exception) -> None:
        """Report an internal error and close, so that the queue keeps serving others."""
        context = {"message": "a queued connection failed", "exception": failure, "protocol": self}
        asyncio.get_running_loop().call_exception_handler(context)
        self.close("internal error")

    def timer(self, queue: ThrottleQueue, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, lambda: queue.serve(self.server.now()))

    # Responses from the broker

    def from_broker(self, data: bytes) -> None:
        quota, share = self._quota, self._share
        assert quota is not None, "a broker responds to linked sessions only"
        size = len(data)
        self._received += size
        quota.egress_left -= size
        if quota.egress_left < 0:
            quota.charge_egress(self.server.now())
        if share is not None:
            self._from_limited_broker(data, share)
        elif self.usage.exhausted or self._muted_until:
            self._from_broker_throttled(data)
        else:
            self._pass_on(data)
        if self.usage.service_seconds > quota.service_check_at:
            quota.charge_service_time(self.server.now())

    def _from_limited_broker(self, data: bytes, share: TenantShare) -> None:
        """Pass on bytes from a broker with limits, which are charged to the tenant's share too."""
        usage, on_broker = self.usage, share.usage
        on_broker.bytes_out += len(data)
        share.quota.egress_left -= len(data)
        if share.quota.egress_left < 0:
            share.quota.charge_egress(self.server.now())
        service, calibration = usage.service_seconds, usage.calibration
        self._from_broker_throttled(data)
        on_broker.service_seconds += usage.service_seconds - service
        on_broker.calibration += usage.calibration - calibration
        if on_broker.service_seconds > share.quota.service_check_at:
            share.quota.charge_service_time(self.server.now())

    def _from_broker_throttled(self, data: bytes) -> None:
        """Pass on responses, with the throttle time if the client has to wait."""
        if (self.is_throttled() or self._muted_until) and self.responses.between_frames:
            throttled = self._throttled_responses()
            if throttled:
                self.add_throttle_time = lambda out: [with_throttle_time(b"".join(out), throttled)]
        try:
            self._pass_on(data)
        finally:
            self.add_throttle_time = None

    def _throttled_responses(self) -> dict[int, ThrottledResponse]:
        """The throttle time of each response in flight, by correlation id."""
        throttled: dict[int, ThrottledResponse] = {}
        wait_ms: dict[int, int] = {}
        for number, route, *_ in self.in_flight:
            if route is None:
                continue
            key = API_KEYS.get(route.api, OTHER_APIS)
            if key not in wait_ms:
                wait_ms[key] = throttle_ms(self._throttle_seconds_for(key), at_most=WAIT_SECONDS_MAX)
            if wait_ms[key] > 0:
                throttled[number] = (route.api, route.version, wait_ms[key])
        return throttled

    def _throttle_seconds_for(self, api_key: int) -> float:
        now = self.server.now()
        longest = self._muted_until - now
        assert self._quota is not None
        for quota in (self._quota,) if self._share is None else (self._quota, self._share.quota):
            for queue in quota.queues(api_key, now):
                longest = max(longest, queue.throttle_seconds(now))
        return max(longest, 0.0)

    def _pass_on(self, data: bytes) -> None:
        """Pass on to the client; only the broker's own work is charged as request time."""
        work = self._work
        if work is None:
            super().from_broker(data)
            return
        usage = self.usage
        before = usage.service_seconds
        super().from_broker(data)
        usage.calibration += work.correction(usage.service_seconds - before)

    def respond(self, frame: bytes) -> None:
        super().respond(frame if self._throttle_notice is None else _throttled(frame, *self._throttle_notice))

    def forward(
        self, frame: bytes, correlation_id: int, route: Route, then: OnResponse | None = None
    ) -> None:
        notice = self._throttle_notice
        if notice is None or then is None:
            super().forward(frame, correlation_id, route, then)
            return
        inner = then

        def throttled(response: bytes) -> bytes | None:
            made = inner(response)
            return None if made is None else _throttled(made, *notice)

        super().forward(frame, correlation_id, route, throttled)

    def deleted(self, seen: Observations) -> None:
        quota = self._quota
        assert quota is not None
        deleted = sum(quota.partitions.pop(name, 1) for name, _, error in seen if not error and name)
        self.change_partitions(deleted, self.spend_changes(float(deleted)))

    def partitions_limited(self) -> bool:
        if self._quota is None or self.context is None:
            return False
        rates = self._quota.granted()
        return Dimension.PARTITION_CHANGES in rates or self.context.tenant.limits.partitions_max is not None

    def spend_changes(self, count: float) -> float:
        assert self._quota is not None
        return self._quota.charge({Dimension.PARTITION_CHANGES: count}, self.server.now())

    def change_partitions(self, count: int, wait: float) -> None:
        """Count partition changes, and mute the client for as long as they cost."""
        self.usage.partition_changes += count
        if wait > 0:
            self._mute(min(wait, WAIT_SECONDS_MAX))

    @contextlib.contextmanager
    def throttle_notice(self, wait: float, request: ApiVersion) -> Iterator[None]:
        """While active, responses and forwarded requests carry this wait."""
        if wait > 0:
            self._throttle_notice = throttle_ms(wait, at_most=WAIT_SECONDS_MAX), request
        try:
            yield
        finally:
            self._throttle_notice = None

    def learn_partitions(self, present: Mapping[str, tuple[int, int]]) -> None:
        assert self._quota is not None
        assert self.context is not None
        prefix = self.context.prefix
        self._quota.partitions = {prefix + name.encode(): count for name, (count, _) in present.items()}

    def connection_lost(self, failure: Exception | None) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
        if self._queue is not None:
            self._queue.leave(self, self.server.now())
            self._queue = None
        for queue, amount in self._charged:
            if queue.dimension is not Dimension.EGRESS_BYTES:  # which is counted when it arrives
                queue.quota.cancel_charge(queue.dimension, amount)
        super().connection_lost(failure)

    def _mute(self, seconds: float) -> None:
        """Stop reading the client for so long, whatever it sends: partitions change one request at a time."""
        assert self._quota is not None
        now = self.server.now()
        until = now + seconds
        if until <= self._muted_until:
            return
        self._quota.waited(Dimension.PARTITION_CHANGES, until - max(now, self._muted_until))
        self._muted_until = until
        if self._unmuting is not None:
            self._unmuting.cancel()
        self.pause(MUTED)
        self._unmuting = asyncio.get_running_loop().call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        self._muted_until = 0.0
        self.unpause(MUTED)

    def throttle_seconds(self) -> float:
        now = self.server.now()
        queued = 0.0 if self._queue is None else self._queue.throttle_seconds(now)
        return max(queued, self._muted_until - now)


class ThrottledLocalRequests(LocalRequests):
    """Checks partition limits before CreateTopics and CreatePartitions."""

    session: ThrottledSession

    def rebuild(self, request: Request, route: Route) -> None:
        if request.api in STRICT_FIRST and self.session.partitions_limited():
            self.run_while_paused(self._check_partitions(request, route))
        else:
            super().rebuild(request, route)

    async def _check_partitions(self, request: Request, route: Route) -> None:
        session, server, tenant = self.session, self.session.server, self.context.tenant
        metadata = await self.request_metadata(ALL_TOPICS)
        present = request_rewriting.partitions_present(metadata, tenant.prefix.decode())
        session.learn_partitions(present)
        decision = decide_partitions(request, present, tenant.limits.partitions_max, session.spend_changes)
        brokers = server.config.brokers_for(tenant)
        if request.api == CREATE_TOPICS:
            rebuilt = request_rewriting.create_topics(decision.request, tenant, brokers, server.place)
            key = "Topics"
        else:
            rebuilt = request_rewriting.create_partitions(
                decision.request, tenant, brokers, server.place, present
            )
            key = "Results"
        notice = session.throttle_notice(decision.throttle_seconds, (request.api, request.version))
        with self.sending(), notice:
            entries = [refused.entry for refused in decision.refused] + rebuilt.entries
            self.forward_rebuilt(request, rebuilt.request, entries, route, key)
        session.change_partitions(decision.changes, decision.throttle_seconds)


def _throttled(frame: bytes, wait_ms: int, request: ApiVersion) -> bytes:
    """One whole response, with its throttle time."""
    return with_throttle_time(frame, {int.from_bytes(frame[4:8], signed=True): (*request, wait_ms)})


def throttled_sessions(
    quotas: Quotas, tuner: AutoTuner | None = None, calibration: Calibration | None = None
) -> Callable[[Gateway, int, str, Broker | None], Session]:
    """A session factory for `Gateway(session=…)`."""

    def new_session(server: Gateway, number: int, address: str, broker: Broker | None) -> Session:
        return ThrottledSession(server, number, address, broker, quotas, tuner, calibration)

    return new_session
