"""The arithmetic of the service level objective."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from penstock.health.slo import (
    MINUTE_MS,
    BurnRule,
    Ledger,
    breakdown,
    burn_during,
    check_rules,
    nearest_rank,
    slower_during,
    target_of,
)
from penstock.model.errors.health import TargetInvalid, WindowsInvalid
from penstock.model.events import HealthProbe, Probe, ProbeRole
from penstock.model.ids import BrokerId, PhysicalClusterId, Zone

NOW = 1_000 * MINUTE_MS


def probe(minute: int, sequence: int, *, broker: int = 1, failed: bool = False, **values: Any) -> HealthProbe:
    fields: dict[str, Any] = {
        "partition": 0, "probe": Probe.CONSUME, "checker": "one", "sequence": sequence,
        "time_ms": minute * MINUTE_MS + sequence, "latency_us": None if failed else 1_000 * sequence,
        "error": "TIMED_OUT" if failed else None,
    }  # fmt: skip
    fields |= values
    return HealthProbe(PhysicalClusterId("pkc-7hq2mz"), BrokerId(broker), Zone("a"), **fields)


def test_windows_equal_the_definition_of_the_weekly_job() -> None:
    chance = random.Random(7)
    probes = [
        probe(m, n, broker=b, failed=chance.random() < 0.05, partition=b)
        for m in range(990, 1000)
        for b in (1, 2, 3)
        for n in range(1, 41)
    ]
    ledger = Ledger(0.9995)
    for each in [*probes, *probes[:200]]:
        ledger.add(each)
    latencies, worst, means = [], [], []
    for minute in range(990, 1000):
        rows: dict[int, list[HealthProbe]] = defaultdict(list)
        for each in probes:
            if each.time_ms // MINUTE_MS == minute:
                rows[each.broker].append(each)
        shares = [sum(not p.succeeded for p in each) / len(each) for each in rows.values()]
        tails = [sorted(p.latency_us or 0 for p in r if p.succeeded) for r in rows.values()]
        latencies.append(max(t[-(-99 * len(t) // 100) - 1] for t in tails))
        worst.append(max(shares))
        means.append(sum(shares) / 3)
    window = ledger.window(NOW, 10)
    assert window.minutes == 10
    assert window.availability == pytest.approx(1 - sum(means) / 10, abs=1e-11)
    assert (window.latency_p99_us, window.unavailable_p99) == (max(latencies), max(worst))


def test_only_probes_of_what_clients_get_count() -> None:
    ledger = Ledger(0.9995)
    ledger.add(probe(999, 1, failed=True, role=ProbeRole.ALONE))
    assert ledger.window(NOW, 5).availability is None
    assert (ledger.burn(NOW, 5), ledger.budget_left(NOW), ledger.alerts(NOW)) == (0.0, 1.0, ())


def test_an_alert_needs_a_long_and_a_short_window_that_burn() -> None:
    ledger = Ledger(0.999)
    for minute in range(940, 1000):
        for sequence in range(1, 11):
            ledger.add(probe(minute, sequence, failed=minute >= 980 and sequence == 1))
    (fast, slow, slowest) = ledger.alerts(NOW)
    assert [each.rule.severity for each in (fast, slow, slowest)] == ["page", "page", "ticket"]
    assert fast.short_burn == pytest.approx(100)
    for minute in range(1000, 1006):
        ledger.add(probe(minute, 1))
    assert [each.rule.short_minutes for each in ledger.alerts(NOW + 6 * MINUTE_MS)] == [30, 360]
    assert breakdown(ledger.failures) == {"broker": {"1": 20}, "error": {"TIMED_OUT": 20}}
    assert ledger.budget_left(NOW) == pytest.approx(1 - 2.0 / 43.2)


@pytest.mark.parametrize("target", [0.49, 1.0, 1.5, float("nan")])
def test_a_target_outside_its_range_is_an_error(target: float) -> None:
    with pytest.raises(TargetInvalid):
        Ledger(target)


def test_windows_out_of_order_are_an_error() -> None:
    with pytest.raises(WindowsInvalid):
        check_rules([BurnRule(60, 5, 1.0, "page")])


def test_the_target_depends_on_the_zones() -> None:
    assert (target_of(1), target_of(3)) == (0.9995, 0.9999)
    assert nearest_rank([3, 1, 2], 0.5) == 2


def ledger_of(minutes: range, *, failed: frozenset[int] = frozenset(), slow: range = range(0)) -> Ledger:
    """Ten probes in each minute; one of them failed in some, all of them were slow in others."""
    ledger = Ledger(0.9999)
    for minute in minutes:
        for number in range(1, 11):
            latency = 5_000_000 if minute in slow else 10_000
            bad = number == 1 and minute in failed
            ledger.add(probe(minute, number, failed=bad, latency_us=None if bad else latency))
    return ledger


@pytest.mark.parametrize(
    ("failed", "since", "burns"),
    [
        (range(998, 1000), 990, True),
        (range(990, 999), 980, False),  # the last minute was good
        (range(980, 1000), 999, False),  # it began a moment ago
        (range(999, 1000), 990, False),  # once shows nothing
    ],
)
def test_an_operation_burns_the_budget_if_probes_failed_in_its_last_minutes(
    failed: range, since: int, burns: bool
) -> None:
    ledger = ledger_of(range(970, 1000), failed=frozenset(failed))
    assert (burn_during(ledger, since * MINUTE_MS, NOW) > 14.4) is burns


@pytest.mark.parametrize(
    ("known", "slow", "since", "factor"),
    [
        (range(970, 1000), range(997, 1000), 990, 500.0),
        (range(970, 1000), range(997, 999), 990, 0.0),  # the last minute was good
        (range(970, 1000), range(970, 1000), 990, 1.0),  # it was slow before
        (range(991, 1000), range(997, 1000), 990, 0.0),  # what was before is not known
        (range(970, 1000), range(997, 1000), 998, 0.0),  # it began a moment ago
    ],
)
def test_an_operation_is_slow_if_clients_wait_much_longer_than_before_it(
    known: range, slow: range, since: int, factor: float
) -> None:
    assert slower_during(ledger_of(known, slow=slow), since * MINUTE_MS, NOW) == factor
