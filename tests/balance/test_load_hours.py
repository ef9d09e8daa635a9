"""Hours of load: folded from observations, merged after a takeover, and continued over gaps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.balance.load_hours import HOUR_MS, changed_hours, fold, hours_of_week, observed_hours, work_row
from penstock.model.events import BrokerLoad, LoadHour
from penstock.model.ids import BrokerId, PhysicalClusterId

CLUSTER = PhysicalClusterId("pkc-000000")
HOUR = LoadHour(CLUSTER, hour=100, brokers=3, work=1.0, imbalance=1.2, samples=10)


def observed(*loads: float | None, bytes_in: float = 0.0) -> tuple[BrokerLoad, ...]:
    return tuple(
        BrokerLoad(
            CLUSTER, BrokerId(number), 1, None if load is None else 40, load,
            ("unknown",) if load is None else (), bytes_in=bytes_in,
        )
        for number, load in enumerate(loads, 1)
    )  # fmt: skip


def test_an_hour_has_the_highest_work_and_the_average_traffic() -> None:
    first = fold(None, observed(0.2, 0.4, bytes_in=100), 7 * HOUR_MS)
    second = fold(first, observed(0.1, 0.1, bytes_in=300), 7 * HOUR_MS + 60_000)

    assert second is not None
    assert (second.hour, second.samples, second.brokers) == (7, 2, 2)
    assert second.work == pytest.approx(0.6)
    assert second.imbalance == pytest.approx(4 / 3)
    assert second.bytes_in == pytest.approx(400)


def test_an_observation_without_every_broker_does_not_count() -> None:
    assert fold(HOUR, observed(0.9, None), 100 * HOUR_MS) == HOUR


def test_a_new_hour_starts_again() -> None:
    after = fold(HOUR, observed(0.1), 101 * HOUR_MS)

    assert after is not None
    assert (after.hour, after.samples) == (101, 1)


def test_records_of_one_hour_are_merged_to_the_higher_work() -> None:
    before, after = replace(HOUR, work=2.0, samples=3), replace(HOUR, work=1.5, samples=20, bytes_in=9.0)

    assert before.merged(after) == after.merged(before) == replace(after, work=2.0)


def test_an_hour_that_was_not_observed_repeats_the_one_before() -> None:
    hours = {10: replace(HOUR, hour=10, work=1.0), 13: replace(HOUR, hour=13, work=2.0)}

    assert list(work_row(hours, 14)) == [1.0, 1.0, 1.0, 2.0, 2.0]
    assert observed_hours(hours, 14) == 2


def test_the_last_change_of_size_is_in_the_history() -> None:
    sizes = {10: 3, 11: 3, 12: 6, 13: 6}
    hours = {hour: replace(HOUR, hour=hour, brokers=brokers) for hour, brokers in sizes.items()}

    assert changed_hours(hours, 14) == 2
    assert changed_hours({10: hours[10], 11: hours[11]}, 14) is None


def test_percentiles_by_hour_of_the_week_start_on_monday() -> None:
    monday = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp()) // 3600
    hours = {
        h: replace(HOUR, hour=h, work=float(w)) for w, h in enumerate((monday - 336, monday - 168, monday))
    }

    shown = hours_of_week(hours, monday)

    assert (shown["p50"][0], shown["max"][0], shown["p90"][1]) == (1.0, 2.0, None)
