"""A week of quotas: how many tenants meet the bandwidth objective under which way of sharing?

The objective is the paper's (Kora §5.2.2): at most five minutes of a week throttled, for a tenant
that asks for no more than its quota. The schemes run side by side on one and the same traffic
(`traffic`), by the functions that a coordinator and a gateway use (`penstock.quota`).

Traffic changes once a step, at most; a step is gone through in parts. Within a part, a point passes what
is asked for up to its limit; the rest waits and is asked for again. A part in which anything of a tenant
waited counts as throttled from its beginning to its end, unless one limit for the tenant as a whole would
have made it wait in that part, too (`Whole`). A broker that is asked for more than its limit shrinks
everybody's part there (`tuned_level`). Use and throttling are reported at the end of an interval; the
shares made of them hold from then on. A report that is lost leaves the point with the limits it has.

What is compared is ways of sharing, so nothing else may differ between them. All are counted in the same
parts, static shares and long intervals, too: were a part as long as a scheme's own interval, who decides
rarely would be charged half a minute for what waited for a second, and the gain of deciding often would be
one of counting. A part is as long as the interval of coordinators, the shortest time after which any
scheme can be better off. And of a tenant as a whole as much may wait, a minute's worth of its quota, under
many limits as under the one that they are measured by: otherwise more would be left over from a time beyond
the quota than the quota itself would leave, and be counted against them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.quota.reports import FALLBACK_SECONDS, INTERVAL_SECONDS
from penstock.quota.sharing import RULES, Rules, Use, even_split, limits, peaks, share_out
from penstock.quota.tuning import tuned_level
from penstock.sim.traffic import DAY_SECONDS, POINTS, QUOTA_MAX, USE_MEDIAN, Populations, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.floating]
    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]

OBJECTIVE_SECONDS: Final = 300.0  # throttled, of a week
WEEK_SECONDS: Final = 7 * DAY_SECONDS
PART_SECONDS: Final = INTERVAL_SECONDS  # what throttling is counted in, under every scheme
BACKLOG_SECONDS_MAX: Final = 60.0  # of a tenant's quota, at all of its points
BROKER_LIMIT: Final = QUOTA_MAX  # one can carry the largest tenant, if it is there alone
HASTE: Final = 1 + 1e-9
NEGLIGIBLE: Final = 0.12  # of a quota: (1 − 0.12)² ÷ 6 is more
SIDE_BY_SIDE: Final = 5  # seeds
FOLLOW_STEPS: Final = 4  # after use has become negligible


@dataclass(frozen=True, slots=True)
class Scheme:
    name: str
    rules: Rules | None  # None: the even split, for ever
    lazy: bool = False
    interval_seconds: float = INTERVAL_SECONDS
    lost: float = 0.0  # part of the reports that do not arrive
    failover_seconds: float = 0.0  # once a day each tenant's coordinator dies, and is replaced after so long


STATIC: Final = Scheme("static", None)
DYNAMIC: Final = Scheme("dynamic", RULES)
DYNAMIC_LAZY: Final = Scheme("dynamic, lazy", RULES, lazy=True)
SCHEMES: Final = (STATIC, DYNAMIC, DYNAMIC_LAZY)

# Intervals of more than a minute would need another time after which points fall back.
SENSITIVITY: Final = tuple(
    scheme
    for name, lazy in (("dynamic", False), ("lazy", True))
    for scheme in (
        *(Scheme(f"{name}, every {seconds} s", RULES, lazy, seconds) for seconds in (10, 30, 60)),
        *(Scheme(f"{name}, {lost:.0%} of reports lost", RULES, lazy, lost=lost) for lost in (0.01, 0.1, 0.5)),
        *(
            Scheme(f"{name}, fail-over of {seconds} s a day", RULES, lazy, failover_seconds=seconds)
            for seconds in (60, 600)
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Score:
    scheme: str
    met: float  # part of the tenants
    throttled_seconds: Floats = field(repr=False)  # by tenant, within its quota
    pressed: float = 0.0  # part of the time of brokers, at the broker's limit
    overshoot: float = 0.0  # highest use of any tenant in any step, as a multiple of its quota


@dataclass(frozen=True, slots=True)
class Asked:
    """One step, of the tenants that are followed."""

    rows: Integers
    demand: Floats
    down: Flags
    within: Flags  # by part and tenant: would pass if there were one limit for the tenant as a whole
    load: Floats  # by broker


@dataclass(slots=True)
class Points:
    """How things stand at tenants' points, by tenant and point."""

    shares: Floats
    limits: Floats
    backlog: Floats
    passed: Floats  # in this interval so far
    peak: Floats
    waited: Flags
    heard_at: Floats

    @classmethod
    def at_first(cls, even: Floats) -> Points:
        nothing = np.zeros(even.shape)
        waited = np.zeros(even.shape, dtype=bool)
        return cls(even.copy(), even.copy(), nothing, nothing.copy(), nothing.copy(), waited, nothing.copy())

    def of(self, rows: Integers) -> Points:
        return Points(*(getattr(self, name)[rows] for name in self.__slots__))

    def put(self, rows: Integers, points: Points) -> None:
        for name in self.__slots__:
            getattr(self, name)[rows] = getattr(points, name)


