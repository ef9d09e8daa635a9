"""Load traces: records that arrive in each partition each second, and faults.

Each generator is one scenario that the scaler must handle. In some the right decision is no change.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.model.errors.scale import TraceInvalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

HOUR: Final = 3600
PARTITIONS: Final = 24
CAPACITY: Final = 100.0  # records a second one replica handles
NOISE: Final = 0.10  # standard deviation of the load's slow noise
NOISE_SECONDS: Final = 20.0  # its correlation time


@dataclass(frozen=True)
class Trace:
    """One scenario. Arrays have a row for each second."""

    name: str
    about: str
    arrivals: Floats  # records, [second, partition]
    replicas: int  # initially
    capacity: Floats  # records a second one replica handles, [second]
    poisoned: tuple[tuple[int, int, int], ...] = ()  # (partition, from, until): not consumed
    unreachable: tuple[tuple[int, int], ...] = ()  # (from, until): the brokers are unreachable
    redeploys: tuple[int, ...] = ()  # when a rolling restart starts

    @property
    def seconds(self) -> int:
        return len(self.arrivals)


def steady(seed: int, hours: float = 4) -> Trace:
    rate = np.full(int(hours * HOUR), 600.0)
    return _trace("steady", "the same load all day, with ordinary noise", rate, seed, replicas=8)


def daily_cycle(seed: int, hours: float = 12) -> Trace:
    clock = np.linspace(0, 2 * np.pi, int(hours * HOUR))
    rate = 850.0 - 700.0 * np.cos(clock)
    return _trace("daily cycle", "a day: 150/s at night, 1,550/s at noon", rate, seed, replicas=2)


def bursts(seed: int, hours: float = 4) -> Trace:
    """Every burst drains by itself within minutes: the right decision is no change."""
    chance = np.random.default_rng(seed)
    rate = np.full(int(hours * HOUR), 450.0)
    at = 600
    while at < len(rate) - 300:
        rate[at : at + int(chance.integers(15, 35))] *= 3.5
        at += int(chance.integers(420, 900))
    return _trace("bursts", "seconds of 3.5 times the load, every ten minutes", rate, seed, replicas=6)


def step(seed: int, hours: float = 3) -> Trace:
    rate = np.full(int(hours * HOUR), 300.0)
    third = len(rate) // 3
    rate[third : 2 * third] = 1200.0
    return _trace(
        "step", "four times the load from one second to the next, for an hour", rate, seed, replicas=4
    )


def slow_leak(seed: int, hours: float = 4) -> Trace:
    """The load is constant; replicas get slower until a new version is rolled out."""
    seconds = int(hours * HOUR)
    capacity = np.full(seconds, CAPACITY)
    begin, end = seconds // 8, seconds * 3 // 4
    capacity[begin:end] = np.linspace(CAPACITY, 0.6 * CAPACITY, end - begin)
    return _trace("slow leak", "replicas lose 40 % of their speed over hours", np.full(seconds, 560.0), seed,
                  replicas=6, capacity=capacity, redeploys=(end,))  # fmt: skip


def hot_partition(seed: int, hours: float = 3) -> Trace:
    """One key takes most of one member's capacity. It helps if that member owns fewer other partitions."""
    rate = np.full(int(hours * HOUR), 360.0)
    third = len(rate) // 3
    extra = np.zeros((len(rate), PARTITIONS))
    extra[third : 2 * third, 5] = 55.0
    return _trace("hot partition", "one partition gets four times its share, for an hour", rate, seed,
                  replicas=5, extra=extra)  # fmt: skip


