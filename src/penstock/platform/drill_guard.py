"""Makes a process stand still, and lets it continue whatever happens: the faults of `penstock health drill`.

    python -m penstock.platform.drill_guard PID STARTED freeze|slow SECONDS

It is a separate process in a separate session. It heals when the time is over, on SIGTERM, and when its
standard input ends, as it does if the command is killed.
"""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.model.errors.health import DrillRefused
from penstock.process_identity import Identity, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.fleet.layout import Layout

STILL_SECONDS: Final = 0.8  # of each second, of a slow process
RUN_SECONDS: Final = 0.2
HEAL_SECONDS_MAX: Final = 10.0
LOCK: Final = "drill.lock"


class Standstill(StrEnum):
    FREEZE = "freeze"  # all the time
    SLOW = "slow"  # four fifths of the time


def stand_still(process: Identity, kind: Standstill, seconds: float) -> None:
    """Until the time is over or standard input ends."""
    until = time.monotonic() + seconds
    try:
        while (left := until - time.monotonic()) > 0 and process.signal(signal.SIGSTOP):
            if _input_ends(left if kind is Standstill.FREEZE else min(left, STILL_SECONDS)):
                return
            process.signal(signal.SIGCONT)
            if _input_ends(RUN_SECONDS):
                return
    finally:
        process.signal(signal.SIGCONT)


def _input_ends(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


@contextlib.contextmanager
def sole_drill(layout: Layout, broker: int) -> Iterator[int]:
    """The descriptor of the home's lock: whatever inherits it holds the lock, too."""
    with (layout.home / LOCK).open("a+") as file:
        if not try_lock(file):
            raise DrillRefused(broker=broker, reason="another drill is under way")
        yield file.fileno()


@contextlib.contextmanager
def standing_still(process: Identity, kind: Standstill, seconds: float, lock: int) -> Iterator[None]:
    """The process stands still meanwhile, at most for so many seconds."""
    words = [sys.executable, "-m", __name__, str(process.pid), process.started, kind, f"{seconds:g}"]
    guard = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, pass_fds=(lock,))
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        try:
            guard.wait(HEAL_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        process.signal(signal.SIGCONT)


def main(words: Sequence[str]) -> None:
    pid, started, kind, seconds = words
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    stand_still(Identity(int(pid), started), Standstill(kind), float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
