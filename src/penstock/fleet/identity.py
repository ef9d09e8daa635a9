"""Who a process is: its pid together with the moment it started.

A pid alone is reused; a name proves nothing. On Linux the moment is the kernel's own count of
ticks since boot plus the id of that boot, which no clock change moves; elsewhere it is the start
time as psutil reports it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import signal


_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    pid: int
    started: str

    def is_alive(self) -> bool:
        return self == identify(self.pid)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; false when it is gone."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None when there is none, or only its corpse."""
    if pid <= 0:  # to signals those mean whole groups
        return None
    return _identify_linux(pid) if (_PROC / "self" / "stat").exists() else _identify_elsewhere(pid)


def _identify_elsewhere(pid: int) -> Identity | None:
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Identity(pid, f"{process.create_time():.3f}")
    except psutil.Error:  # gone, or hidden from us and so none of ours
        return None


def _identify_linux(pid: int) -> Identity | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may contain anything, spaces included.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    if state in "ZX":
        return None
    return Identity(pid, f"{_boot()}:{fields[18]}")


def _boot() -> str:
    """Which run of the kernel the ticks count from; empty in sandboxes that hide it."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_identity(path: Path) -> Identity | None:
    """What a record says; None when there is no readable record."""
    try:
        values = json.loads(path.read_text())
        return Identity(int(values["pid"]), str(values["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_identity(path: Path, identity: Identity, **more: object) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(asdict(identity) | more))
    temporary.replace(path)
