"""What workers count together: two columns, each seen by both."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.gateway.admission import Denial, Doorkeeper
from penstock.gateway.config import Tenant, TenantLimits
from penstock.gateway.settings import Bounds
from penstock.gateway.tally import FAILURES_MAX, ROWS, USE_ROWS, WAYS, Tally
from penstock.model.ids import LogicalClusterId

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = "127.0.0.1"
TENANT = Tenant(LogicalClusterId("lkc-000001"))


def doors(bounds: Bounds) -> tuple[Doorkeeper, Doorkeeper]:
    """Of two workers, as each would see it in its own process."""
    first = Tally(2)
    second = Tally.__new__(Tally)
    second.__dict__.update(first.__dict__)
    second.sit(1)
    return Doorkeeper(bounds, first), Doorkeeper(bounds, second)


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
def test_a_bound_holds_for_both_together_however_connections_are_spread(
    bounds: Bounds, reason: Denial, turns: str
) -> None:
    both = doors(bounds)

    told = [both[int(turn)].knock(HERE, 0.0) for turn in turns]

    assert told == [None] * 4 + [reason] * 3


def test_who_leaves_one_worker_makes_room_at_the_other() -> None:
    first, second = doors(Bounds(connections_per_address_max=1))
    assert first.knock(HERE, 0.0) is None
    assert second.knock(HERE, 0.0) is Denial.ADDRESS_FULL

    first.left(HERE, None)

    assert second.knock(HERE, 0.0) is None
    assert (first.open, second.open, first.connections_from(HERE)) == (1, 1, 1)


def test_a_tenants_connections_and_rate_hold_for_both_together() -> None:
    first, second = doors(Bounds())
    few = replace(TENANT, limits=TenantLimits(connections_max=3))
    slow = replace(TENANT, id=LogicalClusterId("lkc-000002"))
    slow = replace(slow, limits=TenantLimits(connection_attempts_per_second=0.4))
    for door in (first, second) * 4:
        door.knock(HERE, 0.0)

    assert [door.enter(few, HERE, 0.0) for door in (first, second, second, first)] == [
        None, None, None, Denial.TENANT_FULL,
    ]  # fmt: skip
    assert [door.enter(slow, HERE, 0.0) for door in (second, first, second)] == [
        None, None, Denial.TENANT_RATE,
    ]  # fmt: skip
    assert first.enter(slow, HERE, 2.5) is None


def test_wrong_logins_at_one_worker_lock_out_at_both() -> None:
    first, second = doors(Bounds(failed_logins_per_address=3, failed_logins_seconds=10.0))
    for door, now in ((first, 100.0), (second, 101.0), (first, 102.0)):
        door.failed(HERE, now)

    assert first.knock(HERE, 103.0) is second.knock(HERE, 103.0) is Denial.FAILED_LOGINS
    assert second.knock("127.0.0.2", 103.0) is None
    assert second.knock(HERE, 110.5) is None  # what began to be counted first is over


def test_what_a_dead_worker_counted_is_reclaimed_and_what_it_knew_of_attackers_is_not() -> None:
    first, second = doors(Bounds(connections_per_address_max=5, failed_logins_per_address=3))
    for _ in range(5):
        second.knock(HERE, 0.0)
    for _ in range(3):
        second.failed("192.0.2.1", 0.0)

    first.tally.columns[1].reclaim()

    assert (first.open, first.half_open, first.connections_from(HERE)) == (0, 0, 0)
    assert first.knock(HERE, 0.0) is None
    assert first.knock("192.0.2.1", 1.0) is Denial.FAILED_LOGINS


def test_processes_that_are_forked_see_each_others_columns() -> None:
    tally = Tally(2)
    key = tally.key("somebody")
    pid = os.fork()
    if not pid:
        tally.sit(1)
        row = tally.row(key)
        assert row is not None
        tally.mine.connections[row] = 7
        os._exit(0)
    os.waitpid(pid, 0)

    assert tally.connections(key) == 7


def crowded(tally: Tally, rows: int, find: Callable[[int], object]) -> list[int]:
    """Keys that can only stand in the same few rows."""
    keys = [5 + n * (rows // WAYS) for n in range(1, WAYS + 2)]
    for key in keys[:-1]:
        assert find(key) is not None
    return keys


def test_a_row_without_connections_makes_way_and_one_with_them_does_not() -> None:
    tally = Tally()
    *keys, late = crowded(tally, ROWS, tally.row)
    rows = [tally.row(key) for key in keys]
    assert None not in rows
    for row in rows:
        tally.mine.connections[row or 0] = 1
    assert tally.row(late) is None  # nobody who is counted is forgotten: one that comes is refused

    tally.mine.connections[rows[3] or 0] = 0

    assert tally.row(late) == rows[3]
    assert tally.mine.find(keys[3]) is None


def test_one_whose_logins_failed_is_remembered_longer_than_one_that_only_came() -> None:
    tally = Tally()
    *keys, late = crowded(tally, ROWS, tally.row)
    for key in keys[1:]:
        tally.fail(tally.row(key) or 0, 1000, 0)

    assert tally.row(late) is not None
    assert [key for key in keys if tally.mine.find(key) is None] == keys[:1]


def test_failures_beyond_counting_stay_many() -> None:
    tally = Tally()
    row = tally.row(key := tally.key("attacker")) or 0
    tally.mine.failures[row] = 1000 * (FAILURES_MAX + 1) + FAILURES_MAX

    tally.fail(row, 1001, 0)

    assert tally.failures(key, 1000) == FAILURES_MAX
    assert tally.failures(key, 1001) == 0


def test_use_for_which_there_is_no_room_is_not_told() -> None:
    tally = Tally(2)
    figures = (1.0, 2.0, 3.0, 4.0, 5.0)
    *keys, late = crowded(tally, USE_ROWS, lambda key: tally.tell_use(key, figures) or None)

    assert not tally.tell_use(late, figures)
    tally.sit(1)
    assert tally.use_elsewhere(keys[0]) == [figures]
    assert tally.use_elsewhere(late) == [(0.0,) * 5]
