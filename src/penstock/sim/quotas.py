"""A week of quotas: how many tenants meet the bandwidth objective under which way of sharing?

The objective is the paper's (Kora §5.2.2): at most five minutes of a week throttled, for a tenant
that asks for no more than its quota. The schemes run side by side on one and the same traffic
(`traffic`), by the functions that a coordinator and a gateway use (`penstock.quota`).

Traffic changes once a step. A scheme that decides more often than that, as coordinators do, goes through
a step in parts, each as long as its interval. Within a part, a point passes what is asked for up to its
limit; the rest waits and is asked for again, up to a minute's worth. A part in which anything of a tenant
waited counts as throttled from its beginning to its end, unless one limit for the tenant as a whole would
have made it wait in that step, too. A broker that is asked for more than its limit shrinks everybody's
part there (`tuned_level`). Use and throttling are reported at the end of an interval; the shares made of
them hold from then on. A report that is lost leaves the point with the limits it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.quota.reports import FALLBACK_SECONDS, INTERVAL_SECONDS
from penstock.quota.sharing import Rules, Use, even_split, limits, peaks, share_out
from penstock.quota.tuning import tuned_level
from penstock.sim.traffic import POINTS, QUOTA_MAX, USE_MEDIAN, Size, Tenants, Traffic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]

OBJECTIVE_SECONDS: Final = 300.0  # throttled, of a week
WEEK_SECONDS: Final = 7 * 86_400.0
BACKLOG_SECONDS_MAX: Final = 60.0  # of a tenant's quota, at one point
BROKER_LIMIT: Final = QUOTA_MAX  # one can carry the largest tenant, if it is there alone
LAZY: Final = Rules()
EAGER: Final = Rules(lazy_below=None)
HASTE: Final = 1 + 1e-9
NEGLIGIBLE: Final = 0.12  # of a quota: (1 − 0.12)² ÷ 6 is more
FOLLOW_STEPS: Final = 4  # after use has become negligible


@dataclass(frozen=True, slots=True)
class Scheme:
    name: str
    rules: Rules | None  # None: the even split, for ever
    interval_seconds: float = INTERVAL_SECONDS
    lost: float = 0.0  # part of the reports that do not arrive
    failover_seconds: float = 0.0  # once a day each tenant's coordinator dies, and is replaced after so long


STATIC: Final = Scheme("static", None, 30.0)  # nothing is decided: as long as a step
DYNAMIC: Final = Scheme("dynamic", EAGER)
DYNAMIC_LAZY: Final = Scheme("dynamic, lazy", LAZY)
SCHEMES: Final = (STATIC, DYNAMIC, DYNAMIC_LAZY)


SENSITIVITY: Final = (
    *(Scheme(f"dynamic, every {seconds} s", EAGER, seconds) for seconds in (15, 30, 60, 300)),
    *(Scheme(f"lazy, every {seconds} s", LAZY, seconds) for seconds in (15, 30, 60, 300)),
    *(Scheme(f"dynamic, {lost:.0%} of reports lost", EAGER, lost=lost) for lost in (0.01, 0.1, 0.5)),
    *(Scheme(f"lazy, {lost:.0%} of reports lost", LAZY, lost=lost) for lost in (0.01, 0.1, 0.5)),
    Scheme("dynamic, fail-over of 60 s a day", EAGER, failover_seconds=60),
    Scheme("lazy, fail-over of 60 s a day", LAZY, failover_seconds=60),
)


@dataclass(frozen=True, slots=True)
class Score:
    scheme: str
    met: float  # part of the tenants
    throttled_seconds: Floats = field(repr=False)  # by tenant, within its quota
    pressed: float = 0.0  # part of broker-steps at the broker's limit
    overshoot: float = 0.0  # highest use of any tenant in any step, as a multiple of its quota


@dataclass(frozen=True, slots=True)
class Asked:
    """One step, of the tenants that are followed."""

    rows: Integers
    demand: Floats
    down: Flags
    within: Flags  # would pass if there were one limit for the tenant as a whole
    load: Floats  # by broker


class Running:
    """One scheme, going through a week.

    Only tenants that could be throttled are followed: one that uses less than `NEGLIGIBLE` of its
    quota has more than that at every point under every scheme. Who rises above it gets the shares
    that its use in the step before would have led to.
    """

    def __init__(self, scheme: Scheme, tenants: Tenants, broker_limit: Floats, seed: int) -> None:
        self.scheme = scheme
        self.tenants = tenants
        self.broker_limit = broker_limit
        shape = tenants.brokers.shape
        self.even = even_split(tenants.quota, np.ones(shape, dtype=bool))
        self.shares = self.even.copy()
        self.limits = self.even.copy()
        self.backlog = np.zeros(shape)
        self.lagging = np.zeros(shape[0], dtype=bool)
        self.passed = np.zeros(shape)  # in this interval so far
        self.peak = np.zeros(shape)
        self.waited = np.zeros(shape, dtype=bool)
        self.heard_at = np.zeros(shape)
        self.dead_until = np.zeros(shape[0])
        self.throttled_seconds = np.zeros(shape[0])
        self.pressed = 0
        self.overshoot = 0.0
        self.chance = np.random.default_rng([seed, 21])
        self.steps = 0
        self.parts = max(1, round(tenants.size.step_seconds / scheme.interval_seconds))
        self.dt = tenants.size.step_seconds / self.parts
        self.every = max(1, round(scheme.interval_seconds / self.dt))

    def follow(self, rows: Integers, before: Floats) -> None:
        """From now on these, too; `before` is what they used in the last step."""
        if self.scheme.rules is None:
            return
        nowhere = np.zeros(before.shape, dtype=bool)
        use = self._use(before, before, nowhere, nowhere)
        self.peak[rows] = before
        quota = self.tenants.quota[rows]
        self.shares[rows] = share_out(quota, use, self.even[rows], self.scheme.rules)
        self.limits[rows] = limits(quota, self.shares[rows], use, self.scheme.rules)
        self.heard_at[rows] = self.steps * self.dt
        self.passed[rows] = before * (self.steps % self.every)
        self.waited[rows] = False

    def step(self, asked: Asked) -> None:
        for _ in range(self.parts):
            self._step(asked)

    def _step(self, asked: Asked) -> None:
        rows, demand = asked.rows, asked.demand
        dt, quota = self.dt, self.tenants.quota[rows]
        offered = demand + self.backlog[rows] / dt
        granted = self._held(rows, offered, demand, asked.load)
        waits = offered > granted * HASTE
        backlog = np.minimum((offered - granted) * dt, quota[:, None] * BACKLOG_SECONDS_MAX)
        backlog[asked.down] = 0.0  # what was asked of it goes to the others from now on
        self.backlog[rows] = backlog
        waiting = waits.any(axis=1)
        self.lagging[rows] = waiting
        self.throttled_seconds[rows] += dt * (waiting & asked.within)
        if rows.size:
            self.overshoot = max(self.overshoot, float((granted.sum(axis=1) / quota).max()))
        self.passed[rows] += granted
        self.waited[rows] |= waits
        self.steps += 1
        if self.scheme.rules is not None and self.steps % self.every == 0:
            self._share(rows, self.scheme.rules, asked)

    def _use(self, used: Floats, peak: Floats, waited: Flags, silent: Flags) -> Use:
        return Use(used, peak, waited, np.ones(used.shape, dtype=bool), silent)

    def _share(self, rows: Integers, rules: Rules, asked: Asked) -> None:
        now = self.steps * self.dt
        silent = asked.down
        if self.scheme.lost:
            # A point is a gateway beside a broker: what it does not tell, it does not tell of anybody.
            lost = self.chance.random(self.tenants.size.brokers) < self.scheme.lost
            silent = silent | lost[self.tenants.brokers[rows]]
        used = self.passed[rows] / self.every
        self.peak[rows] = peaks(self.peak[rows], used, rules)
        use = self._use(used, self.peak[rows], self.waited[rows], silent)
        heard_at = np.where(use.silent, self.heard_at[rows], now)
        fell_back = now - heard_at > FALLBACK_SECONDS
        had = np.where(fell_back, self.even[rows], self.shares[rows])
        bound = np.where(fell_back, self.even[rows], self.limits[rows])
        quota = self.tenants.quota[rows]
        shares = share_out(quota, use, had, rules)
        deaf = use.silent | self._leaderless(now)[rows, None]
        self.shares[rows] = np.where(deaf, had, shares)
        self.limits[rows] = np.where(deaf, bound, limits(quota, shares, use, rules))
        self.heard_at[rows] = heard_at
        self.passed[rows] = 0
        self.waited[rows] = False

    def _leaderless(self, now: float) -> Flags:
        """Tenants whose coordinator is dead just now."""
        if self.scheme.failover_seconds:
            dies = self.chance.random(len(self.dead_until)) < self.scheme.interval_seconds / 86_400.0
            self.dead_until[dies] = now + self.scheme.failover_seconds
        return np.asarray(self.dead_until > now)

    def _held(self, rows: Integers, offered: Floats, demand: Floats, load: Floats) -> Floats:
        """What passes: below the tenants' limits, and below the brokers'."""
        granted = np.minimum(offered, self.limits[rows])
        brokers = self.tenants.brokers[rows]
        load = load + np.bincount(brokers.ravel(), (granted - demand).ravel(), len(load))
        over = np.flatnonzero(load > self.broker_limit)
        for broker in over.tolist():
            # Those who are not followed use so little that every level leaves them enough.
            at = brokers == broker
            quotas = self.limits[rows][at]
            others = float(load[broker] - granted[at].sum())
            room = float(self.broker_limit[broker]) - others
            level = tuned_level(quotas, np.minimum(offered[at], quotas), room)
            granted[at] = np.minimum(granted[at], level * quotas)
        self.pressed += len(over)
        return granted

    def score(self) -> Score:
        size = self.tenants.size
        allowed = OBJECTIVE_SECONDS * size.days * 86_400.0 / WEEK_SECONDS
        return Score(
            self.scheme.name,
            float((self.throttled_seconds <= allowed).mean()),
            self.throttled_seconds,
            self.pressed / (size.brokers * max(1, self.steps)),
            self.overshoot,
        )


def week(
    seed: int, size: Size, schemes: Sequence[Scheme] = SCHEMES, *, use_median: float = USE_MEDIAN
) -> list[Score]:
    """All schemes on one population's week."""
    tenants = Tenants.born(seed, size, use_median)
    limit = np.full(size.brokers, BROKER_LIMIT)
    running = [Running(scheme, tenants, limit, seed) for scheme in schemes]
    traffic = Traffic(tenants)
    quota, dt = tenants.quota, size.step_seconds
    owed = np.zeros(size.tenants)  # what would wait if one limit held for a tenant as a whole
    follow_until = np.full(size.tenants, -1)
    for step in range(size.steps):
        before = traffic.total
        traffic.advance()
        ideal = traffic.total + owed / dt
        within = ideal <= quota
        owed = np.where(within, 0.0, np.minimum((ideal - quota) * dt, quota * BACKLOG_SECONDS_MAX))
        followed = follow_until >= step
        worth = traffic.total > NEGLIGIBLE * quota
        for one in running:
            worth |= one.lagging
        if traffic.broken:
            worth |= traffic.down(np.arange(size.tenants)).any(axis=1)
        fresh = np.flatnonzero(worth & ~followed)
        follow_until[worth] = step + FOLLOW_STEPS
        rows = np.flatnonzero(worth | followed)
        if fresh.size:
            used = traffic.demand(fresh, before[fresh])
            for one in running:
                one.follow(fresh, used)
        demand = traffic.demand(rows, traffic.total[rows])
        asked = Asked(
            rows, demand, traffic.down(rows), within[rows], _load(tenants, traffic.total, rows, demand)
        )
        for one in running:
            one.step(asked)
    return [one.score() for one in running]


def _load(tenants: Tenants, total: Floats, rows: Integers, demand: Floats) -> Floats:
    """What is asked of each broker; of those who are not followed, evenly of their cell's."""
    rest = total.copy()
    rest[rows] = 0.0
    cells = np.bincount(tenants.brokers[:, 0] // POINTS, rest, tenants.size.brokers // POINTS)
    asked = np.bincount(tenants.brokers[rows].ravel(), demand.ravel(), tenants.size.brokers)
    return np.asarray(asked + np.repeat(cells / POINTS, POINTS))
