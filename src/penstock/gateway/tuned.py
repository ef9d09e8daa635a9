"""Brokers with more asked of them than they can do: every tenant is held to its part (Kora §5.2.1).

A broker's limits are stated in the settings, or follow what waits while it is under pressure. On such a
broker each tenant has a `Part`: what it does there, and what it is left with, in proportion to its quota.
Once a second `Tuning.look` decides anew (`penstock.quota.tuning`). On any other broker there are no parts,
and nothing is counted. All gateways of a cluster may lead to one broker: of a limit that is stated, each of
them, and each worker of them, holds an even split. There is nobody to deal it out by what passes where.

NumPy is imported when somebody is held for the first time: most gateways never need its ten megabytes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.gateway.admission import Denial
from penstock.gateway.metering import Usage
from penstock.gateway.throttling import TenantQuota
from penstock.model.events import Dimension
from penstock.quota.buckets import UNLIMITED
from penstock.quota.pressure import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.gateway.config import Broker, Tenant
    from penstock.gateway.pressure import PressureWatch
    from penstock.gateway.server import Gateway
    from penstock.gateway.throttling import Quotas, Rates
    from penstock.model.ids import LogicalClusterId

LOOK_SECONDS: Final = 1.0
FOLLOWED: Final = (Dimension.INGRESS_BYTES, Dimension.EGRESS_BYTES, Dimension.REQUEST_TIME_US)
HELD: Final = (*FOLLOWED, Dimension.CONNECTION_ATTEMPTS)
STILL_LOOKS: Final = 2  # without any use, after which one who waits is not taken to want anything
FREE: Final = dict.fromkeys(FOLLOWED, UNLIMITED)


@dataclass(slots=True)
class Attempts:
    """Logins that come back at `rate` a second, up to `size`."""

    rate: float
    size: float
    left: float
    filled_at: float

    def take(self, now: float) -> bool:
        self.left = min(self.size, self.left + (now - self.filled_at) * self.rate)
        self.filled_at = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Part:
    """One tenant on one broker."""

    __slots__ = (
        "attempts", "before", "quota", "refused", "refused_before", "still", "usage",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.usage = Usage()
        self.quota = TenantQuota()
        self.quota.retune(FREE, now)
        self.quota.bind(self.usage)
        self.attempts: Attempts | None = None  # none while nobody is held
        self.refused = self.refused_before = 0
        self.before = dict.fromkeys(HELD, 0.0)  # what had been done at the last look
        self.still = 0  # looks since it did anything

    def done(self) -> dict[Dimension, float]:
        return {
            Dimension.INGRESS_BYTES: self.usage.bytes_in,
            Dimension.EGRESS_BYTES: self.usage.bytes_out,
            Dimension.REQUEST_TIME_US: self.usage.request_time_us(),
            Dimension.CONNECTION_ATTEMPTS: self.usage.attempts,
        }

    def attempt(self, now: float) -> Denial | None:
        """A login on this broker."""
        self.usage.attempts += 1
        if self.attempts is None or self.attempts.take(now):
            return None
        self.refused += 1
        return Denial.BROKER_RATE

    def retune(self, rates: Rates, now: float) -> None:
        """What it is left with from now on; those who wait for it wait no longer than they have to."""
        self.quota.retune({dimension: rates.get(dimension, UNLIMITED) for dimension in FOLLOWED}, now)
        self._retune_attempts(rates.get(Dimension.CONNECTION_ATTEMPTS), now)

    def _retune_attempts(self, rate: float | None, now: float) -> None:
        if rate is None:
            self.attempts = None
            return
        had = self.attempts.left if self.attempts is not None else 1.0
        since = self.attempts.filled_at if self.attempts is not None else now
        size = max(1.0, rate)  # no more of a burst than a second: it is a broker that has to bear it
        self.attempts = Attempts(rate, size, min(had, size), since)

    def rate(self, dimension: Dimension) -> float:
        if dimension is Dimension.CONNECTION_ATTEMPTS:
            return UNLIMITED if self.attempts is None else self.attempts.rate
        return self.quota.rate(dimension)


class BrokerTuning:
    """One broker: its limits, its tenants' parts, and the levels that hold now."""

    def __init__(self, limits: Mapping[Dimension, float]) -> None:
        self.stated = limits
        self.following: dict[Dimension, float] = {}
        self.least: dict[Dimension, float] = {}
        self.parts: dict[LogicalClusterId, Part] = {}
        self.levels: dict[Dimension, float] = {}
        self.looked_at: float | None = None

    def part(self, tenant: LogicalClusterId, now: float) -> Part:
        found = self.parts.get(tenant)
        if found is None:
            found = self.parts[tenant] = Part(now)
        return found

    def look(self, rates: Callable[[LogicalClusterId], Rates], waited_seconds: float, now: float) -> None:
        """Decide for the next second. `rates` are tenants' quotas here; `waited_seconds` is 0 without
        pressure, else how long the oldest request has waited."""
        since, self.looked_at = self.looked_at, now
        if since is None or now <= since or not self.parts:
            return
        used = {tenant: self._used(part, now - since) for tenant, part in self.parts.items()}
        self._follow(used, waited_seconds)
        held: dict[LogicalClusterId, dict[Dimension, float]] = {tenant: {} for tenant in self.parts}
        levels = {}
        for dimension, limit in {**self.stated, **self.following}.items():
            levels[dimension], given = self._shared(dimension, limit, used, rates, since)
            for tenant, rate in given.items():
                # One without a quota counts for the limit and no more, so it alone never lowers the level.
                if levels[dimension] < 1.0 or rates(tenant).get(dimension, UNLIMITED) == UNLIMITED:
                    held[tenant][dimension] = rate
        for tenant, part in self.parts.items():
            part.retune(held[tenant], now)
        self.levels = levels

    def _used(self, part: Part, seconds: float) -> dict[Dimension, float]:
        done = part.done()
        part.still = part.still + 1 if done == part.before else 0
        used = {dimension: (done[dimension] - part.before[dimension]) / seconds for dimension in HELD}
        part.before = done
        return used

    def _follow(
        self, used: Mapping[LogicalClusterId, Mapping[Dimension, float]], waited_seconds: float
    ) -> None:
        from penstock.quota.tuning import LEVEL_MIN, request_limit

        for dimension in FOLLOWED:
            if dimension in self.stated:
                self.following.pop(dimension, None)
                continue
            total = sum(one[dimension] for one in used.values())
            before = self.following.pop(dimension, None)
            if before is None:
                self.least[dimension] = LEVEL_MIN * total
                if not total:
                    continue
            limit = request_limit(before, total, waited_seconds, WAIT_SECONDS, self.least[dimension])
            if limit is not None:
                self.following[dimension] = limit

    def _shared(
        self,
        dimension: Dimension,
        limit: float,
        used: Mapping[LogicalClusterId, Mapping[Dimension, float]],
        rates: Callable[[LogicalClusterId], Rates],
        since: float,
    ) -> tuple[float, dict[LogicalClusterId, float]]:
        import numpy as np

        from penstock.quota.tuning import in_proportion, tuned_parts

        tenants = list(self.parts)
        quotas = np.array([rates(tenant).get(dimension, UNLIMITED) for tenant in tenants])
        if not np.isfinite(quotas).any():
            weights = np.array([rates(tenant).get(Dimension.INGRESS_BYTES, UNLIMITED) for tenant in tenants])
            if np.isfinite(weights).all() and weights.min() > 0:
                quotas = in_proportion(weights, limit)
        waits, amounts = [], []
        for tenant, part in self.parts.items():
            waiting = self._waits(part, dimension, since)
            rate = part.rate(dimension)
            # One that had to wait wanted at least what it was left with, however it came in the second.
            least = rate if waiting and rate != UNLIMITED else 0.0
            waits.append(waiting)
            amounts.append(max(used[tenant][dimension], least))
        level, given = tuned_parts(quotas, np.array(amounts), np.array(waits), limit)
        return level, dict(zip(tenants, given.tolist()))

    def _waits(self, part: Part, dimension: Dimension, since: float) -> bool:
        if dimension is Dimension.CONNECTION_ATTEMPTS:
            refused, part.refused_before = part.refused > part.refused_before, part.refused
            return refused
        return part.quota.line(dimension).waited_since(since) and part.still < STILL_LOOKS


