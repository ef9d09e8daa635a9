"""Counters shared by workers: two columns, each visible to both."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.gateway.config import Tenant, TenantLimits
from penstock.gateway.limits.admission import Admission, Denial
from penstock.gateway.limits.shared_counters import FAILURES_MAX, ROWS, USAGE_ROWS, WAYS, SharedCounters
from penstock.gateway.settings import Bounds
from penstock.model.ids import LogicalClusterId

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL = "127.0.0.1"
TENANT = Tenant(LogicalClusterId("lkc-000001"))


def doors(bounds: Bounds) -> tuple[Admission, Admission]:
    """Admission of two workers, as each would see it in its process."""
    first = SharedCounters(2)
    second = SharedCounters.__new__(SharedCounters)
    second.__dict__.update(first.__dict__)
    second.become(1)
    return Admission(bounds, first), Admission(bounds, second)


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        (Bounds(connections_max=4), Denial.GATEWAY_FULL),
        (Bounds(half_open_max=4), Denial.HALF_OPEN),
        (Bounds(connections_per_address_max=4), Denial.ADDRESS_FULL),
        (Bounds(attempts_per_address_per_second=0.8), Denial.ADDRESS_RATE),
    ],
)
@pytest.mark.parametrize("turns", ["0101010", "0000111", "1000000"])
def test_a_bound_applies_to_both_workers_together(bounds: Bounds, reason: Denial, turns: str) -> None:
    both = doors(bounds)

    denials = [both[int(turn)].admit_connection(LOCAL, 0.0) for turn in turns]

    assert denials == [None] * 4 + [reason] * 3


def test_a_connection_closed_at_one_worker_makes_room_at_the_other() -> None:
    first, second = doors(Bounds(connections_per_address_max=1))
    assert first.admit_connection(LOCAL, 0.0) is None
    assert second.admit_connection(LOCAL, 0.0) is Denial.ADDRESS_FULL

    first.release(LOCAL, None)

    assert second.admit_connection(LOCAL, 0.0) is None
    assert (first.open, second.open, first.connections_from(LOCAL)) == (1, 1, 1)


def test_a_tenants_connections_and_rate_apply_to_both_workers_together() -> None:
    first, second = doors(Bounds())
    few = replace(TENANT, limits=TenantLimits(connections_max=3))
    slow = replace(TENANT, id=LogicalClusterId("lkc-000002"))
    slow = replace(slow, limits=TenantLimits(connection_attempts_per_second=0.4))
    for door in (first, second) * 4:
        door.admit_connection(LOCAL, 0.0)

    assert [door.admit_login(few, LOCAL, 0.0) for door in (first, second, second, first)] == [
        None, None, None, Denial.TENANT_FULL,
    ]  # fmt: skip
    assert [door.admit_login(slow, LOCAL, 0.0) for door in (second, first, second)] == [
        None, None, Denial.TENANT_RATE,
    ]  # fmt: skip
    assert first.admit_login(slow, LOCAL, 2.5) is None


def test_failed_logins_at_one_worker_lock_an_address_out_at_both() -> None:
    first, second = doors(Bounds(failed_logins_per_address=3, failed_logins_seconds=10.0))
    for door, now in ((first, 100.0), (second, 101.0), (first, 102.0)):
        door.failed(LOCAL, "", now)

    assert (
        first.admit_connection(LOCAL, 103.0) is second.admit_connection(LOCAL, 103.0) is Denial.FAILED_LOGINS
    )
    assert second.admit_connection("127.0.0.2", 103.0) is None
    assert second.admit_connection(LOCAL, 110.5) is None  # the first failures have expired


def test_connections_of_a_dead_worker_are_reclaimed_and_its_failed_logins_are_not() -> None:
    first, second = doors(Bounds(connections_per_address_max=5, failed_logins_per_address=3))
    for _ in range(5):
        second.admit_connection(LOCAL, 0.0)
    for _ in range(3):
        second.failed("192.0.2.1", "", 0.0)

    first.counters.columns[1].reclaim()

    assert (first.open, first.half_open, first.connections_from(LOCAL)) == (0, 0, 0)
    assert first.admit_connection(LOCAL, 0.0) is None
    assert first.admit_connection("192.0.2.1", 1.0) is Denial.FAILED_LOGINS


def test_forked_processes_see_each_others_columns() -> None:
    counters = SharedCounters(2)
    key = counters.key("somebody")
    pid = os.fork()
    if not pid:
        counters.become(1)
        row = counters.row(key)
        assert row is not None
        counters.own.connections[row] = 7
        os._exit(0)
    os.waitpid(pid, 0)

    assert counters.connections(key) == 7


def crowded(counters: SharedCounters, rows: int, find: Callable[[int], object]) -> list[int]:
    """Keys that hash to the same few rows."""
    keys = [5 + n * (rows // WAYS) for n in range(1, WAYS + 2)]
    for key in keys[:-1]:
        assert find(key) is not None
    return keys


def test_a_row_without_connections_is_reused_and_one_with_connections_is_not() -> None:
    counters = SharedCounters()
    *keys, late = crowded(counters, ROWS, counters.row)
    rows = [counters.row(key) for key in keys]
    assert None not in rows
    for row in rows:
        counters.own.connections[row or 0] = 1
    assert counters.row(late) is None  # a row with connections is never reused: a new key is refused

    counters.own.connections[rows[3] or 0] = 0

    assert counters.row(late) == rows[3]
    assert counters.own.find(keys[3]) is None


def test_a_row_with_failed_logins_is_kept_longer_than_one_without() -> None:
    counters = SharedCounters()
    *keys, late = crowded(counters, ROWS, counters.row)
    for key in keys[1:]:
        counters.fail(counters.row(key) or 0, 1000, 0)

    assert counters.row(late) is not None
    assert [key for key in keys if counters.own.find(key) is None] == keys[:1]


def test_the_count_of_failed_logins_saturates() -> None:
    counters = SharedCounters()
    row = counters.row(key := counters.key("attacker")) or 0
    counters.own.failures[row] = 1000 * (FAILURES_MAX + 1) + FAILURES_MAX

    counters.fail(row, 1001, 0)

    assert counters.failures(key, 1000) == FAILURES_MAX
    assert counters.failures(key, 1001) == 0


def test_usage_without_room_is_not_published() -> None:
    counters = SharedCounters(2)
    usage = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    *keys, late = crowded(counters, USAGE_ROWS, lambda key: counters.publish_usage(key, usage) or None)

    assert not counters.publish_usage(late, usage)
    counters.become(1)
    assert counters.other_workers_usage(keys[0]) == [usage]
    assert counters.other_workers_usage(late) == [(0.0,) * 6]
