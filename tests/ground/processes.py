"""Killing and freezing processes, with the promise that nothing stays frozen or behind.

A process is known by its pid and the time it started: a pid that now belongs to somebody else is
never signalled.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any, Self

import psutil

from tests.ground.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Processes:
    """What one test has started or frozen; all of it is set right when the test ends."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._frozen: set[int] = set()
        self._started: list[subprocess.Popen[Any]] = []

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a child that ends, at the latest, with the test. Options are those of Popen."""
        child = subprocess.Popen(command, **options)
        self._started.append(child)
        self._known[child.pid] = psutil.Process(child.pid)
        return child

    def kill(self, pid: int) -> None:
        """kill -9, and wait until it runs no more."""
        process = self._process(pid)
        process.send_signal(signal.SIGKILL)
        self._frozen.discard(pid)
        wait_for(lambda: not _alive(process), what=f"{pid} to be gone")

    def freeze(self, pid: int) -> None:
        """SIGSTOP, and wait until it stands still. Its sockets stay open."""
        process = self._process(pid)
        self._frozen.add(pid)
        process.suspend()
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, what=f"{pid} to stop")

    def thaw(self, pid: int) -> None:
        """SIGCONT, and wait until it moves."""
        process = self._process(pid)
        process.resume()
        self._frozen.discard(pid)
        wait_for(lambda: process.status() != psutil.STATUS_STOPPED, what=f"{pid} to go on")

    def close(self) -> None:
        for pid in sorted(self._frozen):
            if _alive(self._known[pid]):
                self._known[pid].resume()
        self._frozen.clear()
        for child in self._started:
            with child:  # closes its pipes and waits
                child.kill()
        self._started.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _process(self, pid: int) -> psutil.Process:
        if pid not in self._known:
            self._known[pid] = psutil.Process(pid)
        # psutil compares start times too, so a pid that was given to somebody else is not running.
        if not _alive(self._known[pid]):
            raise ProcessLookupError(f"process {pid} has ended")
        return self._known[pid]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in _GONE
    except psutil.NoSuchProcess:
        return False
