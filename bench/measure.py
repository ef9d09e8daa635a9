"""Measuring contenders side by side, so that the machine's noise falls on all of them alike.

Processor seconds count the whole tree of processes: those that live, those that ended and were
waited for, and theirs. They are steadier than wall time on a shared machine.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Quantity = Literal["wall", "processor", "value"]


@dataclass(frozen=True, slots=True)
class Series:
    """One contender's runs, in the order of the rounds."""

    name: str
    wall: tuple[float, ...]  # seconds
    processor: tuple[float, ...]  # seconds, whole tree of processes
    value: tuple[float, ...] = ()  # what the contender returned, if anything

    def median(self, quantity: Quantity = "processor") -> float:
        return float(statistics.median(getattr(self, quantity)))

    def ratios(self, other: Series, quantity: Quantity = "processor") -> tuple[float, ...]:
        """Round by round, this one's figure to the other's: what slowed both cancels out."""
        return tuple(
            mine / theirs
            for mine, theirs in zip(getattr(self, quantity), getattr(other, quantity), strict=True)
        )


def interleave(
    contenders: Mapping[str, Callable[[], float | None]],
    *,
    rounds: int = 5,
    warm_up: int = 1,
    pids: Iterable[int] = (),
) -> dict[str, Series]:
    """Run every contender once a round, each round beginning with another one.

    A contender may return a figure of its own (records a second, say); all runs of one do, or
    none. `pids` are processes outside of our own tree whose processor time counts as well.
    Warm-up rounds are run and forgotten.
    """
    if rounds < 1:
        raise ValueError("at least one round")
    outside = tuple(pids)
    runs: dict[str, list[tuple[float, float, float | None]]] = {name: [] for name in contenders}
    for turn in range(-warm_up, rounds):
        for name in rotated(list(contenders), turn):
            begin, used = time.perf_counter(), processor_seconds(os.getpid(), *outside)
            value = contenders[name]()
            wall = time.perf_counter() - begin
            processor = processor_seconds(os.getpid(), *outside) - used
            if turn >= 0:
                runs[name].append((wall, processor, value))
    return {name: series(name, kept) for name, kept in runs.items()}


def rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names) if names else 0
    return names[first:] + names[:first]


def series(name: str, runs: list[tuple[float, float, float | None]]) -> Series:
    values = tuple(value for _, _, value in runs if value is not None)
    if values and len(values) != len(runs):
        raise ValueError(f"{name} returned a figure in {len(values)} of {len(runs)} runs")
    return Series(name, tuple(run[0] for run in runs), tuple(run[1] for run in runs), values)


def processor_seconds(*pids: int) -> float:
    """Processor time used so far by these processes and everything they started.

    A child's time moves to its parent when the parent waits for it, so the sum over a tree never
    falls when one of it ends. What a process orphaned on purpose is missed: name its pid too.
    """
    seen: dict[int, psutil.Process] = {}
    for pid in pids or (os.getpid(),):
        try:
            process = psutil.Process(pid)
            seen[pid] = process
            seen.update((child.pid, child) for child in process.children(recursive=True))
        except psutil.NoSuchProcess:
            continue
    return sum(_used(process) for process in seen.values())


def _used(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0
    used = times.user + times.system
    if process.pid == os.getpid():  # psutil knows the ended children on Linux alone, and there coarsely
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = resource.getrusage(resource.RUSAGE_SELF)
        return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    return float(used + getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0))
