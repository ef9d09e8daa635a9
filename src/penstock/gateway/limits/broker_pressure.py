"""Auto-tuning: on an overloaded broker every tenant is limited to its share (Kora §5.2.1).

A broker's limits come from the settings. Without them, they follow the observed wait while the broker is
under pressure and its own metrics confirm that it is overloaded. On such a broker each tenant has a
`TenantShare`: what it uses there, and what it may use, in proportion to its quota. `AutoTuner.update` decides
again once a second (`penstock.quota.auto_tuning`). On any other broker there are no shares, and nothing is
counted.

Several gateways may lead to one broker. Each of them, and each of its workers, enforces an even split of a
configured limit; no coordinator redistributes it by observed traffic.

NumPy is imported when the first tenant is limited: most gateways never need its ten megabytes.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from penstock.gateway.limits.admission import Denial
from penstock.gateway.limits.metering import Usage
from penstock.gateway.limits.tenant_quota import TenantQuota
from penstock.model.events import Dimension
from penstock.quota.pressure import WAIT_SECONDS
from penstock.quota.token_bucket import UNLIMITED, Bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.gateway.config import Broker, Tenant
    from penstock.gateway.limits.pressure_reports import PressureWatch
    from penstock.gateway.limits.tenant_quota import Quotas, Rates
    from penstock.gateway.process.server import Gateway
    from penstock.model.ids import LogicalClusterId

TUNE_SECONDS: Final = 1.0
ADAPTIVE: Final = (Dimension.INGRESS_BYTES, Dimension.EGRESS_BYTES, Dimension.REQUEST_TIME_US)
IDLE_ROUNDS_MAX: Final = 2  # without any use, after which a queued tenant counts as idle
ATTEMPTS_PER_SECOND_MIN: Final = 1e-6  # a bucket without a rate never fills
UNLIMITED_RATES: Final = dict.fromkeys(ADAPTIVE, UNLIMITED)


class TenantShare:
    """One tenant on one broker: what it uses there, and what it may use."""

    __slots__ = ("attempts", "idle_rounds", "previous", "quota", "refused", "refused_previous", "usage")

    def __init__(self, now: float) -> None:
        self.usage = Usage()
        self.quota = TenantQuota()
        self.quota.retune(UNLIMITED_RATES, now)
        self.quota.bind(self.usage)
        self.attempts: Bucket | None = None  # None while logins are not limited
        self.refused = self.refused_previous = 0
        self.previous = self.usage.used()  # at the last update
        self.idle_rounds = 0  # updates since it used anything

    def attempt(self, now: float) -> Denial | None:
        """Count a login on this broker; returns why it is denied, if so."""
        self.usage.attempts += 1
        if self.attempts is None or self.attempts.take(1.0, now):
            return None
        self.refused += 1
        return Denial.BROKER_RATE

    def retune(self, rates: Rates, now: float) -> None:
        """Set the rates from now on; queued connections wait no longer than these require."""
        self.quota.retune({dimension: rates.get(dimension, UNLIMITED) for dimension in ADAPTIVE}, now)
        self._retune_attempts(rates.get(Dimension.CONNECTION_ATTEMPTS), now)

    def _retune_attempts(self, rate: float | None, now: float) -> None:
        if rate is None:
            self.attempts = None
            return
        rate = max(rate, ATTEMPTS_PER_SECOND_MIN)
        # A burst of at most one second, as the broker is overloaded, and of at least one login.
        burst_seconds = max(1.0, (1.0 + 1e-9) / rate)
        tokens = self.attempts.tokens if self.attempts is not None else 1.0
        since = self.attempts.filled_at if self.attempts is not None else now
        self.attempts = Bucket(rate, min(tokens, rate * burst_seconds), since, burst_seconds)

    def rate(self, dimension: Dimension) -> float:
        if dimension is Dimension.CONNECTION_ATTEMPTS:
            return UNLIMITED if self.attempts is None else self.attempts.rate
        return self.quota.rate(dimension)


class BrokerTuner:
    """One broker: its limits, its tenants' shares, and the levels in force."""

    def __init__(self, limits: Mapping[Dimension, float]) -> None:
        self.configured = limits
        self.adaptive: dict[Dimension, float] = {}
        self.floors: dict[Dimension, float] = {}
        self.shares: dict[LogicalClusterId, TenantShare] = {}
        self.levels: dict[Dimension, float] = {}
        self.tuned_at: float | None = None

    def share(self, tenant: LogicalClusterId, now: float) -> TenantShare:
        if tenant not in self.shares:
            self.shares[tenant] = TenantShare(now)
        return self.shares[tenant]

    def update(self, rates: Callable[[LogicalClusterId], Rates], waited_seconds: float, now: float) -> None:
        """Decide for the next second. `rates` returns a tenant's quota here; `waited_seconds` is the age of
        the oldest request under pressure, else 0.
        """
        since, self.tuned_at = self.tuned_at, now
        if since is None or now <= since or not self.shares:
            return
        used = {tenant: self._used(share, now - since) for tenant, share in self.shares.items()}
        self._adapt(used, waited_seconds)
        limited: dict[LogicalClusterId, dict[Dimension, float]] = {tenant: {} for tenant in self.shares}
        levels = {}
        for dimension, limit in {**self.configured, **self.adaptive}.items():
            levels[dimension], limits = self._divide(dimension, limit, used, rates, since)
            for tenant, rate in limits.items():
                # A tenant without a quota has the whole limit as its quota, so it alone never lowers the
                # level.
                if levels[dimension] < 1.0 or rates(tenant).get(dimension, UNLIMITED) == UNLIMITED:
                    limited[tenant][dimension] = rate
        for tenant, share in self.shares.items():
            share.retune(limited[tenant], now)
        self.levels = levels

    def _used(self, share: TenantShare, seconds: float) -> dict[Dimension, float]:
        before, share.previous = share.previous, share.usage.used()
        share.idle_rounds = share.idle_rounds + 1 if share.previous == before else 0
        return {dimension: (used - before[dimension]) / seconds for dimension, used in share.previous.items()}

    def _adapt(
        self, used: Mapping[LogicalClusterId, Mapping[Dimension, float]], waited_seconds: float
    ) -> None:
        from penstock.quota.auto_tuning import LEVEL_MIN, adaptive_limit

        for dimension in ADAPTIVE:
            if dimension in self.configured:
                self.adaptive.pop(dimension, None)
                continue
            total = sum(one[dimension] for one in used.values())
            before = self.adaptive.pop(dimension, None)
            if before is None:
                self.floors[dimension] = LEVEL_MIN * total
                if not total:
                    continue
            limit = adaptive_limit(before, total, waited_seconds, WAIT_SECONDS, self.floors[dimension])
            if limit is not None:
                self.adaptive[dimension] = limit

    def _divide(
        self,
        dimension: Dimension,
        limit: float,
        used: Mapping[LogicalClusterId, Mapping[Dimension, float]],
        rates: Callable[[LogicalClusterId], Rates],
        since: float,
    ) -> tuple[float, dict[LogicalClusterId, float]]:
        import numpy as np

        from penstock.quota.auto_tuning import proportional_quotas, tuned_limits

        tenants = list(self.shares)
        quotas = np.array([rates(tenant).get(dimension, UNLIMITED) for tenant in tenants])
        if not np.isfinite(quotas).any():
            weights = np.array([rates(tenant).get(Dimension.INGRESS_BYTES, UNLIMITED) for tenant in tenants])
            if np.isfinite(weights).all() and weights.min() > 0:
                quotas = proportional_quotas(weights, limit)
        queued, amounts = [], []
        for tenant, share in self.shares.items():
            is_queued = self._queued(share, dimension, since)
            rate = share.rate(dimension)
            # A queued tenant wanted at least its rate, however its requests fell within the second.
            demand_min = rate if is_queued and rate != UNLIMITED else 0.0
            queued.append(is_queued)
            amounts.append(max(used[tenant][dimension], demand_min))
        level, limits = tuned_limits(quotas, np.array(amounts), np.array(queued), limit)
        return level, dict(zip(tenants, limits.tolist()))

    def _queued(self, share: TenantShare, dimension: Dimension, since: float) -> bool:
        if dimension is Dimension.CONNECTION_ATTEMPTS:
            refused, share.refused_previous = share.refused > share.refused_previous, share.refused
            return refused
        return share.quota.queue(dimension).waited_since(since) and share.idle_rounds < IDLE_ROUNDS_MAX


