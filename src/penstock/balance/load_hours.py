"""The history that advice is based on: one record for each hour of a cluster, folded from observations.

An observation counts if the load of every broker is known. `fold` adds it to its hour. `work_row` turns hours
into the row that `advice` reads: an hour that was not observed repeats the one before it, because neither
idleness nor load may be assumed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.balance.advice import DAY_HOURS, HISTORY_HOURS, WEEK_HOURS
from penstock.model.events import BrokerLoad, LoadHour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

HOUR_MS: Final = 3_600_000
MONDAY_HOUR: Final = 4 * DAY_HOURS  # the epoch began on a Thursday


def fold(before: LoadHour | None, brokers: Sequence[BrokerLoad], now_ms: int) -> LoadHour | None:
    """The hour after one more observation; unchanged if the load of a broker is not known."""
    loads = [each.load for each in brokers if each.load is not None]
    if not loads or len(loads) < len(brokers):
        return before
    hour, work = now_ms // HOUR_MS, sum(loads)
    mean = work / len(loads)
    one = LoadHour(
        cluster=brokers[0].cluster,
        hour=hour,
        brokers=len(loads),
        work=work,
        imbalance=max(loads) / mean if mean else 1.0,
        samples=1,
        bytes_in=sum(each.bytes_in for each in brokers),
        bytes_out=sum(each.bytes_out for each in brokers),
        requests=sum(each.requests for each in brokers),
        replicas=sum(each.replicas for each in brokers),
        disk_used_bytes=sum(each.disk_used_bytes or 0 for each in brokers),
    )
    if before is None or before.hour != hour:
        return one
    samples = before.samples + 1
    averages = {
        name: getattr(before, name) + (getattr(one, name) - getattr(before, name)) / samples
        for name in ("bytes_in", "bytes_out", "requests")
    }
    highest = one if work > before.work else before
    return replace(one, work=highest.work, imbalance=highest.imbalance, samples=samples, **averages)


def work_row(hours: Mapping[int, LoadHour], now_hour: int) -> NDArray[np.float64]:
    """Work of the last four weeks, the newest hour last; from the first hour that was observed."""
    known = [hour for hour in hours if now_hour - HISTORY_HOURS < hour <= now_hour]
    if not known:
        return np.zeros(0)
    row, last = [], 0.0
    for hour in range(min(known), now_hour + 1):
        last = hours[hour].work if hour in hours else last
        row.append(last)
    return np.array(row)


def observed_hours(hours: Mapping[int, LoadHour], now_hour: int) -> int:
    return sum(1 for hour in hours if now_hour - HISTORY_HOURS < hour <= now_hour)


def recent(hours: Mapping[int, LoadHour], now_hour: int, count: int) -> list[LoadHour]:
    """The observed ones among the last hours, the oldest first."""
    return [hours[hour] for hour in sorted(hours) if now_hour - count < hour <= now_hour]


def changed_hours(hours: Mapping[int, LoadHour], now_hour: int) -> float | None:
    """Since the number of brokers last changed; None if it is the same in the whole history."""
    known = recent(hours, now_hour, HISTORY_HOURS)
    for earlier, later in zip(reversed(known[:-1]), reversed(known[1:]), strict=True):
        if earlier.brokers != later.brokers:
            return float(now_hour - later.hour)
    return None


def hours_of_week(hours: Mapping[int, LoadHour], now_hour: int) -> dict[str, list[float | None]]:
    """Percentiles of the last four weeks' work by hour of the week; None if it was not observed."""
    known: list[list[float]] = [[] for _ in range(WEEK_HOURS)]
    for each in recent(hours, now_hour, HISTORY_HOURS):
        known[(each.hour - MONDAY_HOUR) % WEEK_HOURS].append(each.work)
    return {
        name: [float(np.percentile(works, share)) if works else None for works in known]
        for name, share in (("p50", 50), ("p90", 90), ("max", 100))
    }
