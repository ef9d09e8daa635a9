"""A tenant's quota on one gateway, and how its clients learn to wait (KIP-219).

`TenantQuota` is charged for everything a tenant's connections do here. While a limit is in debt, requests
that would use more of it wait in its `ThrottleQueue`. A fetch returns at most a fraction of a second of
egress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.gateway.limits.metering import NEVER_REACHED
from penstock.gateway.limits.throttle_queue import WAIT_SECONDS_MAX, ThrottleQueue
from penstock.model.events import Dimension
from penstock.quota.token_bucket import THROTTLE_SECONDS_MAX, UNLIMITED, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.gateway.limits.metering import Usage
    from penstock.model.ids import LogicalClusterId

FETCH_SECONDS: Final = 0.1  # of egress per fetch: bytes in flight are not counted yet
# Bits of `Usage.exhausted`. A request waits only for limits it uses: a heartbeat counts as a request, but
# does not wait behind megabytes.
PRODUCE, FETCH, SHARE_FETCH = 0, 1, 78
LIMIT_BITS: Final[Mapping[Dimension, int]] = {
    Dimension.INGRESS_BYTES: 1,
    Dimension.EGRESS_BYTES: 2,
    Dimension.REQUESTS: 4,
    Dimension.REQUEST_TIME_US: 8,
    Dimension.GATEWAY_TIME_US: 16,
}
_THROTTLED_APIS: Final = (
    (Dimension.INGRESS_BYTES, (PRODUCE,)),
    (Dimension.EGRESS_BYTES, (FETCH, SHARE_FETCH)),
    (Dimension.REQUESTS, None),
    (Dimension.REQUEST_TIME_US, None),
    (Dimension.GATEWAY_TIME_US, None),
)
# Time is known only afterwards, so at most one window is charged, as in Kafka.
_QUEUE_SECONDS_MAX: Final = dict.fromkeys(
    (Dimension.REQUEST_TIME_US, Dimension.GATEWAY_TIME_US), THROTTLE_SECONDS_MAX
)

Rates = Mapping[Dimension, float]  # per second; unlisted dimensions are unlimited


class TenantQuota:
    """One tenant's limits on this gateway, and how long it was throttled for each.

    Most requests cost two comparisons: below `Usage.requests_check_at` and its siblings no limit can be in
    debt, whatever the time. Beyond, whatever was counted since the last charge is charged.
    """

    __slots__ = (
        "_buckets", "_bytes_in", "_egress", "_prepaid", "_processor", "_queues", "_refusals", "_requests",
        "_service", "_time_us", "_usage", "egress_left", "fetch_bytes_max", "partitions",
        "pressure_throttled_seconds", "service_check_at", "throttled_seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self._buckets: dict[Dimension, Bucket] = {}
        self._queues: dict[Dimension, ThrottleQueue] = {}
        self._prepaid: dict[Dimension, float] = {}  # charged before it was counted
        self._refusals: Bucket | None = None  # once a request was refused
        self._usage: Usage | None = None  # the counters to charge
        self._requests, self._bytes_in, self._time_us = 0, 0, 0.0  # counter values already charged
        self._service = 0.0  # service seconds at the last charge of request time
        self._processor = 0.0  # processor seconds at the last charge of gateway time
        self._egress = UNLIMITED  # `egress_left` at the last charge
        self.service_check_at = self.egress_left = UNLIMITED
        self.throttled_seconds: dict[Dimension, float] = {}
        self.pressure_throttled_seconds: dict[Dimension, float] = {}  # by limits of brokers
        self.fetch_bytes_max = NEVER_REACHED  # of one fetch
        self.partitions: dict[bytes, int] = {}  # by topic, as far as known: the cost of deleting it

    def granted(self) -> dict[Dimension, float]:
        """The rates in force, per second."""
        return {dimension: bucket.rate for dimension, bucket in self._buckets.items()}

    def bind(self, usage: Usage) -> None:
        """Charge these counters from now on."""
        if self._usage is not usage:
            self._usage = usage
            self._requests, self._bytes_in = usage.requests, usage.bytes_in
            self._service, self._time_us = usage.service_seconds, usage.request_time_us()
            self._processor = usage.processor_seconds
            usage.charge_gateway_time = self.charge_gateway_time
            self._set_thresholds()

    # Charging

    def charge_ingress(self, now: float) -> float:
        """Charge what clients have sent since the last charge; returns seconds until it is paid."""
        usage = self._usage
        assert usage is not None
        use = {
            Dimension.REQUESTS: float(usage.requests - self._requests),
            Dimension.INGRESS_BYTES: float(usage.bytes_in - self._bytes_in),
        }
        self._requests, self._bytes_in = usage.requests, usage.bytes_in
        wait = self._charge_late(use, now)
        self._set_thresholds()
        return wait

    def charge_egress(self, now: float) -> float:
        """Charge what brokers have sent; returns seconds until it is paid."""
        if self.egress_left >= 0:
            return 0.0
        wait = self._charge_late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        self._egress = self.egress_left = self._available(Dimension.EGRESS_BYTES)
        return wait

    def charge_service_time(self, now: float) -> float:
        """Charge the time brokers took; returns seconds until it is paid."""
        usage = self._usage
        assert usage is not None
        before, self._service, self._time_us = self._time_us, usage.service_seconds, usage.request_time_us()
        wait = self._charge_late({Dimension.REQUEST_TIME_US: self._time_us - before}, now)
        self._set_thresholds()
        return wait

    def charge_gateway_time(self, now: float) -> None:
        """Charge the processor time of this gateway. Called whenever a part of a slice is used up."""
        usage = self._usage
        assert usage is not None
        used, self._processor = usage.processor_seconds - self._processor, usage.processor_seconds
        if Dimension.GATEWAY_TIME_US in self._buckets:
            self._charge_late({Dimension.GATEWAY_TIME_US: used * 1e6}, now)

    def charge_other_workers(self, use: Rates, now: float) -> None:
        """Charge what other workers let pass of the same limits; the next request here waits for it, too."""
        if self._egress != UNLIMITED:
            self._charge_late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        self._charge_late(use, now)
        self._egress = self.egress_left = self._available(Dimension.EGRESS_BYTES)
        self._set_thresholds()

    def charge(self, use: Mapping[Dimension, float], now: float) -> float:
        """Charge use; returns the longest wait of its dimensions in seconds."""
        return max((b.spend(use[d], now) for d, b in self._buckets.items() if d in use), default=0.0)

    def charge_refusal(self, rate: float, amount: float, now: float) -> float:
        """Charge a refused request to a rate of the gateway; returns seconds until it is paid."""
        if self._refusals is None:
            self._refusals = Bucket.full(rate, now)
        return self._refusals.spend(amount, now)

    def charge_ahead(self, dimension: Dimension, amount: float, now: float) -> None:
        """Charge use before it is counted."""
        bucket = self._buckets.get(dimension)
        if bucket is not None and bucket.rate != UNLIMITED:
            bucket.spend(amount, now)
            saved = self._prepaid.get(dimension, 0.0) + amount
            if dimension is Dimension.EGRESS_BYTES:
                # An estimate: expected bytes that never came are kept no longer than tokens are.
                saved = min(saved, max(bucket.rate * bucket.burst_seconds, amount))
            self._prepaid[dimension] = saved

    def cancel_charge(self, dimension: Dimension, amount: float, now: float) -> None:
        """Cancel a charge for use that will never be counted, and return its tokens."""
        prepaid, bucket = self._prepaid.get(dimension, 0.0), self._buckets.get(dimension)
        cancelled = min(prepaid, amount)
        if cancelled and bucket is not None:
            self._prepaid[dimension] = prepaid - cancelled
            bucket.spend(-cancelled, now)

    def _charge_late(self, use: Mapping[Dimension, float], now: float) -> float:
        """Charge use since the last charge, and mark limits in debt as exhausted."""
        longest = 0.0
        for dimension, bucket in self._buckets.items():
            amount = use.get(dimension)
            if amount is None:
                continue
            if (prepaid := self._prepaid.pop(dimension, 0.0)) > amount:
                self._prepaid[dimension] = prepaid - amount
            wait = bucket.spend_late(max(0.0, amount - prepaid), now)
            if wait > 0 and self._usage is not None:
                self._usage.exhausted |= LIMIT_BITS.get(dimension, 0)
            longest = max(longest, wait)
        return longest

    def retune(self, rates: Rates, now: float) -> None:
        """Set the rates from now on; earlier use is charged at the old ones."""
        if self._usage is not None:
            self.charge_ingress(now)
            self.charge_service_time(now)
            self.charge_gateway_time(now)
        if self._egress != UNLIMITED:
            self._charge_late({Dimension.EGRESS_BYTES: self._egress - self.egress_left}, now)
        for dimension in self._buckets.keys() - rates.keys():
            del self._buckets[dimension]
            self._prepaid.pop(dimension, None)
        for dimension, rate in rates.items():
            if (bucket := self._buckets.get(dimension)) is not None:
                bucket.retune(rate, now)
            else:
                self._buckets[dimension] = Bucket.full(rate, now)
        egress = rates.get(Dimension.EGRESS_BYTES, UNLIMITED)
        self.fetch_bytes_max = NEVER_REACHED if egress == UNLIMITED else max(1, int(egress * FETCH_SECONDS))
        self._egress = self.egress_left = self._available(Dimension.EGRESS_BYTES)
        self._set_thresholds()
        for queue in list(self._queues.values()):  # one that proceeds may wait for another limit
            queue.serve(now)

    def _set_thresholds(self) -> None:
        """Set how far the counters may go before there can be debt: tokens only increase meanwhile."""
        usage = self._usage
        if usage is not None:
            usage.requests_check_at = _threshold(self._requests, self._available(Dimension.REQUESTS))
            usage.bytes_in_check_at = _threshold(self._bytes_in, self._available(Dimension.INGRESS_BYTES))
        self.service_check_at = self._service + self._available(Dimension.REQUEST_TIME_US) / 1e6

    def _available(self, dimension: Dimension) -> float:
        bucket = self._buckets.get(dimension)
        return UNLIMITED if bucket is None or bucket.rate == UNLIMITED else max(0.0, bucket.tokens)

    # Waiting

    def queues(self, api_key: int, now: float) -> list[ThrottleQueue]:
        """The queues of exhausted limits that a request of this API has to pass.

        Other exhausted limits without debt or waiting connections are reopened: the connection that made the
        debt may be closed.
        """
        usage = self._usage
        if usage is None or not usage.exhausted:
            return []
        queues = []
        for dimension, apis in _THROTTLED_APIS:
            if not usage.exhausted & LIMIT_BITS[dimension]:
                continue
            queue = self.queue(dimension)
            if apis is None or api_key in apis:
                queues.append(queue)
            elif not queue.blocks(now):
                self.reopen(dimension)
        return queues

    def queue(self, dimension: Dimension) -> ThrottleQueue:
        queue = self._queues.get(dimension)
        if queue is None:
            seconds_max = _QUEUE_SECONDS_MAX.get(dimension, WAIT_SECONDS_MAX)
            queue = self._queues[dimension] = ThrottleQueue(self, dimension, seconds_max)
        return queue

    def reopen(self, dimension: Dimension) -> None:
        """Mark a limit as no longer exhausted."""
        assert self._usage is not None
        self._usage.exhausted &= ~LIMIT_BITS[dimension]

    def rate(self, dimension: Dimension) -> float:
        bucket = self._buckets.get(dimension)
        return UNLIMITED if bucket is None else bucket.rate

    def debt_seconds(self, dimension: Dimension, now: float) -> float:
        """Seconds until the debt is paid, at the current rate."""
        bucket = self._buckets.get(dimension)
        return 0.0 if bucket is None else bucket.spend(0.0, now)

    def waited(self, reason: Dimension, seconds: float) -> None:
        self.throttled_seconds[reason] = self.throttled_seconds.get(reason, 0.0) + seconds


def _threshold(counted: int, free: float) -> int:
    return NEVER_REACHED if free == UNLIMITED else counted + int(free)


class Quotas:
    """All tenants on one gateway. A tenant without limits costs nothing.

    `granted` returns the part of a tenant's quota in force here: all of it, unless it is shared.
    """

    def __init__(self, granted: Callable[[LogicalClusterId, Rates], Rates] | None = None) -> None:
        self._tenants: dict[LogicalClusterId, TenantQuota] = {}
        self._granted_rates: dict[LogicalClusterId, Rates] = {}
        self.granted = granted or (lambda _, configured: configured)

    def __iter__(self) -> Iterator[tuple[LogicalClusterId, TenantQuota]]:
        return iter(list(self._tenants.items()))

    def of(self, tenant: LogicalClusterId) -> TenantQuota:
        return self._tenants.setdefault(tenant, TenantQuota())

    def apply(self, tenant: LogicalClusterId, configured: Rates, now: float) -> TenantQuota:
        """Apply a tenant's limits if they have changed."""
        granted = self.granted(tenant, configured) if configured else configured
        if self._granted_rates.get(tenant, {}) != granted:
            self._granted_rates[tenant] = granted
            return self.retune(tenant, granted, now)
        return self.of(tenant)

    def retune(self, tenant: LogicalClusterId, rates: Rates, now: float) -> TenantQuota:
        """Set a tenant's limits."""
        quota = self.of(tenant)
        quota.retune(rates, now)
        return quota
