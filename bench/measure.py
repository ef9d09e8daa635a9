"""Measures contenders in interleaved rounds, so that the machine's noise affects all of them alike.

Processor seconds cover the whole process tree: live processes, and those that ended and were waited for.
On a shared machine they are steadier than wall time.
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
    """One contender's runs, by round."""

    name: str
    wall: tuple[float, ...]  # seconds
    processor: tuple[float, ...]  # seconds, whole process tree
    value: tuple[float, ...] = ()  # what the contender returned, if anything

    def median(self, quantity: Quantity = "processor") -> float:
        return float(statistics.median(getattr(self, quantity)))

    def ratios(self, other: Series, quantity: Quantity = "processor") -> tuple[float, ...]:
        """The ratio to the other contender, round by round, so that common slowdowns cancel out."""
        return tuple(
            own / other_value
            for own, other_value in zip(getattr(self, quantity), getattr(other, quantity), strict=True)
        )


def interleave(
    contenders: Mapping[str, Callable[[], float | None]],
    *,
    rounds: int = 5,
    warm_up: int = 1,
    pids: Iterable[int] = (),
) -> dict[str, Series]:
    """Runs every contender once per round; each round starts with another one.

    A contender may return a value, such as records a second, in all of its runs or in none. `pids` are
    processes outside this process tree whose processor time counts too. Warm-up rounds are discarded.
    """
    if rounds < 1:
        raise ValueError("at least one round")
    outside = tuple(pids)
    runs: dict[str, list[tuple[float, float, float | None]]] = {name: [] for name in contenders}
    for round_number in range(-warm_up, rounds):
        for name in rotated(list(contenders), round_number):
            start, used = time.perf_counter(), processor_seconds(os.getpid(), *outside)
            value = contenders[name]()
            wall = time.perf_counter() - start
            processor = processor_seconds(os.getpid(), *outside) - used
            if round_number >= 0:
                runs[name].append((wall, processor, value))
    return {name: series(name, measured) for name, measured in runs.items()}


def rotated(names: list[str], by: int) -> list[str]:
    first = by % len(names) if names else 0
    return names[first:] + names[:first]


def series(name: str, runs: list[tuple[float, float, float | None]]) -> Series:
    values = tuple(value for _, _, value in runs if value is not None)
    if values and len(values) != len(runs):
        raise ValueError(f"{name} returned a value in {len(values)} of {len(runs)} runs")
    return Series(name, tuple(run[0] for run in runs), tuple(run[1] for run in runs), values)


def processor_seconds(*pids: int) -> float:
    """Processor time used so far by these processes and everything they started.

    A child's time moves to its parent when the parent waits for it, so the sum over a tree never decreases.
    Orphaned processes are missed: pass their pids as well.
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
    if process.pid == os.getpid():  # psutil has ended children only on Linux, with a coarse clock
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = resource.getrusage(resource.RUSAGE_SELF)
        return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    return float(used + getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0))
