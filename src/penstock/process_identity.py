"""Identifies a process by pid and start time, and keeps that in files: records and locks.

A pid alone is reused, and a name proves nothing. On Linux the start time is the kernel's count of
ticks since boot plus the id of that boot, which no clock change moves. Elsewhere it is the start
time that psutil reports.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.atomic_files import write_atomically

if TYPE_CHECKING:
    import signal
    from typing import IO

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    pid: int
    started: str

    def is_alive(self) -> bool:
        return self == identify(self.pid)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to exactly this process; False if it has ended."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def identify(pid: int) -> Identity | None:
    """The process that has this pid now; None if there is none, or only a zombie."""
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
    # The command's name is in parentheses and may contain anything, even spaces.
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    if state in "ZX":
        return None
    return Identity(pid, f"{boot_id()}:{fields[18]}")


def boot_id() -> str:
    """Which run of which kernel this is; empty in sandboxes that hide it, and elsewhere than on Linux."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def this_process() -> Identity:
    identity = identify(os.getpid())
    assert identity is not None
    return identity


def write_identity(path: Path, identity: Identity, **more: object) -> None:
    """Replace the record of a process; `more` is kept beside its identity."""
    write_atomically(path, json.dumps(asdict(identity) | more))


def read_record(path: Path) -> tuple[Identity, dict[str, Any]] | None:
    """The process of a record, and what else the record holds; None if there is no readable record."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        return Identity(int(values.pop("pid")), str(values.pop("started"))), values
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_identity(path: Path) -> Identity | None:
    record = read_record(path)
    return None if record is None else record[0]


def read_alive(path: Path) -> Identity | None:
    """The process of a record, if it is alive."""
    identity = read_identity(path)
    return identity if identity is not None and identity.is_alive() else None


def try_lock(file: int | IO[Any]) -> bool:
    """Lock a file for as long as this process, or one that inherits the descriptor, lives.

    False if another process holds the lock.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
