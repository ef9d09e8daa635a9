"""Waiters for a position: reached, timed out, stopped, and never lost."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.views import WaitersFull
from penstock.olep.view.position_waiters import PositionWaiters, WaitResult

if TYPE_CHECKING:
    from concurrent.futures import Future


def running(**positions: int) -> PositionWaiters:
    waiters = PositionWaiters("view")
    waiters.reached({int(name[1:]): at for name, at in positions.items()})
    return waiters


def test_a_position_that_is_reached_needs_no_wait() -> None:
    assert running(p0=5).wait({0: 5}, 0) is WaitResult.REACHED


def test_a_waiter_for_several_partitions_waits_for_all_of_them() -> None:
    waiters = running(p0=0, p1=0)
    future = waiters.register({0: 3, 1: 4})
    waiters.reached({0: 9})
    before = future.done()
    waiters.reached({1: 4})
    assert (before, future.result(0), waiters.waiting()) == (False, WaitResult.REACHED, 0)


def test_waiters_are_woken_in_the_order_of_their_positions() -> None:
    waiters, dice = running(p0=0), random.Random(3)
    offsets = dice.sample(range(1, 200), 100)
    futures = {offset: waiters.register({0: offset}) for offset in offsets}
    for position in range(0, 200, 7):
        waiters.reached({0: position})
        assert {at for at, future in futures.items() if future.done()} == {
            a for a in offsets if a <= position
        }


def test_a_timeout_ends_a_wait_and_removes_the_waiter() -> None:
    waiters = running(p0=0)
    assert (waiters.wait({0: 1}, 0.01), waiters.waiting()) == (WaitResult.TIMED_OUT, 0)
    waiters.reached({0: 5})  # does not wake the removed waiter


def test_a_view_that_stops_ends_all_waits_now_and_later() -> None:
    waiters = running(p0=0)
    future = waiters.register({0: 7})
    waiters.stopped()
    assert (future.result(0), waiters.wait({0: 7}, 60)) == (WaitResult.STOPPED, WaitResult.STOPPED)
    assert waiters.wait({0: 0}, 0) is WaitResult.REACHED  # a reached position can still be read
    waiters.reached({0: 8})
    assert waiters.wait({0: 7}, 0) is WaitResult.REACHED


def test_the_number_of_waiters_is_bounded() -> None:
    waiters = PositionWaiters("view", waiters_max=2)
    waiters.reached({0: 0})
    for _ in range(2):
        waiters.register({0: 1})
    with pytest.raises(WaitersFull, match="2 readers"):
        waiters.register({0: 1})


def test_cancelled_waiters_are_removed() -> None:
    waiters = running(p0=0)
    for offset in range(1, 3000):
        assert waiters.cancel(waiters.register({0: offset})) is WaitResult.TIMED_OUT
    assert sum(map(len, waiters._heaps.values())) < 2000


def test_no_waiter_is_lost_between_many_threads() -> None:
    waiters, ended = running(p0=0, p1=0), list[WaitResult]()

    def read(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(50):
            ended.append(waiters.wait({0: dice.randint(1, 400), 1: dice.randint(1, 400)}, 60))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for position in range(1, 401):
        waiters.reached({0: position})
        waiters.reached({1: position})
    for thread in threads:
        thread.join(60)
    assert (set(ended), len(ended)) == ({WaitResult.REACHED}, 400)


def test_a_position_reached_right_before_the_timeout_counts() -> None:
    waiters = running(p0=0)
    future: Future[WaitResult] = waiters.register({0: 1})
    waiters.reached({0: 1})
    assert waiters.cancel(future) is WaitResult.REACHED