def poison_partition(seed: int, hours: float = 3) -> Trace:
    seconds = int(hours * HOUR)
    poisoned = ((7, seconds // 4, seconds * 3 // 4),)
    return _trace("poison partition", "one partition is not consumed at all for half of the time",
                  np.full(seconds, 500.0), seed, replicas=6, poisoned=poisoned)  # fmt: skip


def broker_blip(seed: int, hours: float = 3) -> Trace:
    seconds = int(hours * HOUR)
    unreachable = tuple((at, at + 60) for at in (seconds // 4, seconds // 2, seconds * 3 // 4))
    return _trace("broker blip", "brokers unreachable for a minute, three times",
                  np.full(seconds, 500.0), seed, replicas=6, unreachable=unreachable)  # fmt: skip


def redeploy(seed: int, hours: float = 3) -> Trace:
    seconds = int(hours * HOUR)
    return _trace("redeploy", "two rolling restarts", np.full(seconds, 650.0), seed, replicas=8,
                  redeploys=(seconds // 3, seconds * 2 // 3))  # fmt: skip


GENERATORS: Final[tuple[Callable[..., Trace], ...]] = (
    steady, daily_cycle, bursts, step, slow_leak, hot_partition, poison_partition, broker_blip, redeploy,
)  # fmt: skip


def trace_set(seed: int, scale: float = 1.0) -> list[Trace]:
    """All traces, each with its own seed; `scale` shortens them for a quick run."""
    traces = []
    for index, generate in enumerate(GENERATORS):
        hours = generate.__defaults__[0] if generate.__defaults__ else 3
        traces.append(generate(seed * 1000 + index, hours * scale))
    return traces


def recorded(path: Path, *, replicas: int, capacity: float) -> Trace:
    """A trace from a CSV file: `second,arrived` (spread evenly) or `second,partition,arrived`."""
    cells: dict[tuple[int, int], float] = {}
    with path.open(newline="") as lines:
        reader = csv.DictReader(lines)
        names = reader.fieldnames or []
        if not {"second", "arrived"} <= set(names):
            raise TraceInvalid(path=path, line=1, reason=f"columns are {', '.join(names) or 'missing'}")
        split = "partition" in names
        for number, line in enumerate(reader, start=2):
            try:
                second, partition = int(line["second"]), int(line["partition"]) if split else 0
                arrived = float(line["arrived"])
            except (TypeError, ValueError):
                raise TraceInvalid(
                    path=path, line=number, reason="a value is missing or not a number"
                ) from None
            if second < 0 or partition < 0 or not 0 <= arrived < float("inf"):
                raise TraceInvalid(path=path, line=number, reason="a value is negative or not finite")
            cells[second, partition] = cells.get((second, partition), 0.0) + arrived
    if not cells:
        raise TraceInvalid(path=path, line=2, reason="the file has no data")
    seconds = 1 + max(second for second, _ in cells)
    partitions = 1 + max(partition for _, partition in cells) if split else PARTITIONS
    arrivals = np.zeros((seconds, partitions))
    for (second, partition), arrived in cells.items():
        if split:
            arrivals[second, partition] = arrived
        else:
            arrivals[second, :] = arrived / partitions
    speed = np.full(seconds, capacity)
    return Trace(path.stem, f"recorded in {path.name}", arrivals, replicas, speed)


def _trace(
    name: str,
    about: str,
    rate: Floats,
    seed: int,
    *,
    replicas: int,
    capacity: Floats | None = None,
    extra: Floats | None = None,
    poisoned: tuple[tuple[int, int, int], ...] = (),
    unreachable: tuple[tuple[int, int], ...] = (),
    redeploys: tuple[int, ...] = (),
) -> Trace:
    chance = np.random.default_rng(seed)
    wander = _slow_noise(chance, len(rate))
    spread = np.repeat((rate * wander / PARTITIONS)[:, None], PARTITIONS, axis=1)
    if extra is not None:
        spread = spread + extra
    arrivals = chance.poisson(spread).astype(np.float64)
    for begin, end in unreachable:  # producers buffer and send within ten seconds of the recovery
        held = arrivals[begin:end].sum(axis=0)
        arrivals[begin:end] = 0.0
        arrivals[end : end + 10] += np.floor(held / 10)
    speed = np.full(len(rate), CAPACITY) if capacity is None else capacity
    return Trace(name, about, arrivals, replicas, speed, poisoned, unreachable, redeploys)


def _slow_noise(chance: np.random.Generator, seconds: int) -> Floats:
    """Ornstein-Uhlenbeck noise around one, like that of real load."""
    keep = float(np.exp(-1 / NOISE_SECONDS))
    pushes = chance.normal(0.0, NOISE * np.sqrt(1 - keep * keep), seconds)
    values = np.empty(seconds)
    value = 0.0
    for index, push in enumerate(pushes.tolist()):
        value = keep * value + push
        values[index] = value
    return np.maximum(1.0 + values, 0.1)