class Running:
    """Schemes that decide by the same rules at the same times, going through the weeks of some populations.

    Under each scheme there is a copy of all tenants and brokers, one after the other, and nothing that one
    does shows in another. Only tenants that could be throttled are followed: one that uses less than
    `NEGLIGIBLE` of its quota has more than that at every point under every scheme. Who rises above it gets
    the shares that its use in the step before would have led to. Whose coordinator dies is followed from the
    next step on: if it rises, then with what it was told last.
    """

    def __init__(
        self, schemes: Sequence[Scheme], populations: Populations, broker_limit: float = BROKER_LIMIT
    ) -> None:
        assert len({decides(scheme) for scheme in schemes}) == 1
        self.schemes = schemes
        self.rules, interval_seconds = decides(schemes[0])
        self.populations = populations
        self.broker_limit = broker_limit
        count, brokers = populations.quota.size, len(populations.seeds) * populations.size.brokers
        self.quota = np.tile(populations.quota, len(schemes))
        self.brokers = np.concatenate([populations.brokers + brokers * n for n in range(len(schemes))])
        self.lazy = np.repeat([scheme.lazy for scheme in schemes], count)[:, None]
        self.even = even_split(self.quota, np.ones(self.brokers.shape, dtype=bool))
        self.points = Points.at_first(self.even)
        self.lagging = np.zeros(self.quota.size, dtype=bool)
        self.follow_until = np.full(self.quota.size, -1)
        self.told_at = np.zeros(self.quota.size)  # by its coordinator, before that died last
        self.dead_until = np.zeros(self.quota.size)
        self.throttled_seconds = np.zeros(self.quota.size)
        self.overshoot = np.zeros(self.quota.size)
        self.pressed = np.zeros(brokers * len(schemes))  # parts, by broker
        self.chances = [[np.random.default_rng([seed, 21]) for seed in populations.seeds] for _ in schemes]
        self.parts = 0  # so far
        self.dt, _ = parts_of(populations.size)
        self.every = max(1, round(interval_seconds / self.dt))

    def advance(self, within: Flags, step: int) -> None:
        """By one step of traffic."""
        asking = self.populations
        stirring = asking.total > NEGLIGIBLE * asking.quota
        if asking.broken:
            stirring |= asking.down(np.arange(stirring.size)).any(axis=1)
        dead = self.dead_until > self.parts * self.dt
        worth = np.tile(stirring, len(self.schemes)) | self.lagging | dead
        followed = self.follow_until >= step
        self.follow_until[worth] = step + FOLLOW_STEPS
        fresh = np.flatnonzero(worth & ~followed)
        if fresh.size:
            self.follow(fresh, self._each(fresh, asking.demand_before))
        rows = np.flatnonzero(worth | followed)
        demand, tenants = self._each(rows, asking.demand), rows % asking.quota.size
        self.step(Asked(rows, demand, asking.down(tenants), within[:, tenants], self._load(rows, demand)))

    def _each(self, rows: Integers, demand: Callable[[Integers], Floats]) -> Floats:
        """The tenants' demand, for each of their copies."""
        tenants, place = np.unique(rows % self.populations.quota.size, return_inverse=True)
        return demand(tenants)[place]

    def _load(self, rows: Integers, demand: Floats) -> Floats:
        """What is asked of each broker; of those who are not followed, evenly of their cell's."""
        rest = np.tile(self.populations.total, len(self.schemes))
        rest[rows] = 0.0
        brokers = len(self.pressed)
        cells = np.bincount(self.brokers[:, 0] // POINTS, rest, brokers // POINTS)
        asked = np.bincount(self.brokers[rows].ravel(), demand.ravel(), brokers)
        return np.asarray(asked + np.repeat(cells / POINTS, POINTS))

    def follow(self, rows: Integers, before: Floats) -> None:
        """From now on these, too; `before` is what they used in the last step."""
        if self.rules is None:
            return
        nowhere = np.zeros(before.shape, dtype=bool)
        use = self._use(before, before, nowhere, nowhere)
        points, quota = self.points.of(rows), self.quota[rows]
        points.peak = before
        points.shares = share_out(quota, use, self.even[rows], self.rules)
        points.limits = self._limits(rows, quota, points.shares, use, self.rules)
        now = self.parts * self.dt
        dead = self.dead_until[rows] > now
        points.heard_at[:] = np.where(dead, self.told_at[rows], now)[:, None]
        points.passed = before * (self.parts % self.every)
        points.waited[:] = False
        self.points.put(rows, points)

    def step(self, asked: Asked) -> None:
        points, quota = self.points.of(asked.rows), self.quota[asked.rows]
        brokers = self.brokers[asked.rows]
        end = self.parts + len(asked.within)
        for within in asked.within:
            waited = self._part(asked, within, points, quota, brokers)
            if self.rules is None and not waited:
                break  # nothing is left over and nothing is decided: the other parts are the same
        self.parts = end
        self.points.put(asked.rows, points)

    def _part(self, asked: Asked, within: Flags, points: Points, quota: Floats, brokers: Integers) -> bool:
        """Whether anybody waited."""
        offered = asked.demand + points.backlog / self.dt
        granted = self._held(points.limits, offered, asked, brokers)
        waits = offered > granted * HASTE
        waiting = waits.any(axis=1)
        points.backlog = self._left(offered - granted, quota)
        points.backlog[asked.down] = 0.0  # what was asked of it goes to the others from now on
        self.lagging[asked.rows] = waiting
        self.throttled_seconds[asked.rows] += self.dt * (waiting & within)
        self.overshoot[asked.rows] = np.maximum(self.overshoot[asked.rows], granted.sum(axis=1) / quota)
        points.passed += granted
        points.waited |= waits
        self.parts += 1
        if self.rules is not None and self.parts % self.every == 0:
            self._share(points, self.rules, asked, quota, brokers)
        return bool(waiting.any())

    def _left(self, held: Floats, quota: Floats) -> Floats:
        """What is asked for again: of a tenant as a whole, a minute's worth of its quota at most."""
        left = held * self.dt
        total, most = left.sum(axis=1), quota * BACKLOG_SECONDS_MAX
        over = total > most
        if over.any():
            left[over] *= (most[over] / total[over])[:, None]
        return left

    def _use(self, used: Floats, peak: Floats, waited: Flags, silent: Flags) -> Use:
        return Use(used, peak, waited, np.ones(used.shape, dtype=bool), silent)

    def _limits(self, rows: Integers, quota: Floats, shares: Floats, use: Use, rules: Rules) -> Floats:
        return np.where(self.lazy[rows], limits(quota, shares, use, rules), shares)

    def _share(self, points: Points, rules: Rules, asked: Asked, quota: Floats, brokers: Integers) -> None:
        now = self.parts * self.dt
        # A point is a gateway beside a broker: what it does not tell, it does not tell of anybody.
        lost = self._befallen(self.populations.size.brokers, [scheme.lost for scheme in self.schemes])
        silent = asked.down | lost[brokers]
        used = points.passed / self.every
        points.peak = peaks(points.peak, used, rules)
        use = self._use(used, points.peak, points.waited, silent)
        deaf = silent | self._leaderless(now)[asked.rows, None]
        points.heard_at = np.where(deaf, points.heard_at, now)
        fell_back = now - points.heard_at > FALLBACK_SECONDS
        had, bound = points.shares, points.limits
        if fell_back.any():
            even = self.even[asked.rows]
            had, bound = np.where(fell_back, even, had), np.where(fell_back, even, bound)
        shares = share_out(quota, use, had, rules)
        points.shares = np.where(deaf, had, shares)
        points.limits = np.where(deaf, bound, self._limits(asked.rows, quota, shares, use, rules))
        points.passed = np.zeros(used.shape)
        points.waited = np.zeros(used.shape, dtype=bool)

    def _leaderless(self, now: float) -> Flags:
        """Tenants whose coordinator is dead just now."""
        away = [scheme.failover_seconds for scheme in self.schemes]
        if any(away):
            often = self.every * self.dt / DAY_SECONDS
            dies = self._befallen(self.populations.size.tenants, [often if each else 0.0 for each in away])
            last = now - self.every * self.dt
            self.told_at[dies & (self.dead_until <= last)] = last
            self.dead_until[dies] = now + np.repeat(away, self.populations.quota.size)[dies]
        return np.asarray(self.dead_until > now)

    def _befallen(self, count: int, odds: Sequence[float]) -> Flags:
        """Of so many in each population, whom it befalls; what others there are does not change that."""
        found = np.zeros((len(self.schemes), len(self.populations.seeds), count), dtype=bool)
        for scheme, often in enumerate(odds):
            if often:
                for seed, chance in enumerate(self.chances[scheme]):
                    found[scheme, seed] = chance.random(count) < often
        return found.ravel()

    def _held(self, limit: Floats, offered: Floats, asked: Asked, brokers: Integers) -> Floats:
        """What passes: below the tenants' limits, and below the brokers'."""
        granted = np.minimum(offered, limit)
        load = asked.load + np.bincount(brokers.ravel(), (granted - asked.demand).ravel(), len(self.pressed))
        over = np.flatnonzero(load > self.broker_limit)
        for broker in over.tolist():
            # Those who are not followed use so little that every level leaves them enough.
            at = brokers == broker
            quotas = limit[at]
            others = float(load[broker] - granted[at].sum())
            room = self.broker_limit - others
            level = tuned_level(quotas, np.minimum(offered[at], quotas), room)
            granted[at] = np.minimum(granted[at], level * quotas)
        self.pressed[over] += 1
        return granted

    def scores(self) -> dict[Scheme, list[Score]]:
        """By scheme, of each population."""
        allowed = objective_seconds(self.populations.size.days)
        shape = (len(self.schemes), len(self.populations.seeds), -1)
        throttled_seconds = self.throttled_seconds.reshape(shape)
        met = (throttled_seconds <= allowed).mean(axis=2)
        pressed = self.pressed.reshape(shape).mean(axis=2) / max(1, self.parts)
        overshoot = self.overshoot.reshape(shape).max(axis=2)
        return {
            scheme: [
                Score(scheme.name, *figures)
                for figures in zip(
                    met[n].tolist(),
                    throttled_seconds[n],
                    pressed[n].tolist(),
                    overshoot[n].tolist(),
                    strict=True,
                )
            ]
            for n, scheme in enumerate(self.schemes)
        }


def objective_seconds(days: float) -> float:
    """How long a tenant may be throttled in so many days."""
    return OBJECTIVE_SECONDS * days * DAY_SECONDS / WEEK_SECONDS


def decides(scheme: Scheme) -> tuple[Rules | None, float]:
    """By what, and how often."""
    return scheme.rules, scheme.interval_seconds


class Whole:
    """One limit for each tenant as a whole: what all schemes are measured by."""

    def __init__(self, populations: Populations) -> None:
        self.quota = populations.quota
        self.dt, self.parts = parts_of(populations.size)
        self.owed = np.zeros(self.quota.size)

    def step(self, total: Floats) -> Flags:
        """By part of the step and tenant: does all pass that is asked for, and was left over before?"""
        within = np.ones((self.parts, total.size), dtype=bool)
        rows = np.flatnonzero((total > self.quota) | (self.owed > 0))
        if rows.size:
            quota, owed = self.quota[rows], self.owed[rows]
            for part in within:
                beyond = total[rows] + owed / self.dt - quota
                part[rows] = beyond <= 0
                owed = np.clip(beyond * self.dt, 0.0, quota * BACKLOG_SECONDS_MAX)
            self.owed[rows] = owed
        return within


def parts_of(size: Size) -> tuple[float, int]:
    """How long a part is, and how many of them a step has."""
    count = max(1, round(size.step_seconds / PART_SECONDS))
    return size.step_seconds / count, count


def week(
    seed: int, size: Size, schemes: Sequence[Scheme] = SCHEMES, *, use_median: float = USE_MEDIAN
) -> list[Score]:
    """All schemes on one population's week."""
    return next(weeks((seed,), size, schemes, use_median=use_median))


def weeks(
    seeds: Sequence[int], size: Size, schemes: Sequence[Scheme] = SCHEMES, *, use_median: float = USE_MEDIAN
) -> Iterator[list[Score]]:
    """The same for each of the seeds, some at once: that takes less time than one by one."""
    alike: dict[object, list[Scheme]] = {}
    for scheme in schemes:
        alike.setdefault(decides(scheme), []).append(scheme)
    for first in range(0, len(seeds), SIDE_BY_SIDE):
        populations = Populations(seeds[first : first + SIDE_BY_SIDE], size, use_median)
        running = [Running(each, populations) for each in alike.values()]
        whole = Whole(populations)
        for step in range(size.steps):
            populations.advance()
            within = whole.step(populations.total)
            for one in running:
                one.advance(within, step)
        found = {scheme: scores for one in running for scheme, scores in one.scores().items()}
        yield from ([found[scheme][n] for scheme in schemes] for n in range(len(populations.seeds)))
