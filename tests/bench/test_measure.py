"""Interleaved rounds, and processor time over a process tree."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.measure import Series, interleave, processor_seconds, rotated

BURN = "import time\nwhile time.process_time() < 0.2: pass\n"


def test_every_round_runs_every_contender_and_starts_with_another() -> None:
    order: list[str] = []

    interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, warm_up=0)

    assert order == ["a", "b", "b", "a"]


def test_warm_up_rounds_are_discarded() -> None:
    calls = iter(range(10))

    measured = interleave({"a": lambda: float(next(calls))}, rounds=3, warm_up=2)

    assert measured["a"].value == (2.0, 3.0, 4.0)
    assert len(measured["a"].wall) == len(measured["a"].processor) == 3


def test_a_contender_that_returns_a_value_only_sometimes_is_refused() -> None:
    values = iter([1.0, None])

    with pytest.raises(ValueError, match="1 of 2 runs"):
        interleave({"a": lambda: next(values)}, rounds=2, warm_up=0)


def test_rotation_keeps_every_name() -> None:
    assert [rotated(["a", "b", "c"], turn) for turn in (0, 1, 5)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]


def test_ratios_are_taken_round_by_round() -> None:
    ours = Series("ours", wall=(2.0, 6.0), processor=(1.0, 1.0))
    peer = Series("peer", wall=(1.0, 2.0), processor=(4.0, 2.0))

    assert ours.ratios(peer, "wall") == (2.0, 3.0)
    assert ours.ratios(peer) == (0.25, 0.5)
    assert ours.median("wall") == 4.0


def test_the_time_of_a_child_that_ended_is_counted() -> None:
    def child() -> None:
        subprocess.run([sys.executable, "-c", BURN], check=True)

    measured = interleave({"child": child}, rounds=1, warm_up=0)

    assert measured["child"].processor[0] >= 0.19


def test_the_time_of_a_living_child_is_counted() -> None:
    before = processor_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", BURN + "print('burnt', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burnt\n"

        alone, together = processor_seconds(child.pid), processor_seconds() - before

        child.communicate(b"\n")
    assert alone >= 0.19
    assert together >= alone


def test_an_ended_process_counts_as_zero() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert processor_seconds(child.pid) == 0.0
