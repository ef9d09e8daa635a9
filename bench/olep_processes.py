"""The executor process of `bench.olep`, and the processor time of each process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

from bench.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from examples.payments.settings import Settings

STOP_SECONDS = 30.0


class Meter:
    """Processor seconds of this process without its children, and of named others with theirs."""

    def __init__(self, others: Mapping[str, Sequence[int]]) -> None:
        self._others = {name: tuple(pids) for name, pids in others.items()}

    def read(self) -> dict[str, float]:
        own = resource.getrusage(resource.RUSAGE_SELF)
        used = {"client": own.ru_utime + own.ru_stime}
        for name, pids in self._others.items():
            used[name] = sum(_tree(pid) for pid in pids)
        return used

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        return {name: value - before[name] for name, value in self.read().items()}


def _tree(pid: int) -> float:
    process = psutil.Process(pid)
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue  # its time counts for its parent now
        total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def executing(settings: Settings) -> Iterator[int]:
    """Runs one executor of the bank; yields its process id."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.payments", "executor", "--home", settings.home],
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield process.pid
        assert process.poll() is None, "the executor has exited"
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)
