"""A week of quotas: how many tenants meet the bandwidth objective under each sharing scheme?

The objective is the paper's (Kora §5.2.2): a tenant within its quota is throttled for at most five minutes
a week. All schemes run on the same traffic (`traffic`), with the functions that coordinators and gateways
use (`penstock.quota`).

Traffic changes at most once a step; a step consists of ticks. In a tick, a gateway passes its demand up to
its limit; the rest is queued and offered again. A tick in which any traffic of a tenant is queued counts
as throttled, unless a single limit for the whole tenant would have throttled it in that tick, too
(`SingleLimit`). A broker with more demand than its limit shrinks every tenant's limit there
(`tuned_level`). Use and throttling are reported at the end of an interval; the new shares apply from then
on. A gateway whose report is lost keeps its limits.

Schemes must differ in nothing but sharing:
- All are counted in the same ticks, as long as a coordinator's interval, the shortest time after which any
  scheme can react. In ticks as long as its interval, a scheme that decides rarely would be charged half a
  minute for one queued second.
- Under every scheme, and under the single limit, at most a minute's worth of the tenant's quota is queued.
  Otherwise more would be left over from a time beyond the quota than the quota itself would leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.quota.auto_tuning import tuned_level
from penstock.quota.sharing import (
    DEFAULT_POLICY,
    IntervalUsage,
    SharingPolicy,
    even_split,
    lazy_limits,
    peaks,
    share_out,
)
from penstock.quota.usage_reports import FALLBACK_SECONDS, INTERVAL_SECONDS
from penstock.sim.traffic import CELL_BROKERS, DAY_SECONDS, QUOTA_MAX, USE_MEDIAN, Populations, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.sim.traffic import Flags, Floats, Integers

OBJECTIVE_SECONDS: Final = 300.0  # throttled per week
WEEK_SECONDS: Final = 7 * DAY_SECONDS
TICK_SECONDS: Final = INTERVAL_SECONDS  # the unit of throttled time, under every scheme
BACKLOG_SECONDS_MAX: Final = 60.0  # of a tenant's quota, over all of its gateways
BROKER_LIMIT: Final = QUOTA_MAX  # a broker can carry the largest tenant, if alone
TOLERANCE: Final = 1 + 1e-9
NEGLIGIBLE: Final = 0.12  # of a quota: (1 − 0.12)² ÷ 6 is more
SEEDS_TOGETHER: Final = 5
FOLLOW_STEPS: Final = 4  # after use has become negligible


@dataclass(frozen=True, slots=True)
class Scheme:
    name: str
    policy: SharingPolicy | None  # None: always the even split
    lazy: bool = False
    interval_seconds: float = INTERVAL_SECONDS
    lost: float = 0.0  # share of reports that are lost
    failover_seconds: float = 0.0  # until a coordinator is replaced; each dies once a day


STATIC: Final = Scheme("static", None)
DYNAMIC: Final = Scheme("dynamic", DEFAULT_POLICY)
DYNAMIC_LAZY: Final = Scheme("dynamic, lazy", DEFAULT_POLICY, lazy=True)
SCHEMES: Final = (STATIC, DYNAMIC, DYNAMIC_LAZY)

# Longer intervals than a minute would need another time after which gateways fall back.
SENSITIVITY: Final = tuple(
    replace(scheme, name=f"{name}, {scheme.name}", lazy=lazy)
    for name, lazy in (("dynamic", False), ("lazy", True))
    for scheme in (
        *(Scheme(f"every {s} s", DEFAULT_POLICY, interval_seconds=s) for s in (10, 30, 60)),
        *(Scheme(f"{p:.0%} of reports lost", DEFAULT_POLICY, lost=p) for p in (0.01, 0.1, 0.5)),
        *(Scheme(f"fail-over of {s} s a day", DEFAULT_POLICY, failover_seconds=s) for s in (60, 600)),
    )
)


@dataclass(frozen=True, slots=True)
class Score:
    scheme: str
    met: float  # share of the tenants
    throttled_seconds: Floats = field(repr=False)  # by tenant, within its quota
    pressed: float = 0.0  # share of broker time at the broker's limit
    overshoot: float = 0.0  # highest use of any tenant in any tick, as a multiple of its quota


@dataclass(frozen=True, slots=True)
class StepDemand:
    """One step of the simulated tenants."""

    rows: Integers
    demand: Floats
    down: Flags
    within: Flags  # by tick and tenant: a single limit for the tenant would not throttle
    load: Floats  # by broker


@dataclass(slots=True)
class GatewayState:
    """The state of tenants' gateways, by tenant and gateway."""

    shares: Floats
    limits: Floats
    backlog: Floats
    passed: Floats  # in this interval so far
    peak: Floats
    waited: Flags
    updated_at: Floats

    @classmethod
    def at_first(cls, even: Floats) -> GatewayState:
        nothing = np.zeros(even.shape)
        waited = np.zeros(even.shape, dtype=bool)
        return cls(even.copy(), even.copy(), nothing, nothing.copy(), nothing.copy(), waited, nothing.copy())

    def of(self, rows: Integers) -> GatewayState:
        return GatewayState(*(getattr(self, name)[rows] for name in self.__slots__))

    def put(self, rows: Integers, gateways: GatewayState) -> None:
        for name in self.__slots__:
            getattr(self, name)[rows] = getattr(gateways, name)


