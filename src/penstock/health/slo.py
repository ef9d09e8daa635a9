"""Error budgets and burn alerts, from probes as they come. Pure.

The arithmetic is that of the weekly job (`penstock.pipeline.jobs.slo`): a broker's minute is unavailable by
the share of its probes that failed, repeated records count once, and a cluster's minute is the mean of its
brokers. Availability is one minus the mean over minutes. Means are of integers, parts of `SHARE`, so that
they do not depend on the order of a sum: both engines get the same to the last digit. Latency is the 99th
percentile of end-to-end probes, by nearest rank: the worst broker of each minute, then the 99th percentile
of minutes.

A burn rate is the unavailability of a window divided by what the target allows: 1 uses up the budget
exactly. An alert needs a long and a short window: the long one shows that it matters, the short one that it
still lasts.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.model.errors.health import TargetInvalid, WindowsInvalid
from penstock.model.events import Probe, ProbeRole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.model.events import HealthProbe

MINUTE_MS: Final = 60_000
TARGET_SINGLE_ZONE: Final = 0.9995  # Kora's service level agreements
TARGET_MULTI_ZONE: Final = 0.9999
TARGET_MIN: Final = 0.5
BUDGET_MINUTES: Final = 30 * 24 * 60
MINUTES_MAX: Final = BUDGET_MINUTES + 60  # that are kept
MINUTES_OPEN_MAX: Final = 15  # whose probes are kept; later ones of older minutes do not count
PERCENTILE: Final = 0.99
SHARE: Final = 10**12  # parts of a share whose mean is taken
BURN_MINUTES: Final = 5  # over which an operation's own burn rate is measured
BASELINE_MINUTES: Final = 30  # before an operation, with which latency is compared
BASELINE_MINUTES_MIN: Final = 3  # of those, with probes
SLOW_MINUTES: Final = 3  # in a row
SLOW_US_MIN: Final = 2_000_000  # 99th percentile: below that, nothing is slow
LASTING_MINUTES: Final = 2  # in a row with failed probes: one that failed once shows nothing

T = TypeVar("T", int, float)
_Key = tuple[str, str, int, str, int]  # checker, cluster, partition, probe, sequence


@dataclass(frozen=True, slots=True)
class BurnRule:
    short_minutes: int
    long_minutes: int
    burn: float  # in both windows, at least
    severity: str


# Of a month's budget: 2 % in an hour, 5 % in six hours, 10 % in three days.
RULES: Final = (
    BurnRule(5, 60, 14.4, "page"),
    BurnRule(30, 360, 6.0, "page"),
    BurnRule(360, 4320, 1.0, "ticket"),
)


@dataclass(frozen=True, slots=True)
class Alert:
    rule: BurnRule
    short_burn: float
    long_burn: float


@dataclass(frozen=True, slots=True)
class MinuteResult:
    latency_us: int | None  # of the worst broker; None without end-to-end probes that succeeded
    unavailable: float  # of the worst broker
    mean_unavailable: int  # parts of `SHARE`


@dataclass(frozen=True, slots=True)
class Window:
    minutes: int  # with probes
    availability: float | None  # None without probes
    latency_p99_us: int | None
    unavailable_p99: float | None


@dataclass(slots=True)
class _BrokerMinute:
    seen: set[_Key] = field(default_factory=set)
    latencies: list[int] = field(default_factory=list)
    failed: int = 0


class Ledger:
    """The minutes of one cluster."""

    def __init__(self, target: float) -> None:
        check_target(target)
        self.target = target
        self._minutes: dict[int, dict[int, _BrokerMinute]] = defaultdict(dict)
        self._folded: dict[int, MinuteResult] = {}  # minutes for which no more probes are expected
        self.failures: dict[tuple[int, str], int] = defaultdict(int)  # by broker and error

    def add(self, probe: HealthProbe) -> None:
        """A probe of another role than `path` does not count."""
        if probe.role is not ProbeRole.PATH:
            return
        minute = probe.time_ms // MINUTE_MS
        if minute in self._folded:
            return
        row = self._minutes[minute].setdefault(int(probe.broker), _BrokerMinute())
        key = (probe.checker, str(probe.cluster), probe.partition, str(probe.probe), probe.sequence)
        if key in row.seen:
            return
        row.seen.add(key)
        if probe.latency_us is None:
            row.failed += 1
            self.failures[int(probe.broker), probe.error or ""] += 1
        elif probe.probe is Probe.CONSUME:
            row.latencies.append(probe.latency_us)
        if len(self._minutes) > MINUTES_OPEN_MAX:
            self._fold()

    def _fold(self) -> None:
        """Keeps the results of the oldest minutes, and not their probes."""
        for number in sorted(self._minutes)[:-MINUTES_OPEN_MAX]:
            result = self.minute(number)
            assert result is not None
            self._folded[number] = result
            del self._minutes[number]
        for number in sorted(self._folded)[:-MINUTES_MAX]:
            del self._folded[number]

    def minute(self, number: int) -> MinuteResult | None:
        """Minutes are numbered since 1970."""
        if number in self._folded:
            return self._folded[number]
        brokers = self._minutes.get(number)
        if not brokers:
            return None
        rows = [row for _, row in sorted(brokers.items())]
        shares = [row.failed / len(row.seen) for row in rows]
        worst = [p for row in rows if (p := nearest_rank(row.latencies, PERCENTILE)) is not None]
        mean = sum(math.floor(each * SHARE) for each in shares) // len(shares)
        return MinuteResult(max(worst, default=None), max(shares), mean)

    def window(self, now_ms: int, minutes: int) -> Window:
        """The whole minutes before now; the current one is not complete."""
        last = now_ms // MINUTE_MS
        results = [r for n in range(last - minutes, last) if (r := self.minute(n)) is not None]
        if not results:
            return Window(0, None, None, None)
        latencies = [r.latency_us for r in results if r.latency_us is not None]
        return Window(
            len(results),
            1 - sum(r.mean_unavailable for r in results) // len(results) / SHARE,
            nearest_rank(latencies, PERCENTILE),
            nearest_rank([r.unavailable for r in results], PERCENTILE),
        )

    def burn(self, now_ms: int, minutes: int) -> float:
        """How fast the budget is used up; 0 without probes."""
        availability = self.window(now_ms, minutes).availability
        return 0.0 if availability is None else (1 - availability) / (1 - self.target)

    def budget_left(self, now_ms: int) -> float:
        """Of a month's budget; negative if it is overdrawn. Minutes without probes use nothing."""
        window = self.window(now_ms, BUDGET_MINUTES)
        if window.availability is None:
            return 1.0
        return 1 - (1 - window.availability) * window.minutes / ((1 - self.target) * BUDGET_MINUTES)

    def alerts(self, now_ms: int, rules: Sequence[BurnRule] = RULES) -> tuple[Alert, ...]:
        check_rules(rules)
        alerts = []
        for rule in rules:
            short, long = self.burn(now_ms, rule.short_minutes), self.burn(now_ms, rule.long_minutes)
            if min(short, long) >= rule.burn:
                alerts.append(Alert(rule, short, long))
        return tuple(alerts)


