"""Kill, freeze and thaw processes; when the test ends, none stays frozen or running.

A process is identified by its pid and start time, so a reused pid is never signalled.
"""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING, Any, Self

import psutil

from tests.harness.fleet import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Processes:
    """The processes that one test has started or frozen."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._frozen: set[int] = set()
        self._started: list[subprocess.Popen[Any]] = []

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a child that ends with the test at the latest. Options are those of Popen."""
        child = subprocess.Popen(command, **options)
        self._started.append(child)
        self._known[child.pid] = psutil.Process(child.pid)
        return child

    def kill(self, pid: int) -> None:
        """Send SIGKILL and wait until the process has ended."""
        process = self._process(pid)
        process.send_signal(signal.SIGKILL)
        self._frozen.discard(pid)
        wait_for(lambda: not _alive(process), what=f"process {pid} to end")

    def freeze(self, pid: int) -> None:
        """Send SIGSTOP and wait until the process has stopped. Its sockets stay open."""
        process = self._process(pid)
        self._frozen.add(pid)
        process.suspend()
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, what=f"process {pid} to stop")

    def thaw(self, pid: int) -> None:
        """Send SIGCONT and wait until the process runs again."""
        process = self._process(pid)
        process.resume()
        self._frozen.discard(pid)
        wait_for(lambda: process.status() != psutil.STATUS_STOPPED, what=f"process {pid} to continue")

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
        # psutil compares start times as well, so a reused pid does not count as running.
        if not _alive(self._known[pid]):
            raise ProcessLookupError(f"process {pid} has ended")
        return self._known[pid]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in _ENDED
    except psutil.NoSuchProcess:
        return False
