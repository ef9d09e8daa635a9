"""Waiters in a heap: reached, timed out, stopped, and never forgotten."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors.views import WaitersFull
from penstock.olep.view.waiters import Arrival, Waiters

if TYPE_CHECKING:
    from concurrent.futures import Future


def running(**positions: int) -> Waiters:
    waiters = Waiters("view")
    waiters.reached({int(name[1:]): at for name, at in positions.items()})
    return waiters


def test_who_asks_for_what_is_there_does_not_wait() -> None:
    assert running(p0=5).wait({0: 5}, 0) is Arrival.REACHED


def test_a_waiter_for_several_partitions_waits_for_all_of_them() -> None:
    waiters = running(p0=0, p1=0)
    future = waiters.begin({0: 3, 1: 4})
    waiters.reached({0: 9})
    before = future.done()
    waiters.reached({1: 4})
    assert (before, future.result(0), waiters.waiting()) == (False, Arrival.REACHED, 0)


def test_waiters_are_woken_in_the_order_of_their_positions_whatever_order_they_came_in() -> None:
    waiters, dice = running(p0=0), random.Random(3)
    offsets = dice.sample(range(1, 200), 100)
    futures = {offset: waiters.begin({0: offset}) for offset in offsets}
    for position in range(0, 200, 7):
        waiters.reached({0: position})
        assert {at for at, future in futures.items() if future.done()} == {
            a for a in offsets if a <= position
        }


def test_time_that_is_up_ends_the_waiting_and_nothing_is_left() -> None:
    waiters = running(p0=0)
    assert (waiters.wait({0: 1}, 0.01), waiters.waiting()) == (Arrival.TIMED_OUT, 0)
    waiters.reached({0: 5})  # and nobody stumbles over who has gone


def test_a_view_that_stops_ends_all_waiting_now_and_later() -> None:
    waiters = running(p0=0)
    future = waiters.begin({0: 7})
    waiters.stopped()
    assert (future.result(0), waiters.wait({0: 7}, 60)) == (Arrival.STOPPED, Arrival.STOPPED)
    assert waiters.wait({0: 0}, 0) is Arrival.REACHED  # what is there can still be read
    waiters.reached({0: 8})
    assert waiters.wait({0: 7}, 0) is Arrival.REACHED


def test_there_is_a_bound() -> None:
    waiters = Waiters("view", waiters_max=2)
    waiters.reached({0: 0})
    for _ in range(2):
        waiters.begin({0: 1})
    with pytest.raises(WaitersFull, match="2 readers"):
        waiters.begin({0: 1})


def test_many_who_give_up_leave_no_trace() -> None:
    waiters = running(p0=0)
    for offset in range(1, 3000):
        assert waiters.give_up(waiters.begin({0: offset})) is Arrival.TIMED_OUT
    assert sum(map(len, waiters._heaps.values())) < 2000


def test_readers_and_the_writer_in_many_threads_lose_nobody() -> None:
    waiters, ended = running(p0=0, p1=0), list[Arrival]()

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
    assert (set(ended), len(ended)) == ({Arrival.REACHED}, 400)


def test_what_came_in_the_last_moment_counts() -> None:
    waiters = running(p0=0)
    future: Future[Arrival] = waiters.begin({0: 1})
    waiters.reached({0: 1})
    assert waiters.give_up(future) is Arrival.REACHED