class SchemeRun:
    """Simulates the weeks of some populations under schemes with the same policy and interval.

    Each scheme has a separate copy of all tenants and brokers. Only tenants that could be throttled are
    simulated: one that uses less than `NEGLIGIBLE` of its quota has a larger share at every gateway. When it
    rises above that, it starts with the shares that its use in the previous step would have led to; if its
    coordinator died, with the shares published last.
    """

    def __init__(
        self, schemes: Sequence[Scheme], populations: Populations, broker_limit: float = BROKER_LIMIT
    ) -> None:
        assert len({decision_rule(scheme) for scheme in schemes}) == 1
        self.schemes = schemes
        policy, interval_seconds = decision_rule(schemes[0])
        self.static, self.policy = policy is None, policy or DEFAULT_POLICY
        self.populations = populations
        self.broker_limit = broker_limit
        count, brokers = populations.quota.size, len(populations.seeds) * populations.size.brokers
        self.quota = np.tile(populations.quota, len(schemes))
        self.brokers = np.concatenate([populations.brokers + brokers * n for n in range(len(schemes))])
        self.lazy = np.repeat([scheme.lazy for scheme in schemes], count)[:, None]
        self.even = even_split(self.quota, np.ones(self.brokers.shape, dtype=bool))
        self.gateways = GatewayState.at_first(self.even)
        self.lagging = np.zeros(self.quota.size, dtype=bool)
        self.follow_until = np.full(self.quota.size, -1)
        self.published_at = np.zeros(self.quota.size)  # when its coordinator last published, before it died
        self.dead_until = np.zeros(self.quota.size)
        self.throttled_seconds = np.zeros(self.quota.size)
        self.overshoot = np.zeros(self.quota.size)
        self.pressed = np.zeros(brokers * len(schemes))  # ticks, by broker
        self.rngs = [[np.random.default_rng([seed, 21]) for seed in populations.seeds] for _ in schemes]
        self.ticks = 0  # so far
        self.dt, _ = ticks_of(populations.size)
        self.every = max(1, round(interval_seconds / self.dt))

    def advance(self, within: Flags, step: int) -> None:
        """Advances by one step of traffic."""
        traffic = self.populations
        active = traffic.total > NEGLIGIBLE * traffic.quota
        if traffic.broken:
            active |= traffic.down(np.arange(active.size)).any(axis=1)
        dead = self.dead_until > self.ticks * self.dt
        relevant = np.tile(active, len(self.schemes)) | self.lagging | dead
        followed = self.follow_until >= step
        self.follow_until[relevant] = step + FOLLOW_STEPS
        fresh = np.flatnonzero(relevant & ~followed)
        if fresh.size:
            self.follow(fresh, self._demand_of(fresh, traffic.demand_before))
        rows = np.flatnonzero(relevant | followed)
        demand, tenants = self._demand_of(rows, traffic.demand), rows % traffic.quota.size
        down, load = traffic.down(tenants), self._load(rows, demand)
        self.step(StepDemand(rows, demand, down, within[:, tenants], load))

    def _demand_of(self, rows: Integers, demand: Callable[[Integers], Floats]) -> Floats:
        """The tenants' demand, for each of their copies under a scheme."""
        tenants, place = np.unique(rows % self.populations.quota.size, return_inverse=True)
        return demand(tenants)[place]

    def _load(self, rows: Integers, demand: Floats) -> Floats:
        """The demand at each broker; tenants that are not simulated are spread evenly over their cell."""
        rest = np.tile(self.populations.total, len(self.schemes))
        rest[rows] = 0.0
        brokers = len(self.pressed)
        cells = np.bincount(self.brokers[:, 0] // CELL_BROKERS, rest, brokers // CELL_BROKERS)
        step_demand = np.bincount(self.brokers[rows].ravel(), demand.ravel(), brokers)
        return np.asarray(step_demand + np.repeat(cells / CELL_BROKERS, CELL_BROKERS))

    def follow(self, rows: Integers, before: Floats) -> None:
        """Starts simulating these tenants; `before` is their use in the previous step."""
        if self.static:
            return
        nowhere = np.zeros(before.shape, dtype=bool)
        use = self._use(before, before, nowhere, nowhere)
        gateways, quota = self.gateways.of(rows), self.quota[rows]
        gateways.peak = before
        gateways.shares = share_out(quota, use, self.even[rows], self.policy)
        gateways.limits = self._limits(rows, quota, gateways.shares, use)
        now = self.ticks * self.dt
        dead = self.dead_until[rows] > now
        gateways.updated_at[:] = np.where(dead, self.published_at[rows], now)[:, None]
        gateways.passed = before * (self.ticks % self.every)
        gateways.waited[:] = False
        self.gateways.put(rows, gateways)

    def step(self, step_demand: StepDemand) -> None:
        gateways, quota = self.gateways.of(step_demand.rows), self.quota[step_demand.rows]
        brokers = self.brokers[step_demand.rows]
        end = self.ticks + len(step_demand.within)
        for within in step_demand.within:
            waited = self._tick(step_demand, within, gateways, quota, brokers)
            if self.static and not waited:
                break  # nothing is queued and nothing is decided: the other ticks are the same
        self.ticks = end
        self.gateways.put(step_demand.rows, gateways)

    def _tick(
        self, step_demand: StepDemand, within: Flags, gateways: GatewayState, quota: Floats, brokers: Integers
    ) -> bool:
        """Simulates one tick; returns whether any tenant was throttled."""
        offered = step_demand.demand + gateways.backlog / self.dt
        granted = self._passed(gateways.limits, offered, step_demand, brokers)
        waits = offered > granted * TOLERANCE
        waiting = waits.any(axis=1)
        gateways.backlog = self._backlog(offered - granted, quota)
        gateways.backlog[step_demand.down] = 0.0  # its traffic goes to the others from now on
        self.lagging[step_demand.rows] = waiting
        self.throttled_seconds[step_demand.rows] += self.dt * (waiting & within)
        overshoot = np.maximum(self.overshoot[step_demand.rows], granted.sum(axis=1) / quota)
        self.overshoot[step_demand.rows] = overshoot
        gateways.passed += granted
        gateways.waited |= waits
        self.ticks += 1
        if not self.static and self.ticks % self.every == 0:
            self._share(gateways, step_demand, quota, brokers)
        return bool(waiting.any())

    def _backlog(self, held: Floats, quota: Floats) -> Floats:
        """What is offered again: of a tenant, at most a minute's worth of its quota."""
        left = held * self.dt
        total, most = left.sum(axis=1), quota * BACKLOG_SECONDS_MAX
        over = total > most
        if over.any():
            left[over] *= (most[over] / total[over])[:, None]
        return left

    def _use(self, used: Floats, peak: Floats, waited: Flags, silent: Flags) -> IntervalUsage:
        return IntervalUsage(used, peak, waited, np.ones(used.shape, dtype=bool), silent)

    def _limits(self, rows: Integers, quota: Floats, shares: Floats, use: IntervalUsage) -> Floats:
        return np.where(self.lazy[rows], lazy_limits(quota, shares, use, self.policy), shares)

    def _share(
        self, gateways: GatewayState, step_demand: StepDemand, quota: Floats, brokers: Integers
    ) -> None:
        now = self.ticks * self.dt
        # There is a gateway beside each broker: a lost report is lost for all of its tenants.
        lost = self._drawn(self.populations.size.brokers, [scheme.lost for scheme in self.schemes])
        silent = step_demand.down | lost[brokers]
        used = gateways.passed / self.every
        gateways.peak = peaks(gateways.peak, used, self.policy)
        use = self._use(used, gateways.peak, gateways.waited, silent)
        unreachable = silent | self._without_coordinator(now)[step_demand.rows, None]
        gateways.updated_at = np.where(unreachable, gateways.updated_at, now)
        fell_back = now - gateways.updated_at > FALLBACK_SECONDS
        had, bound = gateways.shares, gateways.limits
        if fell_back.any():
            even = self.even[step_demand.rows]
            had, bound = np.where(fell_back, even, had), np.where(fell_back, even, bound)
        shares = share_out(quota, use, had, self.policy)
        limits = self._limits(step_demand.rows, quota, shares, use)
        gateways.shares = np.where(unreachable, had, shares)
        gateways.limits = np.where(unreachable, bound, limits)
        gateways.passed = np.zeros(used.shape)
        gateways.waited = np.zeros(used.shape, dtype=bool)

    def _without_coordinator(self, now: float) -> Flags:
        """Tenants whose coordinator is dead now."""
        away = [scheme.failover_seconds for scheme in self.schemes]
        if any(away):
            often = self.every * self.dt / DAY_SECONDS
            dies = self._drawn(self.populations.size.tenants, [often if each else 0.0 for each in away])
            last = now - self.every * self.dt
            self.published_at[dies & (self.dead_until <= last)] = last
            self.dead_until[dies] = now + np.repeat(away, self.populations.quota.size)[dies]
        return np.asarray(self.dead_until > now)

    def _drawn(self, count: int, odds: Sequence[float]) -> Flags:
        """Draws from `count` members of each population, independently of other schemes and seeds."""
        results = np.zeros((len(self.schemes), len(self.populations.seeds), count), dtype=bool)
        for scheme, often in enumerate(odds):
            if often:
                for seed, rng in enumerate(self.rngs[scheme]):
                    results[scheme, seed] = rng.random(count) < often
        return results.ravel()

    def _passed(self, limit: Floats, offered: Floats, step_demand: StepDemand, brokers: Integers) -> Floats:
        """The traffic that passes: below the tenants' and the brokers' limits."""
        granted = np.minimum(offered, limit)
        beyond = (granted - step_demand.demand).ravel()
        load = step_demand.load + np.bincount(brokers.ravel(), beyond, len(self.pressed))
        over = np.flatnonzero(load > self.broker_limit)
        for broker in over.tolist():
            # Tenants that are not simulated use so little that every level leaves them enough.
            at = brokers == broker
            quotas = limit[at]
            room = self.broker_limit - float(load[broker] - granted[at].sum())
            level = tuned_level(quotas, np.minimum(offered[at], quotas), room)
            granted[at] = np.minimum(granted[at], level * quotas)
        self.pressed[over] += 1
        return granted

    def scores(self) -> dict[Scheme, list[Score]]:
        """By scheme, one for each population."""
        allowed = objective_seconds(self.populations.size.days)
        shape = (len(self.schemes), len(self.populations.seeds), -1)
        seconds = self.throttled_seconds.reshape(shape)
        met = (seconds <= allowed).mean(axis=2)
        pressed = self.pressed.reshape(shape).mean(axis=2) / max(1, self.ticks)
        overshoot = self.overshoot.reshape(shape).max(axis=2)
        return {
            scheme: [
                Score(scheme.name, *values)
                for values in zip(met[n].tolist(), seconds[n], pressed[n].tolist(), overshoot[n].tolist())
            ]
            for n, scheme in enumerate(self.schemes)
        }


def objective_seconds(days: float) -> float:
    """How long a tenant may be throttled in `days`."""
    return OBJECTIVE_SECONDS * days * DAY_SECONDS / WEEK_SECONDS


def decision_rule(scheme: Scheme) -> tuple[SharingPolicy | None, float]:
    """The policy and interval of a scheme."""
    return scheme.policy, scheme.interval_seconds


class SingleLimit:
    """A single limit for each tenant as a whole: the baseline of all schemes."""

    def __init__(self, populations: Populations) -> None:
        self.quota = populations.quota
        self.dt, self.ticks = ticks_of(populations.size)
        self.backlog = np.zeros(self.quota.size)

    def step(self, total: Floats) -> Flags:
        """By tick and tenant: whether all demand passes, including what was queued before."""
        within = np.ones((self.ticks, total.size), dtype=bool)
        rows = np.flatnonzero((total > self.quota) | (self.backlog > 0))
        if rows.size:
            quota, backlog = self.quota[rows], self.backlog[rows]
            for tick in within:
                beyond = total[rows] + backlog / self.dt - quota
                tick[rows] = beyond <= 0
                backlog = np.clip(beyond * self.dt, 0.0, quota * BACKLOG_SECONDS_MAX)
            self.backlog[rows] = backlog
        return within


def ticks_of(size: Size) -> tuple[float, int]:
    """The length of a tick, and the number of ticks in a step."""
    count = max(1, round(size.step_seconds / TICK_SECONDS))
    return size.step_seconds / count, count


def week(
    seed: int, size: Size, schemes: Sequence[Scheme] = SCHEMES, *, use_median: float = USE_MEDIAN
) -> list[Score]:
    """One population's week under all schemes."""
    return next(weeks((seed,), size, schemes, use_median=use_median))


def weeks(
    seeds: Sequence[int], size: Size, schemes: Sequence[Scheme] = SCHEMES, *, use_median: float = USE_MEDIAN
) -> Iterator[list[Score]]:
    """The same for each seed; several are simulated together, which is faster."""
    alike: dict[object, list[Scheme]] = {}
    for scheme in schemes:
        alike.setdefault(decision_rule(scheme), []).append(scheme)
    for first in range(0, len(seeds), SEEDS_TOGETHER):
        populations = Populations(seeds[first : first + SEEDS_TOGETHER], size, use_median)
        run = [SchemeRun(each, populations) for each in alike.values()]
        single_limit = SingleLimit(populations)
        for step in range(size.steps):
            populations.advance()
            within = single_limit.step(populations.total)
            for one in run:
                one.advance(within, step)
        results = {scheme: scores for one in run for scheme, scores in one.scores().items()}
        yield from ([results[scheme][n] for scheme in schemes] for n in range(len(populations.seeds)))