class Tuning:
    """Of all brokers of one gateway: give it to the sessions, and run it."""

    def __init__(self, quotas: Quotas, *, gateways: int = 1) -> None:
        self._quotas = quotas
        self._gateways = gateways  # that hold a stated limit together; workers count one by one
        self._brokers: dict[int, BrokerTuning] = {}

    def __iter__(self) -> Iterator[tuple[int, BrokerTuning]]:
        return iter(list(self._brokers.items()))

    def part(self, broker: Broker | None, tenant: LogicalClusterId, now: float) -> Part | None:
        """None where nobody is held."""
        if broker is None:
            return None
        tuning = self._brokers.get(int(broker.id))
        if tuning is None:
            if not broker.limits:
                return None
            tuning = self._brokers[int(broker.id)] = BrokerTuning(self._stated(broker))
        return tuning.part(tenant, now)

    def _stated(self, broker: Broker) -> dict[Dimension, float]:
        return {dimension: limit / self._gateways for dimension, limit in broker.limits.items()}

    def look(self, gateway: Gateway, pressed: Mapping[int, float], now: float) -> None:
        """Once a second. Limits that are stated anew hold for connections that there are."""
        tenants = gateway.config.tenant_of
        for broker in gateway.config.brokers:
            waited = pressed.get(int(broker.id), 0.0)
            tuning = self._brokers.get(int(broker.id))
            if tuning is None:
                if broker.limits or waited > WAIT_SECONDS:
                    self._brokers[int(broker.id)] = BrokerTuning(self._stated(broker))
                    self._attach(gateway, broker)
            else:
                tuning.stated = self._stated(broker)  # the configuration may be another by now
                tuning.look(lambda tenant: self._rates(tenants.get(tenant)), waited, now)
                if not broker.limits and int(broker.id) not in pressed and not tuning.following:
                    del self._brokers[int(broker.id)]
                    self._attach(gateway, broker)

    def _rates(self, tenant: Tenant | None) -> Rates:
        if tenant is None:
            return {}
        attempts = {Dimension.CONNECTION_ATTEMPTS: tenant.limits.connection_attempts_per_second}
        return self._quotas.of(tenant.id).granted() | attempts

    def _attach(self, gateway: Gateway, broker: Broker) -> None:
        for session in list(gateway.sessions.values()):
            if session.broker is not None and session.broker.id == broker.id:
                session.tune()

    async def run(self, gateway: Gateway, watch: PressureWatch) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(gateway, watch.pressed(), time.monotonic())