class AutoTuner:
    """Auto-tuning of all brokers of one gateway: pass it to the sessions, and run it."""

    def __init__(self, quotas: Quotas, *, gateways: int = 1) -> None:
        self._quotas = quotas
        self._gateways = gateways  # that enforce a configured limit together; each worker counts as one
        self._brokers: dict[int, BrokerTuner] = {}

    def __iter__(self) -> Iterator[tuple[int, BrokerTuner]]:
        return iter(list(self._brokers.items()))

    def share(self, broker: Broker | None, tenant: LogicalClusterId, now: float) -> TenantShare | None:
        """A tenant's share of a broker; None if the broker has no limits."""
        if broker is None:
            return None
        tuner = self._brokers.get(int(broker.id))
        if tuner is None:
            if not broker.limits:
                return None
            tuner = self._brokers[int(broker.id)] = BrokerTuner(self._configured(broker))
        return tuner.share(tenant, now)

    def _configured(self, broker: Broker) -> dict[Dimension, float]:
        return {dimension: limit / self._gateways for dimension, limit in broker.limits.items()}

    def update(self, gateway: Gateway, overloaded: Mapping[int, float], now: float) -> None:
        """Decide for all brokers, once a second. Changed limits apply to existing connections too."""
        tenants = gateway.config.tenant_of
        for broker in gateway.config.brokers:
            waited = overloaded.get(int(broker.id), 0.0)
            tuner = self._brokers.get(int(broker.id))
            if tuner is None:
                if broker.limits or waited > WAIT_SECONDS:
                    self._brokers[int(broker.id)] = BrokerTuner(self._configured(broker))
                    self._attach(gateway, broker)
            else:
                tuner.configured = self._configured(broker)  # the configuration may have changed
                tuner.update(lambda tenant: self._rates(tenants.get(tenant)), waited, now)
                if not broker.limits and int(broker.id) not in overloaded and not tuner.adaptive:
                    del self._brokers[int(broker.id)]
                    self._attach(gateway, broker)

    def _rates(self, tenant: Tenant | None) -> Rates:
        if tenant is None:
            return {}
        attempts = {Dimension.CONNECTION_ATTEMPTS: tenant.limits.connection_attempts_per_second}
        return self._quotas.of(tenant.id).granted() | attempts

    def _attach(self, gateway: Gateway, broker: Broker) -> None:
        for session in list(gateway.sessions.values()):
            reached = session.connection.broker
            if reached is not None and reached.id == broker.id:
                session.broker_limits_changed()

    async def run(self, gateway: Gateway, watch: PressureWatch) -> None:
        """Update until cancelled."""
        while True:
            await asyncio.sleep(TUNE_SECONDS)
            self.update(gateway, watch.overloaded(), time.monotonic())