def burn_during(ledger: Ledger, since_ms: int, now_ms: int) -> float:
    """How fast an operation that began then uses up the budget; 0 unless probes failed in its last minutes.

    Only whole minutes of the operation count, `BURN_MINUTES` at most: what was before is not its doing.
    """
    last, first = now_ms // MINUTE_MS, since_ms // MINUTE_MS + 1
    recent = [ledger.minute(number) for number in range(last - LASTING_MINUTES, last)]
    if last - first < LASTING_MINUTES or any(each is None or not each.unavailable for each in recent):
        return 0.0
    return ledger.burn(now_ms, min(BURN_MINUTES, last - first))


def slower_during(ledger: Ledger, since_ms: int, now_ms: int) -> float:
    """How many times as long as before an operation clients wait in each of its last minutes.

    0 if that is not known, or too little to matter: a new leader delays single requests.
    """
    last, first = now_ms // MINUTE_MS, since_ms // MINUTE_MS + 1
    before = _latencies(ledger, range(first - 1 - BASELINE_MINUTES, first - 1))
    recent = _latencies(ledger, range(last - SLOW_MINUTES, last))
    known = len(before) >= BASELINE_MINUTES_MIN and len(recent) == SLOW_MINUTES
    if not known or last - first < SLOW_MINUTES or min(recent) < SLOW_US_MIN:
        return 0.0
    return min(recent) / max(1, statistics.median(before))


def _latencies(ledger: Ledger, numbers: Iterable[int]) -> list[int]:
    minutes = [each for number in numbers if (each := ledger.minute(number)) is not None]
    return [each.latency_us for each in minutes if each.latency_us is not None]


def nearest_rank(values: Iterable[T], fraction: float) -> T | None:
    """As Spark's `percentile_disc`: the smallest value at or above this share of all."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)] if ordered else None


def target_of(zones: int) -> float:
    return TARGET_MULTI_ZONE if zones > 1 else TARGET_SINGLE_ZONE


def check_target(target: float) -> None:
    if not TARGET_MIN <= target < 1:
        raise TargetInvalid(target=target, least=TARGET_MIN)


def check_rules(rules: Sequence[BurnRule]) -> None:
    for rule in rules:
        if not 0 < rule.short_minutes < rule.long_minutes:
            raise WindowsInvalid(short=rule.short_minutes, long=rule.long_minutes)


def breakdown(failures: Mapping[tuple[int, str], int]) -> dict[str, dict[str, int]]:
    """Failed probes by broker and by error."""
    by_broker: dict[str, int] = defaultdict(int)
    by_error: dict[str, int] = defaultdict(int)
    for (broker, error), count in failures.items():
        by_broker[str(broker)] += count
        by_error[error] += count
    return {"broker": dict(by_broker), "error": dict(by_error)}
