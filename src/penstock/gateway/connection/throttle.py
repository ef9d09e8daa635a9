"""The quota stage of a connection: charges what passes, queues what exceeds a limit, marks responses.

Both directions are charged. While a limit is in debt, frames that would use more of it stay unread and the
connection waits in its `ThrottleQueue`. Responses meanwhile carry the wait (KIP-219). The broker's side is
always read, so responses are never delayed. While nothing can be in debt, a request costs three comparisons.

On a broker with limits, the tenant's share of it (`broker_pressure`) is charged in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.gateway.limits.metering import ZoneBytes
from penstock.gateway.limits.tenant_quota import FETCH, PRODUCE, SHARE_FETCH
from penstock.gateway.limits.throttle_queue import WAIT_SECONDS_MAX
from penstock.model.events import Dimension
from penstock.quota.token_bucket import throttle_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.gateway.config import Broker
    from penstock.gateway.limits.broker_pressure import TenantShare
    from penstock.gateway.limits.calibration import BrokerWork
    from penstock.gateway.limits.metering import Usage
    from penstock.gateway.limits.tenant_quota import TenantQuota
    from penstock.gateway.limits.throttle_queue import ThrottleQueue, Waiter

OTHER_APIS: Final = -1
API_KEYS: Final = {"Produce": PRODUCE, "Fetch": FETCH, "ShareFetch": SHARE_FETCH}


class Throttle:
    """One connection's use of its tenant's quota, and of the tenant's share of the broker."""

    __slots__ = (
        "_arrived", "_charged", "_expected_bytes", "_passed_queues", "_queue", "_received", "_serving_queue",
        "in_flight_before", "muted_until", "quota", "share", "usage", "waiter", "work", "zone",
    )  # fmt: skip

    def __init__(self, quota: TenantQuota, usage: Usage, work: BrokerWork | None, waiter: Waiter) -> None:
        self.quota = quota
        self.usage = usage
        self.zone = ZoneBytes()  # of the zones that this connection joins
        self.work = work  # of a broker whose metrics are scraped
        self.waiter = waiter
        self.share: TenantShare | None = None  # on a broker with limits
        self.muted_until = 0.0  # too many partition changes or refusals
        self._queue: ThrottleQueue | None = None  # in which it waits
        self._serving_queue: ThrottleQueue | None = None  # which is serving it now
        self._passed_queues: list[ThrottleQueue] = []  # that the next frame has already waited in
        self._charged: list[tuple[ThrottleQueue, float]] = []  # ahead, for the frame being read
        self.in_flight_before = 0  # requests in flight at the last read
        self._received = 0  # bytes from the broker since then
        self._expected_bytes = 0  # of a fetch
        self._arrived = 0  # bytes of the frame being read that are counted

    def joins(self, broker: Broker, client_zone: str) -> None:
        """What passes from now on is between these zones."""
        self.zone = self.usage.zone_bytes(str(broker.zone), client_zone)

    # Requests

    def exhausted(self) -> bool:
        """Whether any limit is exhausted."""
        return self.usage.exhausted != 0 or (self.share is not None and self.share.usage.exhausted != 0)

    def holds(self, api_key: int, size: int, now: float) -> bool:
        """Queue the next frame if a limit it uses is exhausted; returns whether it was queued."""
        queues: list[ThrottleQueue] = []
        for quota in self._quotas():
            for queue in quota.queues(api_key, now):
                if queue in self._passed_queues:
                    queues.append(queue)
                elif queue.blocks(now, being_served=queue is self._serving_queue):
                    self._queue = queue
                    queue.join(self.waiter, self._expected_use(queue, size), now)
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

    def proceeds(self, queue: ThrottleQueue, in_flight: int) -> None:
        """The queue lets the next frame pass."""
        self._queue = None
        self._serving_queue = queue
        self._passed_queues.append(queue)
        self.expect(in_flight)

    def proceeded(self, in_flight: int) -> None:
        self._serving_queue = None
        self.in_flight_before = in_flight

    def fetch_bytes_max(self) -> int:
        """How much one fetch may return."""
        if self.share is None:
            return self.quota.fetch_bytes_max
        return min(self.quota.fetch_bytes_max, self.share.quota.fetch_bytes_max)

    def count(self, size: int, now: float) -> None:
        """Count and charge a request."""
        usage = self.usage
        usage.requests += 1
        if self._charged or self._passed_queues:
            self._charged, self._passed_queues = [], []
        if self.share is not None:
            self.share.usage.requests += 1
        if self._arrived:
            size -= self._arrived
            self._arrived = 0
        self._count_bytes(size, now)

    def arrived(self, size: int, now: float) -> None:
        """Count and charge what has arrived of a request that is passed on in pieces: it may never end."""
        more, self._arrived = size - self._arrived, size
        self._count_bytes(more, now)

    def _count_bytes(self, size: int, now: float) -> None:
        usage = self.usage
        usage.bytes_in += size
        self.zone.bytes_in += size
        if usage.bytes_in > usage.bytes_in_check_at or usage.requests > usage.requests_check_at:
            self.quota.charge_ingress(now)
        if self.share is not None:
            on_broker = self.share.usage
            on_broker.bytes_in += size
            if on_broker.bytes_in > on_broker.bytes_in_check_at:
                self.share.quota.charge_ingress(now)

    def closed(self, now: float) -> None:
        """Leave the queue, and cancel charges for a request that will not come."""
        if self._queue is not None:
            self._queue.leave(self.waiter, now)
            self._queue = None
        for queue, amount in self._charged:
            if queue.dimension is not Dimension.EGRESS_BYTES:  # which is counted when it arrives
                queue.quota.cancel_charge(queue.dimension, amount, now)
        self._charged = []

    def expect(self, in_flight: int) -> None:
        """Expect the next fetch to return as many bytes as the previous ones did."""
        responses = self.in_flight_before - in_flight
        if responses > 0:
            self._expected_bytes, self._received = self._received // responses, 0

    def _expected_use(self, queue: ThrottleQueue, size: int) -> float:
        """The expected use of a request; for a fetch, that of the previous one."""
        if queue.dimension is Dimension.INGRESS_BYTES:
            return float(size)
        if queue.dimension is Dimension.EGRESS_BYTES:
            return float(self._expected_bytes)
        return 1.0 if queue.dimension is Dimension.REQUESTS else 0.0

    # Responses

    def received(self, size: int, now: float) -> None:
        """Charge a response of the broker."""
        quota, share = self.quota, self.share
        self._received += size
        self.zone.bytes_out += size
        quota.egress_left -= size
        if quota.egress_left < 0:
            quota.charge_egress(now)
        if share is not None:
            share.usage.bytes_out += size
            share.quota.egress_left -= size
            if share.quota.egress_left < 0:
                share.quota.charge_egress(now)

    def served(self, seconds: float, now: float) -> None:
        """Count and charge request time; only the broker's own work is charged."""
        usage, share = self.usage, self.share
        usage.service_seconds += seconds
        correction = 0.0 if self.work is None else self.work.correction(seconds)
        usage.calibration += correction
        if usage.service_seconds > self.quota.service_check_at:
            self.quota.charge_service_time(now)
        if share is not None:
            share.usage.service_seconds += seconds
            share.usage.calibration += correction
            if share.usage.service_seconds > share.quota.service_check_at:
                share.quota.charge_service_time(now)

    def marks(self) -> bool:
        """Whether responses may have to carry a wait."""
        return self.muted_until != 0.0 or self.exhausted()

    def wait_ms(self, api: str, now: float) -> int:
        """The throttle time in a response of this API."""
        seconds = self._throttle_seconds_for(API_KEYS.get(api, OTHER_APIS), now)
        return throttle_ms(seconds, at_most=WAIT_SECONDS_MAX)

    def _throttle_seconds_for(self, api_key: int, now: float) -> float:
        longest = self.muted_until - now
        for quota in self._quotas():
            for queue in quota.queues(api_key, now):
                longest = max(longest, queue.throttle_seconds(now))
        return max(longest, 0.0)

    def throttle_seconds(self, now: float) -> float:
        """How long the client will still not be read."""
        queued = 0.0 if self._queue is None else self._queue.throttle_seconds_of(self.waiter, now)
        return max(queued, self.muted_until - now)

    def _quotas(self) -> list[TenantQuota]:
        return [self.quota] if self.share is None else [self.quota, self.share.quota]

    # Partitions

    def spend_changes(self, count: float, now: float) -> float:
        """Charge partition changes; returns seconds until they are paid."""
        return self.quota.charge({Dimension.PARTITION_CHANGES: count}, now)

    def changes_limited(self) -> bool:
        return Dimension.PARTITION_CHANGES in self.quota.granted()

    def deleted(self, names: Iterable[bytes]) -> int:
        """How many partitions these topics had, as far as known."""
        return sum(self.quota.partitions.pop(name, 1) for name in names)

    def learn_partitions(self, prefix: bytes, present: Mapping[str, tuple[int, int]]) -> None:
        self.quota.partitions = {prefix + name.encode(): count for name, (count, _) in present.items()}

    def mute(self, seconds: float, now: float, reason: Dimension) -> bool:
        """Read the client no more for so long, whatever it sends; false if it is muted for longer already."""
        until = now + min(seconds, WAIT_SECONDS_MAX)
        if until <= self.muted_until:
            return False
        self.quota.waited(reason, until - max(now, self.muted_until))
        self.muted_until = until
        return True
